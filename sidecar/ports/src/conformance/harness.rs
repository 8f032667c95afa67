//! Helpers of the rules: a small geometry, and orders that are awaited.

use sluice_policy::action::{Action, Address, Fill, FillTarget, LayerBlockSwap, MapOp, Transaction, Work};
use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{ActionId, ChunkId, Generation, HostBlockId, LayerBlockId, LayerId};
use sluice_policy::reason::Reason;

use super::backend::Backend;
use crate::Memory;

/// Capacity in chunks; a slab takes two of them.
pub(super) const CAPACITY: u32 = 12;
pub(super) const LAYERS: u16 = 4;
/// Number of blocks of the host tier.
pub(super) const HOST_BLOCKS: u32 = 6;
/// How often in a row a backend may say that nothing happens before an awaited order counts as lost. A backend with
/// threads of its own says so after a while, in which a machine with other load may not have run them.
const PATIENCE: u32 = 25;

/// Returns a geometry with four layers of one and a half chunks, a smaller global slab, and eight blocks per
/// chunk.
pub(super) fn geometry<B: Backend>() -> Geometry {
    let chunk_bytes = B::chunk_bytes();
    Geometry {
        chunk_bytes,
        capacity_chunks: CAPACITY,
        global_bytes: chunk_bytes / 2,
        slab_bytes: vec![chunk_bytes * 3 / 2; usize::from(LAYERS)],
        layer_block_bytes: chunk_bytes / 8,
        activation: ActivationCost::default(),
        staging_chunks: 1,
    }
}

/// A backend and the orders submitted to it.
pub(super) struct BackendTest<B: Backend> {
    pub(super) backend: B,
    rule: &'static str,
    submitted: u64,
    completions: Vec<Completion>,
}

impl<B: Backend> BackendTest<B> {
    pub(super) fn new(rule: &'static str) -> Self {
        BackendTest::with_tier(rule, HOST_BLOCKS)
    }

    /// Creates a backend with `host_blocks` blocks of host tier.
    pub(super) fn with_tier(rule: &'static str, host_blocks: u32) -> Self {
        BackendTest {
            backend: B::start(&geometry::<B>(), host_blocks),
            rule,
            submitted: 0,
            completions: Vec::new(),
        }
    }

    /// Creates a backend whose chunks `0..count` exist.
    pub(super) fn with_chunks(rule: &'static str, count: u32) -> Self {
        let mut trial = BackendTest::new(rule);
        trial.succeed(Work::Create(chunks(0..count)));
        trial
    }

    pub(super) fn submit(&mut self, work: Work) -> ActionId {
        self.submitted += 1;
        let id = ActionId(self.submitted);
        let now = self.backend.now();
        self.backend.memory().submit(now, Action { id, work, reason: Reason::Load, due: None });
        id
    }

    /// Collects the completions by now.
    pub(super) fn collect(&mut self) {
        let now = self.backend.now();
        while let Some(completion) = self.backend.memory().poll(now) {
            let twice = self.completions.iter().any(|c| c.id == completion.id);
            assert!(!twice, "{}: {:?} completed twice", self.rule, completion.id);
            let known = completion.id.0 >= 1 && completion.id.0 <= self.submitted;
            assert!(known, "{}: {:?} was never ordered", self.rule, completion.id);
            self.completions.push(completion);
        }
    }

    /// Returns the outcome of an order, if it has completed.
    pub(super) fn outcome(&self, id: ActionId) -> Option<Outcome> {
        self.completions.iter().find(|c| c.id == id).map(|c| c.outcome)
    }

    /// Returns the position of an order among the completions.
    pub(super) fn completion_index(&self, id: ActionId) -> usize {
        self.completions.iter().position(|c| c.id == id).expect("the order has ended")
    }

    pub(super) fn completed_count(&self) -> usize {
        self.completions.len()
    }

    pub(super) fn wait(&mut self, id: ActionId) -> Outcome {
        loop {
            self.collect();
            if let Some(outcome) = self.outcome(id) {
                return outcome;
            }
            let advances = (0..PATIENCE).any(|_| self.backend.advance());
            assert!(advances, "{}: {id:?} never completes", self.rule);
        }
    }

    /// Waits for orders, and then until nothing more completes.
    pub(super) fn settle_after(&mut self, ids: &[ActionId]) {
        ids.iter().for_each(|id| _ = self.wait(*id));
        self.settle();
    }

    /// Advances until nothing more completes.
    pub(super) fn settle(&mut self) {
        self.collect();
        while self.backend.advance() {
            self.collect();
        }
        self.collect();
    }

    pub(super) fn run(&mut self, work: Work) -> Outcome {
        let id = self.submit(work);
        self.wait(id)
    }

    pub(super) fn succeed(&mut self, work: Work) {
        let shown = format!("{work:?}");
        let outcome = self.run(work);
        assert!(matches!(outcome, Outcome::Done { .. }), "{}: {shown} ended as {outcome:?}", self.rule);
    }

    pub(super) fn fail(&mut self, work: Work, failure: Failure) {
        let shown = format!("{work:?}");
        let outcome = self.run(work);
        assert_eq!(outcome, Outcome::Failed(failure), "{}: {shown}", self.rule);
    }
}

pub(super) fn chunks(range: std::ops::Range<u32>) -> Vec<ChunkId> {
    range.map(ChunkId).collect()
}

pub(super) fn remap(ops: Vec<MapOp>) -> Work {
    Work::Transaction(Transaction { ops, handed_over: Vec::new() })
}

pub(super) fn map(address: Address, chunk: u32) -> MapOp {
    MapOp::Map(address, ChunkId(chunk))
}

pub(super) fn unmap(address: Address, chunk: u32) -> MapOp {
    MapOp::Unmap(address, ChunkId(chunk))
}

/// Returns a swap of block `layer_block`, backed by `chunk`, and host block `host` of `generation`.
pub(super) fn swap(layer_block: u32, chunk: u32, host: u32, generation: u64) -> LayerBlockSwap {
    LayerBlockSwap {
        layer_block: LayerBlockId(layer_block),
        chunk: ChunkId(chunk),
        host: HostBlockId(host),
        generation: Generation(generation),
    }
}

pub(super) fn swap_out(swaps: &[LayerBlockSwap]) -> Work {
    Work::SwapOut(swaps.to_vec())
}

pub(super) fn swap_in(swaps: &[LayerBlockSwap]) -> Work {
    Work::SwapIn(swaps.to_vec())
}

/// Returns a fill into chunks `first` and `first + 1`.
pub(super) fn fill(
    target: FillTarget,
    generation: u64,
    first: u32,
    after: Option<(LayerId, Generation)>,
) -> Work {
    Work::Fill(Fill { target, generation: Generation(generation), after, chunks: chunks(first..first + 2) })
}

/// Maps both positions of a layer's range to chunks `first` and `first + 1`.
pub(super) fn map_layer(layer: LayerId, first: u32) -> Vec<MapOp> {
    vec![map(Address::Layer(layer, 0), first), map(Address::Layer(layer, 1), first + 1)]
}
