//! Tests over a memory that ends each action at once, and a model of the engine that checks what it is given.

use std::collections::{BTreeMap, BTreeSet};

use sluice_common::random::Rng;
use sluice_policy::action::{Action, Address, MapOp, Work};
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{ChunkId, KvChunkId, LayerBlockId, LayerId};
use sluice_policy::memory_manager::{SleepState, StepTimes};
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::time_slice::Quantum;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::block_budget::{EngineOrder, EngineReport, ExtentId, ExtentMemory, Resume};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};

use super::*;
use crate::event::Sleep;

const LAYERS: usize = 4;
const CHUNK: u64 = 64 << 10;
/// Weights of each layer and of the rest, chunks.
const LAYER_CHUNKS: u64 = 4;
/// The whole GPU, chunks. Weights take 17; an extent takes 4.
const CAPACITY: u32 = 17 + 4 * 8;
const KV: EngineKv =
    EngineKv { extents: 24, blocks_per_extent: 2, chunks_per_layer: 1, guaranteed_extents: 3 };
const PASS_NS: u64 = 1_000_000;

/// What the engine knows: the extents that it has and uses, and what is behind them.
#[derive(Debug, Default)]
struct Engine {
    granted: BTreeSet<ExtentId>,
    used: BTreeSet<ExtentId>,
    /// KV chunks of each extent and part, by layer.
    memory: BTreeMap<(ExtentId, u32), Vec<LayerBlockId>>,
    demand: EngineDemand,
    runs: bool,
    /// A pass runs: an order to hold is obeyed when it has ended.
    in_pass: bool,
    is_held_after: bool,
    is_aborted: bool,
    leased_layers: Vec<LayerId>,
    pass: u64,
    preempted: u64,
}

struct Tenant {
    scheduler: BudgetScheduler,
    engine: Engine,
    /// The chunk behind each KV chunk, by the transactions.
    kv_chunks: BTreeMap<KvChunkId, ChunkId>,
    now: Nanos,
    orders: Vec<EngineOrder>,
    slices: Vec<SliceCommand>,
}

impl Tenant {
    fn new(params: Params) -> Tenant {
        Tenant::sharing(params, TimeSharing::Exclusive)
    }

    fn sharing(params: Params, sharing: TimeSharing) -> Tenant {
        let geometry = Geometry {
            chunk_bytes: CHUNK,
            capacity_chunks: CAPACITY,
            global_bytes: CHUNK,
            slab_bytes: vec![LAYER_CHUNKS * CHUNK; LAYERS],
            layer_block_bytes: CHUNK,
            activation: ActivationCost::default(),
            staging_chunks: 0,
        };
        let guaranteed_kv_bytes = u64::from(KV.guaranteed_extents) * LAYERS as u64 * CHUNK;
        let params = Params { max_model_tokens: 16, guaranteed_kv_bytes, ..params };
        let manager = MemoryManager::new(params, geometry).expect("a tenant that fits");
        let mut scheduler = BudgetScheduler::new(sharing, None, manager);
        scheduler.start(Nanos(0));
        let (kv_chunks, now, engine) = (BTreeMap::new(), Nanos(0), Engine::default());
        let (orders, slices) = (Vec::new(), Vec::new());
        let mut tenant = Tenant { scheduler, engine, kv_chunks, now, orders, slices };
        tenant.settle();
        tenant.attach();
        tenant
    }

    /// The engine's processes exit.
    fn lose_engine(&mut self) {
        (self.engine.runs, self.engine.in_pass) = (false, false);
        self.report(EngineReport::Lost);
    }

    fn attach(&mut self) {
        self.engine = Engine { pass: self.engine.pass, ..Engine::default() };
        self.report(EngineReport::Started);
        self.report(EngineReport::Attached(KV));
    }

    fn report(&mut self, report: EngineReport) {
        self.handle(BudgetEvent::Engine(report));
    }

    fn handle(&mut self, event: BudgetEvent) {
        self.scheduler.handle(self.now, event);
        self.settle();
    }

    /// Lets time pass.
    fn tick(&mut self) {
        self.now = Nanos(self.now.0 + HOLD_INTERVAL_NS);
        self.handle(BudgetEvent::Tick);
    }

    /// Carries commands out, and answers them, until none is left.
    fn settle(&mut self) {
        loop {
            let commands = self.scheduler.take_commands();
            if commands.is_empty() {
                return self.check();
            }
            for command in commands {
                match command {
                    BudgetCommand::Port(Command::Memory(action)) => self.complete(&action),
                    BudgetCommand::Port(Command::Slice(command)) => self.slices.push(command),
                    BudgetCommand::Port(other) => panic!("these tests have no peers: {other:?}"),
                    BudgetCommand::Engine(order) => {
                        self.orders.push(order.clone());
                        self.obey(order);
                    }
                }
            }
        }
    }

    fn complete(&mut self, action: &Action) {
        if let Work::Transaction(transaction) = &action.work {
            assert!(!self.engine.runs, "no mapping changes while passes may run");
            for op in &transaction.ops {
                match *op {
                    MapOp::Map(Address::Kv(at), chunk) => {
                        assert_eq!(self.kv_chunks.insert(at, chunk), None);
                    }
                    MapOp::Unmap(Address::Kv(at), chunk) => {
                        assert_eq!(self.kv_chunks.remove(&at), Some(chunk));
                    }
                    _ => {}
                }
            }
        }
        let outcome = Outcome::Done { bytes: CHUNK, duration_ns: 1_000 };
        self.scheduler.handle(self.now, BudgetEvent::Memory(Completion { id: action.id, outcome }));
    }

    fn obey(&mut self, order: EngineOrder) {
        match order {
            EngineOrder::Hold if self.engine.in_pass => self.engine.is_held_after = true,
            EngineOrder::Hold => self.hold(),
            EngineOrder::Retire { extents } => {
                let report = self.engine.retire(extents);
                self.scheduler.handle(self.now, BudgetEvent::Engine(report));
            }
            EngineOrder::Resume(resume) => self.engine.resume(resume),
            EngineOrder::Abort => self.engine.is_aborted = true,
            EngineOrder::Lease { pass, generations } => {
                assert_eq!(pass, self.engine.pass);
                let leased = generations.iter().all(|(layer, _)| self.engine.leased_layers.contains(layer));
                assert!(leased, "a pass waits only for layers that it was announced");
            }
        }
    }

    fn hold(&mut self) {
        self.engine.runs = false;
        let idle = self.engine.granted.difference(&self.engine.used).copied().collect();
        let demand = self.engine.demand;
        self.scheduler.handle(self.now, BudgetEvent::Engine(EngineReport::Held { idle, demand }));
    }

    fn begin_pass(&mut self) {
        assert!(self.engine.runs, "the engine may run");
        self.engine.pass += 1;
        self.engine.in_pass = true;
        self.report(EngineReport::PassBegun { pass: self.engine.pass });
    }

    /// Runs a pass.
    fn pass(&mut self) {
        self.begin_pass();
        self.end_pass();
    }

    fn end_pass(&mut self) {
        self.now = Nanos(self.now.0 + PASS_NS);
        let shape = StepShape { tokens: 1, sequences: 1, logit_rows: 1 };
        let (stall_ns, kv_stall_ns) = (vec![0; LAYERS], vec![0; LAYERS]);
        let layer_ns = vec![PASS_NS / LAYERS as u64; LAYERS];
        let times =
            StepTimes { shape, decode_only: true, layer_ns, stall_ns, kv_stall_ns, total_ns: PASS_NS };
        self.engine.in_pass = false;
        self.report(EngineReport::PassEnded(times));
        if std::mem::take(&mut self.engine.is_held_after) {
            self.hold();
            self.settle();
        }
    }

    /// The requests of the engine use these extents, and lack `wanted_blocks`.
    fn demand(&mut self, used: impl IntoIterator<Item = u32>, wanted_blocks: u32) {
        // While it is held, requests can end, but none can take a block.
        let may_use = if self.engine.runs { &self.engine.granted } else { &self.engine.used };
        self.engine.used = used.into_iter().map(ExtentId).filter(|one| may_use.contains(one)).collect();
        self.engine.demand =
            EngineDemand { wanted_blocks, waiting: u32::from(wanted_blocks > 0), running: 1 };
        self.report(EngineReport::Demand(self.engine.demand));
    }

    fn set_share(&mut self, share_chunks: u32) {
        self.handle(BudgetEvent::Bounds(Bounds { share_chunks, remap_cap_permille: 600 }));
    }

    fn granted(&self) -> usize {
        self.engine.granted.len()
    }

    /// What the engine has agrees with what the memory manager maps.
    fn check(&mut self) {
        self.scheduler.check();
        if !self.engine.runs {
            return;
        }
        assert!(self.engine.granted.contains(&ExtentId::NULL), "the null block has memory");
        let mut seen = BTreeSet::new();
        for extent in &self.engine.granted {
            let layers = &self.engine.memory[&(*extent, 0)];
            assert_eq!(layers.len(), LAYERS, "{extent:?}");
            for block in layers {
                assert!(seen.insert(*block), "{block:?} backs two extents");
                assert!(
                    self.kv_chunks.contains_key(&KvChunkId(block.0)),
                    "{block:?} of {extent:?} has a chunk"
                );
            }
        }
        assert_eq!(self.engine.granted.len() as u32, self.scheduler.extents.granted());
    }
}

impl Engine {
    /// Gives idle extents back, then used ones, each of which costs a preemption. One request keeps its extent.
    fn retire(&mut self, extents: u32) -> EngineReport {
        let idle: Vec<_> = self.granted.difference(&self.used).copied().collect();
        let order = idle.into_iter().chain(self.used.iter().copied().skip(1).collect::<Vec<_>>());
        let given: Vec<_> = order.filter(|one| *one != ExtentId::NULL).take(extents as usize).collect();
        let preempted = given.iter().filter(|one| self.used.remove(one)).count() as u32;
        self.preempted += u64::from(preempted);
        given.iter().for_each(|one| self.lose(*one));
        EngineReport::Retired { extents: given, preempted }
    }

    fn lose(&mut self, extent: ExtentId) {
        assert!(self.granted.remove(&extent), "{extent:?} was granted");
        self.memory.remove(&(extent, 0));
    }

    fn resume(&mut self, resume: Resume) {
        assert!(!self.runs, "it was held");
        for extent in resume.withdrawn {
            assert!(!self.used.contains(&extent), "{extent:?} is in use");
            self.lose(extent);
        }
        for extent in resume.granted {
            assert!(self.granted.insert(extent), "{extent:?} is granted once");
            self.demand.wanted_blocks = self.demand.wanted_blocks.saturating_sub(KV.blocks_per_extent);
        }
        for ExtentMemory { extent, part, layers } in resume.memory {
            self.memory.insert((extent, part), layers);
        }
        (self.runs, self.leased_layers) = (true, resume.leased_layers);
    }
}

fn oneiros() -> Params {
    Params { policy: PolicyName::Oneiros, link_bytes_per_second: 1 << 40, ..Params::default() }
}

#[test]
fn an_engine_that_attaches_gets_its_guaranteed_extents() {
    let tenant = Tenant::new(oneiros());
    assert_eq!(tenant.granted(), 3);
    assert_eq!(tenant.engine.leased_layers, []);
}

#[test]
fn blocks_that_requests_want_are_granted_as_whole_extents() {
    let mut tenant = Tenant::new(oneiros());
    tenant.demand(0..3, 3);
    assert_eq!(tenant.granted(), 5, "three blocks take two extents");
    tenant.demand(0..5, 0);
    assert_eq!(tenant.granted(), 5);
}

#[test]
fn layers_move_when_free_memory_is_used_up_and_each_pass_leases_them() {
    let mut tenant = Tenant::new(oneiros());
    (0..3).for_each(|_| tenant.pass());
    tenant.demand(0..3, 10);
    assert_eq!(tenant.granted(), 8, "all of the free memory");
    tenant.demand(0..8, 2);
    assert_eq!(tenant.granted(), 9, "a layer gave four chunks");
    assert_eq!(tenant.engine.leased_layers.len(), 2, "two layers share a slot");
    tenant.orders.clear();
    tenant.pass();
    let leases = tenant.orders.iter().filter_map(|order| match order {
        EngineOrder::Lease { generations, .. } => Some(generations.len()),
        _ => None,
    });
    assert_eq!(leases.collect::<Vec<_>>(), [2]);
}

#[test]
fn layers_come_back_when_extents_are_idle_again() {
    let mut tenant = Tenant::new(oneiros());
    (0..3).for_each(|_| tenant.pass());
    tenant.demand(0..3, 10);
    tenant.demand(0..8, 2);
    tenant.demand(0..9, 0);
    (0..3).for_each(|_| tenant.pass());
    tenant.demand(0..2, 0);
    let rounds = (0..200).take_while(|_| {
        tenant.pass();
        tenant.tick();
        !tenant.engine.leased_layers.is_empty()
    });
    assert!((60..80).contains(&rounds.count()), "the patience of reversion is 64 boundaries");
}

#[test]
fn recompute_moves_no_layer_and_grants_what_is_free() {
    let mut tenant = Tenant::new(Params { policy: PolicyName::Recompute, ..Params::default() });
    (0..3).for_each(|_| tenant.pass());
    tenant.demand(0..3, 30);
    assert_eq!((tenant.granted(), tenant.engine.leased_layers.len()), (8, 0));
}

#[test]
fn a_smaller_share_takes_idle_extents_first_and_then_preempts() {
    let mut tenant = Tenant::new(oneiros());
    tenant.demand(0..3, 10);
    tenant.demand(0..4, 0);
    tenant.set_share(CAPACITY - 4 * 3);
    (0..3).for_each(|_| tenant.tick());
    assert_eq!((tenant.granted(), tenant.engine.preempted), (5, 0), "three idle extents went");
    tenant.demand(0..5, 0);
    tenant.set_share(CAPACITY - 4 * 5);
    (0..3).for_each(|_| tenant.tick());
    assert!(tenant.engine.preempted > 0 || !tenant.engine.leased_layers.is_empty());
    assert!(tenant.scheduler.manager().loans().share_chunks() == CAPACITY - 4 * 5, "the share was released");
}

#[test]
fn the_extent_that_was_used_longest_ago_goes_first() {
    let mut tenant = Tenant::new(oneiros());
    tenant.demand(0..3, 6);
    tenant.demand([1, 2], 0);
    // The model of the engine names idle extents by number.
    tenant.set_share(CAPACITY - 4 * 4);
    (0..3).for_each(|_| tenant.tick());
    assert_eq!(tenant.engine.granted, [0, 1, 2, 5].map(ExtentId).into(), "the share has room for four");
}

#[test]
fn passes_run_in_time_slices_alone() {
    let quantum = Quantum::new(10 * PASS_NS, 10 * PASS_NS);
    let mut tenant = Tenant::sharing(oneiros(), TimeSharing::Temporal(quantum));
    assert_eq!(
        (tenant.granted(), tenant.engine.runs),
        (3, false),
        "it has its first extents, and no request waits"
    );
    tenant.demand(0..3, 1);
    assert!(!tenant.engine.runs && tenant.slices == [SliceCommand::Request]);
    tenant.handle(BudgetEvent::Peer(PeerPortEvent::SliceGranted { epoch: 7 }));
    assert!(tenant.engine.runs, "the slice is held");
    tenant.handle(BudgetEvent::Peer(PeerPortEvent::SliceRequested { epoch: 7 }));
    let passes = (0..20).take_while(|_| {
        tenant.pass();
        tenant.engine.runs
    });
    assert!((7..10).contains(&passes.count()), "the slice ends before its quantum does");
    assert_eq!(tenant.slices, [SliceCommand::Request, SliceCommand::Release, SliceCommand::Request]);
    tenant.handle(BudgetEvent::Peer(PeerPortEvent::SliceGranted { epoch: 8 }));
    tenant.handle(BudgetEvent::Peer(PeerPortEvent::SliceTakenOver { epoch: 8 }));
    assert!(!tenant.engine.runs, "another tenant has the slice");
    assert_eq!(tenant.granted(), 4, "its extents stay");
}

#[test]
fn idle_tenant_falls_asleep_only_when_no_pass_runs() {
    let mut tenant = Tenant::new(Params { host_kv_bytes: 64 * CHUNK, ..oneiros() });
    tenant.begin_pass();
    tenant.handle(BudgetEvent::Sleep(Sleep::Idle));
    assert!(!tenant.scheduler.manager().status().lacks_weights(), "the pass reads its weights");
    tenant.end_pass();
    (0..20).for_each(|_| tenant.tick());
    assert_eq!(tenant.scheduler.manager().status().sleep_state(), SleepState::Asleep);
}

#[test]
fn request_that_comes_before_the_hold_keeps_the_tenant_awake() {
    let mut tenant = Tenant::new(Params { host_kv_bytes: 64 * CHUNK, ..oneiros() });
    tenant.begin_pass();
    tenant.handle(BudgetEvent::Sleep(Sleep::Idle));
    tenant.demand(0..2, 0);
    tenant.end_pass();
    (0..20).for_each(|_| tenant.tick());
    assert_eq!(tenant.scheduler.manager().status().sleep_state(), SleepState::Awake);
}

#[test]
fn want_that_was_not_met_is_tried_again_though_the_engine_says_nothing() {
    let mut tenant = Tenant::new(Params { policy: PolicyName::Recompute, ..Params::default() });
    tenant.set_share(CAPACITY - 4 * 4);
    (0..3).for_each(|_| tenant.tick());
    tenant.demand(0..3, 8);
    assert_eq!(tenant.granted(), 4, "the share holds four");
    let holds = tenant.scheduler.counters().holds;
    assert!(tenant.scheduler.needs_ticks());
    tenant.set_share(CAPACITY);
    (0..3).for_each(|_| tenant.tick());
    assert_eq!(tenant.granted(), 7);
    assert!(tenant.scheduler.counters().holds <= holds + 4, "it is not held for nothing");
}

#[test]
fn tenant_that_wakes_with_less_memory_preempts() {
    let mut tenant = Tenant::new(Params { host_kv_bytes: 64 * CHUNK, ..oneiros() });
    tenant.demand(0..3, 10);
    tenant.demand(0..8, 0);
    tenant.handle(BudgetEvent::Sleep(Sleep::Ordered));
    (0..20).for_each(|_| tenant.tick());
    tenant.set_share(CAPACITY - 4 * 5);
    (0..3).for_each(|_| tenant.tick());
    tenant.handle(BudgetEvent::Sleep(Sleep::WakeUp));
    (0..60).for_each(|_| tenant.tick());
    assert!(tenant.engine.runs, "it goes on with what fits");
}

#[test]
fn engine_whose_reports_contradict_each_other_is_ended() {
    let times = StepTimes {
        shape: StepShape::default(),
        decode_only: true,
        layer_ns: vec![0; LAYERS],
        stall_ns: vec![0; LAYERS],
        kv_stall_ns: vec![0; LAYERS],
        total_ns: 0,
    };
    let held = EngineReport::Held { idle: Vec::new(), demand: EngineDemand::default() };
    let retired = EngineReport::Retired { extents: vec![ExtentId(1)], preempted: 0 };
    let reports =
        [EngineReport::PassEnded(times), held, retired, EngineReport::Started, EngineReport::Attached(KV)];
    for report in reports {
        let mut tenant = Tenant::new(oneiros());
        tenant.report(report.clone());
        assert!(tenant.engine.is_aborted, "{report:?}");
        tenant.report(EngineReport::PassBegun { pass: 1 });
        tenant.lose_engine();
        tenant.attach();
        tenant.pass();
    }
    let mut tenant = Tenant::new(oneiros());
    (0..2).for_each(|_| tenant.begin_pass());
    assert!(tenant.engine.is_aborted, "two passes at once");
}

#[test]
fn an_engine_that_is_lost_loses_its_extents_and_the_next_gets_others() {
    let mut tenant = Tenant::new(oneiros());
    tenant.demand(0..3, 4);
    tenant.pass();
    tenant.engine.runs = false;
    tenant.report(EngineReport::Lost);
    assert_eq!(tenant.scheduler.granted_blocks(), 0);
    tenant.attach();
    assert_eq!(tenant.granted(), 3);
    tenant.pass();
}

#[test]
fn a_tenant_that_sleeps_keeps_the_kv_of_its_requests_in_the_host_tier() {
    let mut tenant = Tenant::new(Params { host_kv_bytes: 64 * CHUNK, ..oneiros() });
    tenant.demand(0..3, 4);
    tenant.demand(0..4, 0);
    tenant.handle(BudgetEvent::Sleep(Sleep::Ordered));
    (0..20).for_each(|_| tenant.tick());
    assert!(!tenant.engine.runs, "no pass runs while it sleeps");
    assert_eq!(tenant.scheduler.manager().status().sleep_state(), SleepState::Asleep);
    assert_eq!(tenant.kv_chunks.len(), 0, "nothing is mapped");
    tenant.handle(BudgetEvent::Sleep(Sleep::WakeUp));
    (0..20).for_each(|_| tenant.tick());
    assert!(tenant.engine.runs);
    assert!(
        (0..4).all(|one| tenant.engine.granted.contains(&ExtentId(one))),
        "no extent in use was withdrawn"
    );
    assert_eq!(tenant.engine.preempted, 0);
}

/// What a random run does next.
fn random_event(tenant: &mut Tenant, rng: &mut Rng) {
    match rng.between(0, 11) {
        0..=3 if tenant.engine.runs => tenant.pass(),
        4..=6 => {
            let used: Vec<u32> = (0..KV.extents).filter(|_| rng.between(0, 2) > 0).collect();
            let wanted = rng.between(0, 12) as u32;
            tenant.demand(used, wanted);
        }
        7 => tenant.set_share(CAPACITY - 4 * rng.between(0, 5) as u32),
        8 if rng.between(0, 4) == 0 => {
            if tenant.engine.runs && rng.between(0, 1) == 0 {
                tenant.begin_pass();
            }
            tenant.lose_engine();
            tenant.attach();
        }
        8 => tenant.handle(BudgetEvent::Sleep(Sleep::Idle)),
        9 if rng.between(0, 3) == 0 => tenant.handle(BudgetEvent::Sleep(Sleep::Ordered)),
        10 => tenant.handle(BudgetEvent::Sleep(Sleep::WakeUp)),
        _ => tenant.tick(),
    }
}

#[test]
fn no_order_of_events_withdraws_an_extent_in_use_or_gives_a_chunk_twice() {
    let (mut most, mut moved, mut preempted) = (0, false, 0);
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let mut tenant = Tenant::new(Params { host_kv_bytes: 256 * CHUNK, ..oneiros() });
        for _ in 0..120 {
            random_event(&mut tenant, &mut rng);
            most = most.max(tenant.granted());
            moved |= !tenant.engine.leased_layers.is_empty();
            preempted += std::mem::take(&mut tenant.engine.preempted);
        }
        tenant.handle(BudgetEvent::Sleep(Sleep::WakeUp));
        tenant.set_share(CAPACITY);
        (0..40).for_each(|_| tenant.tick());
        assert!(tenant.engine.runs, "seed {seed}: the engine goes on in the end");
    }
    assert!(most > 8 && moved && preempted > 0, "{most} extents, moved {moved}, preempted {preempted}");
}
