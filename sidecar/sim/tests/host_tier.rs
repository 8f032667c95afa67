//! The host tier in virtual time: its costs, the state after its faults, and that every error changes a token.

use std::sync::Arc;

use sluice_policy::action::{Action, Address, Fill, FillTarget, LayerBlockSwap, MapOp, Transaction, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry};
use sluice_policy::ids::{
    ActionId, ChunkId, Generation, HostBlockId, KvChunkId, LayerBlockId, LayerId, Nanos, RowId, StepId,
};
use sluice_policy::reason::Reason;
use sluice_ports::compute::{SampleRequest, SequenceStep, Step, StepDone, TableUpdate};
use sluice_ports::sampling::Sampling;
use sluice_ports::{Compute, ComputeEvent, Memory};
use sluice_sim::device::SharedDevice;
use sluice_sim::{Profile, SimCompute, SimDevice, SimFaults, SimMemory};

const CHUNK: u64 = 1 << 16;
/// Bytes of a layer block; five fit in a chunk.
const BLOCK: u64 = 12_000;
const FAILED: Outcome = Outcome::Failed(Failure::CopyFailed);
const REFUSED: Outcome = Outcome::Failed(Failure::Refused);

/// Two layers of one chunk each in chunks 1 and 2, global weights in chunk 0, KV in chunks 3 and 4, all of them filled.
pub struct Bench {
    device: SharedDevice,
    memory: SimMemory,
    pub compute: SimCompute,
    pub now: Nanos,
    orders: u64,
}

impl Bench {
    pub fn new() -> Bench {
        let geometry = Geometry {
            chunk_bytes: CHUNK,
            capacity_chunks: 5,
            global_bytes: CHUNK,
            slab_bytes: vec![CHUNK; 2],
            layer_block_bytes: BLOCK,
            activation: ActivationCost::default(),
            staging_chunks: 0,
        };
        let device = SimDevice::with_host_tier(geometry, Profile::default(), 1, 4);
        let (memory, compute) = (SimMemory::new(device.clone()), SimCompute::new(device.clone(), 50_000));
        let mut bench = Bench { device, memory, compute, now: Nanos(0), orders: 0 };
        bench.run(Work::Create((0..5).map(ChunkId).collect()));
        let layers = [Address::Layer(LayerId(0), 0), Address::Layer(LayerId(1), 0)];
        let kv_chunks = [Address::Kv(KvChunkId(0)), Address::Kv(KvChunkId(1))];
        let all = [Address::Global(0)].into_iter().chain(layers).chain(kv_chunks);
        bench.remap(all.zip(0..).map(|(address, chunk)| MapOp::Map(address, ChunkId(chunk))).collect());
        let targets =
            [FillTarget::Global, FillTarget::Resident(LayerId(0)), FillTarget::Resident(LayerId(1))];
        for (target, chunk) in targets.into_iter().zip(0..) {
            let fill = Fill { target, generation: Generation(1), after: None, chunks: vec![ChunkId(chunk)] };
            bench.run(Work::Fill(fill));
        }
        bench
    }

    pub fn submit(&mut self, work: Work) -> ActionId {
        self.submit_with_deadline(None, work)
    }

    /// Submits an operation that is needed at `due`.
    pub fn submit_with_deadline(&mut self, due: Option<Nanos>, work: Work) -> ActionId {
        self.orders += 1;
        let action = Action { id: ActionId(self.orders), work, reason: Reason::Load, due };
        self.memory.submit(self.now, action);
        ActionId(self.orders)
    }

    /// Runs an operation and returns its outcome.
    pub fn run(&mut self, work: Work) -> Outcome {
        self.submit(work);
        loop {
            if let Some(completion) = self.memory.poll(self.now) {
                assert_eq!(completion.id, ActionId(self.orders));
                return completion.outcome;
            }
            self.now = self.memory.next_due().expect("the order ends");
        }
    }

    /// Returns the next operation that ends, and when.
    pub fn next_completion(&mut self) -> (ActionId, Nanos) {
        loop {
            if let Some(completion) = self.memory.poll(self.now) {
                assert!(matches!(completion.outcome, Outcome::Done { .. }), "{completion:?}");
                return (completion.id, self.now);
            }
            self.now = self.memory.next_due().expect("an order ends");
        }
    }

    /// Sets the time of a block on the link, and of a layer with one token, nanoseconds.
    pub fn set_pace(&self, layer_block_ns: u64, layer_ns: u64) {
        let mut device = self.device.borrow_mut();
        let bytes_per_second = BLOCK * 1_000_000_000 / layer_block_ns;
        let profile = Profile { copy_start_ns: 0, layer_ns, layer_token_ns: 0, ..device.profile };
        device.profile = Profile {
            link_bytes_per_second: bytes_per_second,
            out_bytes_per_second: bytes_per_second,
            ..profile
        };
    }

    fn remap(&mut self, ops: Vec<MapOp>) {
        let outcome = self.run(Work::Transaction(Transaction { ops, handed_over: vec![] }));
        assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
    }

    /// Swaps blocks, each as `(layer_block, host layer_block, generation)`, in KV's first or second chunk.
    fn swap(&mut self, order: fn(Vec<LayerBlockSwap>) -> Work, swaps: &[(u32, u32, u64)]) -> Outcome {
        self.run(order(swaps.iter().copied().map(swap_of).collect()))
    }

    pub fn set_faults(&self, faults: SimFaults) {
        self.device.borrow_mut().faults = faults;
    }

    fn write(&self, layer_block: u32, tag: u64) {
        *self.device.borrow_mut().memory.layer_block_mut(LayerBlockId(layer_block)).unwrap() =
            [Some(tag); 16];
    }

    fn read(&self, layer_block: u32) -> Option<u64> {
        self.device.borrow_mut().memory.layer_block_mut(LayerBlockId(layer_block)).unwrap()[0]
    }

    /// Returns the token after `tokens`, which start at position `start`; `kv_blocks` are the blocks of both layers
    /// from KV block `first` on.
    pub fn step(&mut self, start: u32, tokens: Vec<u32>, kv_blocks: &[(u32, [u32; 2])]) -> u32 {
        self.step_of(start, tokens, kv_blocks, vec![]).sampled[0].token
    }

    /// Runs the same step with fetched KV.
    pub fn step_of(
        &mut self,
        start: u32,
        tokens: Vec<u32>,
        kv_blocks: &[(u32, [u32; 2])],
        kv_generations: Vec<(LayerId, Generation)>,
    ) -> StepDone {
        let row = RowId(0);
        let update = |&(kv_block, layer_blocks): &(u32, [u32; 2])| TableUpdate::KvBlock {
            row,
            kv_block,
            layer_blocks: layer_blocks.map(LayerBlockId).to_vec(),
        };
        let sample = Some(SampleRequest { sampling: Arc::new(Sampling::default()), prompt_tokens: 17 });
        let step = Step {
            id: StepId(u64::from(start) + 1),
            attempt: 0,
            epoch: 0,
            sequences: vec![SequenceStep { row, start, tokens, sample }],
            updates: kv_blocks.iter().map(update).collect(),
            generations: vec![],
            kv_generations,
            activation_limit_bytes: 0,
        };
        while let Some(ComputeEvent::Attached(_)) = self.compute.poll(self.now) {}
        self.compute.submit(self.now, step);
        loop {
            if let Some(ComputeEvent::Done(done)) = self.compute.poll(self.now) {
                return done;
            }
            self.now = self.compute.next_due().expect("the step ends");
        }
    }
}

/// Builds a swap from block, host block and generation.
pub fn swap_of((layer_block, host, generation): (u32, u32, u64)) -> LayerBlockSwap {
    LayerBlockSwap {
        layer_block: LayerBlockId(layer_block),
        chunk: ChunkId(3 + layer_block / 5),
        host: HostBlockId(host),
        generation: Generation(generation),
    }
}

#[test]
fn a_swap_takes_the_time_of_its_bytes_on_the_link() {
    let mut bench = Bench::new();
    for (order, layer_blocks) in [(Work::SwapOut as fn(_) -> _, 3), (Work::SwapIn, 2)] {
        let begun = bench.now;
        let swaps: Vec<_> = (0..layer_blocks).map(|layer_block| (layer_block, layer_block, 1)).collect();
        // 16 GB/s, after 1 us.
        let (bytes, duration_ns) = (u64::from(layer_blocks) * BLOCK, 1_000 + u64::from(layer_blocks) * 750);
        assert_eq!(bench.swap(order, &swaps), Outcome::Done { bytes, duration_ns });
        assert_eq!(bench.now.since(begun), duration_ns);
    }
    bench.set_faults(SimFaults { copy_slow_permille: 1000, ..SimFaults::default() });
    let begun = bench.now;
    bench.swap(Work::SwapIn, &[(0, 0, 1)]);
    assert_eq!(bench.now.since(begun), 17_500, "ten times as long");
}

#[test]
fn failed_swap_out_leaves_no_generation() {
    let mut bench = Bench::new();
    bench.swap(Work::SwapOut, &[(0, 0, 1), (1, 1, 2)]);
    bench.set_faults(SimFaults { copy_fails_permille: 1000, ..SimFaults::default() });
    assert_eq!(bench.swap(Work::SwapOut, &[(0, 0, 3), (1, 1, 4)]), FAILED);
    bench.set_faults(SimFaults::default());
    for named in [(5, 0, 1), (5, 1, 2), (5, 0, 3), (5, 1, 4)] {
        assert_eq!(bench.swap(Work::SwapIn, &[named]), REFUSED, "{named:?}");
    }
}

#[test]
fn a_swap_in_that_fails_leaves_nothing_to_read_and_may_be_repeated() {
    let mut bench = Bench::new();
    bench.write(0, 10);
    bench.write(5, 15);
    bench.swap(Work::SwapOut, &[(0, 0, 1)]);
    bench.set_faults(SimFaults { copy_fails_permille: 1000, ..SimFaults::default() });
    assert_eq!(bench.swap(Work::SwapIn, &[(5, 0, 1)]), FAILED);
    assert_eq!(bench.read(5), None);
    bench.set_faults(SimFaults::default());
    assert!(matches!(bench.swap(Work::SwapIn, &[(5, 0, 1)]), Outcome::Done { .. }));
    assert_eq!(bench.read(5), Some(10));
}

#[test]
fn a_swap_that_is_refused_by_chance_changes_nothing() {
    let mut bench = Bench::new();
    bench.write(0, 10);
    bench.write(5, 15);
    bench.swap(Work::SwapOut, &[(0, 0, 1)]);
    bench.set_faults(SimFaults { refused_permille: 1000, ..SimFaults::default() });
    assert_eq!(bench.swap(Work::SwapOut, &[(5, 0, 2)]), REFUSED);
    assert_eq!(bench.swap(Work::SwapIn, &[(5, 0, 1)]), REFUSED);
    assert_eq!(bench.read(5), Some(15));
    bench.set_faults(SimFaults::default());
    bench.swap(Work::SwapIn, &[(5, 0, 1)]);
    assert_eq!(bench.read(5), Some(10));
}

/// Returns the token after a prompt whose first KV block was swapped out and in again, if `away`.
fn token_after(away: bool, faults: SimFaults) -> u32 {
    let mut bench = Bench::new();
    bench.step(0, (0..16).collect(), &[(0, [0, 1])]);
    if !away {
        return bench.step(16, vec![7], &[(1, [7, 8])]);
    }
    bench.swap(Work::SwapOut, &[(0, 1, 1), (1, 0, 2)]);
    bench.remap(vec![MapOp::Unmap(Address::Kv(KvChunkId(0)), ChunkId(3))]);
    bench.run(Work::Release(vec![ChunkId(3)]));
    bench.set_faults(faults);
    bench.swap(Work::SwapIn, &[(6, 0, 2), (5, 1, 1)]);
    bench.step(16, vec![7], &[(0, [5, 6]), (1, [7, 8])])
}

#[test]
fn a_token_is_the_same_when_its_past_was_on_the_host() {
    assert_eq!(token_after(true, SimFaults::default()), token_after(false, SimFaults::default()));
}

#[test]
fn another_host_blocks_contents_change_the_token() {
    let planted = SimFaults { swap_in_wrong_layer_block: true, ..SimFaults::default() };
    assert_ne!(token_after(true, planted), token_after(false, SimFaults::default()));
}
