//! The host tier of the device.

use sluice_policy::action::LayerBlockSwap;
use sluice_ports::fake_memory::HostBlock;

use super::Device;

impl Device {
    pub(super) fn swap_out(&mut self, swaps: &[LayerBlockSwap]) {
        for swap in swaps {
            assert_eq!(self.place(swap.layer_block).0, swap.chunk, "a swap names the chunk");
            self.check_read(swap.layer_block);
            self.check_settled(swap.host);
            let tokens = self.memory.tokens(self.place(swap.layer_block));
            self.memory.set_host_block(swap.host, HostBlock { generation: Some(swap.generation), tokens });
        }
    }

    pub(super) fn swap_in(&mut self, swaps: &[LayerBlockSwap]) {
        for (at, swap) in swaps.iter().enumerate() {
            let from = if self.mix_up_swaps { &swaps[swaps.len() - 1 - at] } else { swap };
            let HostBlock { generation, tokens } = self.memory.host_block(from.host);
            assert_eq!(generation, Some(from.generation), "{:?} holds what is asked for", from.host);
            assert_eq!(self.place(swap.layer_block).0, swap.chunk, "a swap names the chunk");
            self.check_write(swap.layer_block);
            self.check_settled(swap.host);
            self.write_layer_block(swap.layer_block, tokens);
        }
    }
}
