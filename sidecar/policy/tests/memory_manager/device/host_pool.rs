//! The host tier of the device.

use sluice_policy::action::LayerBlockSwap;

use super::Device;

impl Device {
    pub(super) fn swap_out(&mut self, swaps: &[LayerBlockSwap]) {
        for swap in swaps {
            assert_eq!(self.place(swap.layer_block).0, swap.chunk, "a swap names the chunk");
            self.check_read(swap.layer_block);
            self.check_settled(swap.host);
            let tags = self.layer_blocks.get(&self.place(swap.layer_block)).copied().unwrap_or([0; 16]);
            self.host.insert(swap.host, (swap.generation, tags));
        }
    }

    pub(super) fn swap_in(&mut self, swaps: &[LayerBlockSwap]) {
        for (at, swap) in swaps.iter().enumerate() {
            let from = if self.mix_up_swaps { &swaps[swaps.len() - 1 - at] } else { swap };
            let (generation, tags) = self.host[&from.host];
            assert_eq!(generation, from.generation, "{:?} holds what is asked for", from.host);
            assert_eq!(self.place(swap.layer_block).0, swap.chunk, "a swap names the chunk");
            self.check_write(swap.layer_block);
            self.check_settled(swap.host);
            let to = self.place(swap.layer_block);
            self.layer_blocks.insert(to, tags);
        }
    }
}
