//! The simulated memory passes the conformance suite of the memory port.

use std::panic::catch_unwind;

use sluice_policy::action::Address;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos};
use sluice_ports::Memory;
use sluice_ports::conformance::{Backend, SlabChunk, chunk_with_two_owners_is_refused, run_all};
use sluice_ports::fake_memory::ChunkContent;
use sluice_sim::device::SharedDevice;
use sluice_sim::{Profile, SimDevice, SimMemory};

/// A backend; a careless one permits chunks with two owners.
struct SimBackend<const CARELESS: bool> {
    memory: SimMemory,
    device: SharedDevice,
    now: Nanos,
}

impl<const CARELESS: bool> Backend for SimBackend<CARELESS> {
    type Memory = SimMemory;

    fn start(geometry: &Geometry, host_blocks: u32) -> Self {
        let device = SimDevice::with_host_tier(geometry.clone(), Profile::default(), 1, host_blocks);
        device.borrow_mut().faults.keep_unmapped = CARELESS;
        SimBackend { memory: SimMemory::new(device.clone()), device, now: Nanos(0) }
    }

    fn memory(&mut self) -> &mut SimMemory {
        &mut self.memory
    }

    fn now(&mut self) -> Nanos {
        self.now
    }

    fn advance(&mut self) -> bool {
        match self.memory.next_due() {
            Some(due) => {
                self.now = self.now.max(due);
                true
            }
            None => false,
        }
    }

    fn hold_engine(&mut self, held: bool) {
        self.memory.hold_engine(self.now, held);
    }

    fn set_done(&mut self, layer: LayerId, generation: Generation) {
        self.device.borrow_mut().done.insert(layer, generation);
    }

    fn set_kv_done(&mut self, layer: LayerId, generation: Generation) {
        self.device.borrow_mut().kv_done.insert(layer, generation);
    }

    fn kv_ready(&mut self, layer: LayerId) -> Generation {
        self.device.borrow().kv_ready.get(&layer).copied().unwrap_or_default()
    }

    fn ready(&mut self, layer: Option<LayerId>) -> Generation {
        let device = self.device.borrow();
        match layer {
            None => device.ready_global,
            Some(layer) => device.ready.get(&layer).copied().unwrap_or_default(),
        }
    }

    fn contents(&mut self, address: Address) -> Option<SlabChunk> {
        match self.device.borrow().memory.content(address) {
            Some(ChunkContent::Slab { layer, index, .. }) => Some(SlabChunk { layer: *layer, chunk: *index }),
            _ => None,
        }
    }

    fn write_layer_block(&mut self, layer_block: LayerBlockId, tag: u32) {
        let mut device = self.device.borrow_mut();
        *device.memory.layer_block_mut(layer_block).expect("the block's KV chunk is backed") =
            [Some(u64::from(tag)); 16];
    }

    fn layer_block(&mut self, layer_block: LayerBlockId) -> Option<u32> {
        let tokens = *self.device.borrow_mut().memory.layer_block_mut(layer_block)?;
        let tag = tokens[0].filter(|_| tokens.iter().all(|token| *token == tokens[0]))?;
        u32::try_from(tag).ok()
    }
}

#[test]
fn simulated_memory_passes_conformance_suite() {
    run_all::<SimBackend<false>>();
}

#[test]
fn backend_with_doubly_owned_chunk_fails_suite() {
    let broken = catch_unwind(chunk_with_two_owners_is_refused::<SimBackend<true>>).expect_err("caught");
    let message = broken.downcast_ref::<String>().expect("a rule names itself");
    assert!(message.contains("a chunk of two owners is refused"), "{message}");
}
