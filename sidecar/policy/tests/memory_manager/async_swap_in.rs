//! Tests KV that is loaded from the host tier in parallel with steps, and requests admitted together with it.

use sluice_policy::action::Action;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{BLOCK_TOKENS, StepShape};
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::memory_manager::{Admission, MemoryManager, Prepared, StepNeed, StepTimes, SuspendReason};
use sluice_policy::reclaim::PolicyName;

use super::cases::{BLOCK, guaranteed_chunks, tenant};
use super::device::Faults;
use super::random::MODEL_TOKENS;
use super::world::World;

const LAYERS: u32 = 8;
const NOW: Nanos = Nanos(1);
const SHAPE: StepShape = StepShape { tokens: 1, sequences: 1, logit_rows: 1 };

/// A memory manager whose actions are executed one after the other.
struct Driven {
    manager: MemoryManager,
    out: Vec<Action>,
    /// Requests that the next step admits.
    admit: Vec<Admission>,
}

impl Driven {
    fn new() -> Driven {
        let slabs = vec![4; LAYERS as usize];
        let (params, _) = tenant(PolicyName::OrbitFlow, &slabs, 0, MODEL_TOKENS);
        let (mut params, geometry) =
            tenant(PolicyName::OrbitFlow, &slabs, guaranteed_chunks(&params) + 20, MODEL_TOKENS);
        params.host_kv_bytes = 200 * u64::from(LAYERS) * BLOCK;
        let mut world = World::new(params, geometry, 1, Faults::default());
        assert!(world.load());
        Driven { manager: world.manager, out: Vec::new(), admit: Vec::new() }
    }

    /// Returns the number of KV blocks that fit on the device.
    fn room(&self) -> u32 {
        self.manager.figures().kv_counts().total_layer_blocks / LAYERS
    }

    fn schedule(&mut self) {
        self.manager.boundary(NOW, &mut self.out);
    }

    fn prepare(&mut self, id: u64, kv_blocks: u32) -> Prepared {
        let kv_blocks = vec![(RequestId(id), kv_blocks)];
        let need = StepNeed { admit: self.admit.clone(), kv_blocks, shape: SHAPE, ..StepNeed::default() };
        let answer = self.manager.prepare(NOW, &need, &mut self.out);
        if answer == Prepared::Ready {
            self.admit.clear();
        }
        answer
    }

    /// Completes all actions.
    fn settle(&mut self) {
        while let Some(action) = self.out.pop() {
            let bytes = action.work.swaps().len() as u64 * BLOCK;
            let outcome = Outcome::Done { bytes, duration_ns: bytes.max(1) };
            self.manager.complete(NOW, &Completion { id: action.id, outcome }, &mut self.out);
        }
    }

    /// Serves a new request with `kv_blocks` KV blocks: allocates and computes them.
    fn serve(&mut self, id: u64, kv_blocks: u32) {
        let tokens = vec![id as u32; (kv_blocks * BLOCK_TOKENS) as usize];
        self.admit.push(Admission::new(RequestId(id), self.manager.cached_prefix(id, &tokens)));
        let ready = (0..100).any(|_| {
            let ready = self.prepare(id, kv_blocks) == Prepared::Ready;
            if !ready {
                self.settle();
                self.schedule();
            }
            ready
        });
        assert!(ready, "{id} gets its KV blocks");
        self.manager.begin(NOW, &mut self.out);
        self.settle();
        self.manager.on_tokens_computed(RequestId(id), &tokens);
        let (layer_ns, none) = (vec![1000; LAYERS as usize], vec![0; LAYERS as usize]);
        let (stall_ns, kv_stall_ns, total_ns) = (none.clone(), none, 10_000);
        let times = StepTimes { shape: SHAPE, decode_only: false, layer_ns, stall_ns, kv_stall_ns, total_ns };
        self.manager.finish(&times);
        self.schedule();
        self.settle();
    }
}

/// Admits, at one boundary, two suspended requests; the host tier has a part of the first one's KV.
fn admit_two(driven: &mut Driven) -> Prepared {
    let half = driven.room() / 2;
    driven.serve(1, half - 1);
    driven.manager.suspend(RequestId(1), SuspendReason::Pause);
    driven.serve(2, half - 1);
    driven.manager.suspend(RequestId(2), SuspendReason::Pause);
    driven.serve(3, 4);
    driven.manager.close(RequestId(3));
    driven.schedule();
    driven.settle();
    driven.admit = [1, 2].map(RequestId).map(Admission::suspended).to_vec();
    driven.prepare(2, 0)
}

/// Returns the number of used blocks on the device.
fn on_device(driven: &Driven) -> u32 {
    driven.manager.figures().kv_counts().used_layer_blocks
}

/// Otherwise its KV would be evicted for the other request, which would then be evicted for it, and neither would make
/// progress.
#[test]
fn request_admitted_with_loading_request_keeps_its_kv() {
    let mut driven = Driven::new();
    assert_eq!(admit_two(&mut driven), Prepared::Loading);
    assert!(
        driven.manager.kv_of(RequestId(1)).is_loading() && !driven.manager.kv_of(RequestId(2)).is_loading()
    );
    driven.admit = vec![Admission::suspended(RequestId(2))];
    let (all, here) = (driven.room() / 2 + 1, on_device(&driven));
    assert_eq!(driven.prepare(2, all), Prepared::Wait);
    assert_eq!(on_device(&driven), here, "nothing has left");
    assert_eq!(driven.prepare(2, 0), Prepared::Ready, "there is memory for what it was asked with");
    driven.manager.suspend(RequestId(2), SuspendReason::Pause);
    driven.settle();
    driven.schedule();
    driven.admit = [1, 2].map(RequestId).map(Admission::suspended).to_vec();
    assert_eq!(driven.prepare(1, 1), Prepared::Ready, "all of it is there");
}

/// A request that ran before gets its step; if necessary another request is evicted for it.
#[test]
fn running_request_does_not_wait_for_loading_kv() {
    let mut driven = Driven::new();
    driven.serve(9, 1);
    assert_eq!(admit_two(&mut driven), Prepared::Loading);
    driven.admit.clear();
    let all = driven.room() - 1;
    let answer = driven.prepare(9, all);
    assert!(matches!(answer, Prepared::Short { activation: false, .. }), "{answer:?}: a request has to go");
}
