//! The host tier of the device.

use sluice_policy::action::BlockSwap;

use super::Device;

impl Device {
    pub(super) fn swap_out(&mut self, swaps: &[BlockSwap]) {
        for swap in swaps {
            assert_eq!(self.place(swap.block).0, swap.chunk, "a swap names the chunk");
            self.check_read(swap.block);
            self.check_settled(swap.host);
            let tags = self.blocks.get(&self.place(swap.block)).copied().unwrap_or([0; 16]);
            self.host.insert(swap.host, (swap.generation, tags));
        }
    }

    pub(super) fn swap_in(&mut self, swaps: &[BlockSwap]) {
        for (at, swap) in swaps.iter().enumerate() {
            let from = if self.mix_up_swaps { &swaps[swaps.len() - 1 - at] } else { swap };
            let (generation, tags) = self.host[&from.host];
            assert_eq!(generation, from.generation, "{:?} holds what is asked for", from.host);
            assert_eq!(self.place(swap.block).0, swap.chunk, "a swap names the chunk");
            self.check_write(swap.block);
            self.check_settled(swap.host);
            let to = self.place(swap.block);
            self.blocks.insert(to, tags);
        }
    }
}
