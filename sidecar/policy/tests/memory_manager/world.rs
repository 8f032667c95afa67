//! A memory manager with a test device and a small scheduler. After every event the memory manager checks itself and
//! [`audit`] checks it against the device.

use std::collections::{BTreeMap, VecDeque};

use sluice_common::random::Rng;
use sluice_policy::action::Action;
use sluice_policy::event::Completion;
use sluice_policy::geometry::{Geometry, StepShape};
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos, RequestId};
use sluice_policy::loan_negotiator::{LoanNegotiator, PeerCommand};
use sluice_policy::memory_manager::{
    Admission, Demand, MemoryManager, Prepared, StepLease, StepNeed, SuspendReason,
};
use sluice_policy::params::Params;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanRequest};
use sluice_policy::reclaim::PolicyName;

use super::device::{Device, Faults, chance};

mod admission;
mod audit;
mod sleep;
mod step;
mod trading;

use admission::Admitted;
pub use audit::audit;

#[derive(Clone, Debug)]
pub struct Request {
    pub id: RequestId,
    pub salt: u64,
    pub tokens: Vec<u32>,
    pub limit: usize,
    pub computed: usize,
    /// Whether its KV was kept when it was suspended.
    pub kept: bool,
}

#[derive(Debug)]
struct Running {
    lease: BTreeMap<LayerId, Generation>,
    kv_lease: BTreeMap<LayerId, Generation>,
    layer: u16,
    /// Request and tokens.
    parts: Vec<(RequestId, usize)>,
    shape: StepShape,
}

#[derive(Debug)]
pub struct World {
    pub manager: MemoryManager,
    pub device: Device,
    pub waiting: VecDeque<Request>,
    /// The requests of the next step, those that it admits last.
    pub running: Vec<Request>,
    admitted: Vec<Admitted>,
    pub finished: BTreeMap<RequestId, Vec<u32>>,
    tables: BTreeMap<RequestId, Vec<Vec<LayerBlockId>>>,
    step: Option<Running>,
    lost: Option<Running>,
    rng: Rng,
    pub kill_permille: u32,
    pub max_batch: usize,
    pub steps: u64,
    pub preemptions: u32,
    pub pauses: u32,
    pub layer_ns: u64,
    pub most_alpha: u16,
    /// Modifies actions on their way to the device.
    pub corrupt_action: Option<fn(&mut Action)>,
    /// Whether steps may run: the tenant holds the time slice.
    pub active: bool,
    pub now: Nanos,
    /// Trades with peers.
    pub negotiator: Option<LoanNegotiator>,
    /// Its messages to peers.
    pub commands: Vec<PeerCommand>,
    /// Probability that the end of a transfer is reported late, permille, and the pending one.
    pub late_permille: u32,
    late: Option<Completion>,
    /// Whether the negotiator knows the result of every transfer.
    pub sent_events: bool,
    /// Probability that the tenant is put to sleep, or woken, at a boundary, permille.
    pub sleep_permille: u32,
    /// Probability that the policy changes at a boundary, permille.
    pub switch_permille: u32,
    /// Probability that an admitted prompt is offloaded, permille, and the number that were.
    pub prefill_offload_permille: u32,
    pub prefill_offloads: u32,
    /// Number of requests whose KV was loaded in parallel with steps.
    pub admitted_count: u32,
    /// The pending plan request.
    planning: Option<PlanRequest>,
    /// Whether every plan request fails.
    pub no_plans: bool,
    /// Number of policy changes.
    pub switches: u32,
    /// Requests recomputed because their KV was lost or did not fit into the host tier.
    pub dropped: u32,
}

impl World {
    pub fn new(params: Params, geometry: Geometry, seed: u64, faults: Faults) -> World {
        let manager = MemoryManager::new(params, geometry.clone()).expect("a tenant that fits");
        World {
            manager,
            device: Device::new(geometry, seed, faults),
            waiting: VecDeque::new(),
            running: Vec::new(),
            admitted: Vec::new(),
            finished: BTreeMap::new(),
            tables: BTreeMap::new(),
            step: None,
            lost: None,
            rng: Rng::new(seed ^ 0x5eed),
            kill_permille: 0,
            max_batch: 4,
            steps: 0,
            preemptions: 0,
            pauses: 0,
            layer_ns: 1_000_000,
            most_alpha: 0,
            corrupt_action: None,
            active: true,
            now: Nanos(0),
            negotiator: None,
            commands: Vec::new(),
            late_permille: 0,
            late: None,
            sent_events: true,
            sleep_permille: 0,
            switch_permille: 0,
            prefill_offload_permille: 0,
            prefill_offloads: 0,
            admitted_count: 0,
            planning: None,
            no_plans: false,
            switches: 0,
            dropped: 0,
        }
    }

    /// Starts and loads the tenant. Returns false if the backend failed permanently.
    pub fn load(&mut self) -> bool {
        let now = self.now;
        self.send_event(|manager, out| manager.start(now, out));
        for _ in 0..100_000 {
            if self.manager.status().is_loaded() {
                return true;
            }
            if self.device.idle() {
                return false;
            }
            self.poll();
        }
        panic!("loading does not end");
    }

    pub fn submit(&mut self, id: u64, salt: u64, tokens: Vec<u32>, more: usize) {
        let limit = tokens.len() + more;
        self.waiting.push_back(Request { id: RequestId(id), salt, tokens, limit, computed: 0, kept: false });
    }

    /// Runs until every request has finished.
    pub fn run(&mut self) {
        for _ in 0..2_000_000 {
            if self.waiting.is_empty() && self.running.is_empty() {
                return;
            }
            self.tick();
            assert_eq!(self.manager.status().failed(), None, "the backend has not failed for good");
        }
        panic!("no progress: {} waiting, {} running", self.waiting.len(), self.running.len());
    }

    /// Runs boundaries without load until nothing changes or `limit` is reached.
    pub fn run_idle(&mut self, limit: u32) {
        let now = self.now;
        for _ in 0..limit {
            self.drain();
            if self.manager.is_idle() {
                return;
            }
            self.send_event(|manager, out| manager.boundary(now, out));
            self.finish_sleep();
        }
    }

    /// Completes all actions in progress.
    pub fn drain(&mut self) {
        while !self.idle() {
            self.poll();
        }
    }

    /// Runs one random event.
    pub fn tick(&mut self) {
        if !self.manager.status().is_loaded() {
            return self.continue_load();
        }
        let device_first = self.rng.chance(500);
        if device_first && self.poll() {
            return;
        }
        if self.step.is_some() && chance(&mut self.rng, self.kill_permille) {
            self.kill();
        } else if self.step.is_some() {
            self.run_layer();
        } else {
            self.schedule();
        }
    }

    /// Calls the memory manager and submits its actions.
    pub fn send_event<T>(&mut self, call: impl FnOnce(&mut MemoryManager, &mut Vec<Action>) -> T) -> T {
        self.drive(|manager, _, out| call(manager, out))
    }

    /// Whether a step runs or waits for its replay.
    pub fn in_step(&self) -> bool {
        self.step.is_some() || self.lost.is_some()
    }

    /// Answers a pending plan request, possibly with a delay.
    fn answer_plan(&mut self) {
        self.planning = self.manager.take_plan_request().or(self.planning.take());
        if let Some(request) =
            self.planning.take_if(|request| request.id % 2 == 0 || self.steps.is_multiple_of(4))
        {
            let none = PlanAnswer { id: request.id, result: None };
            self.manager.planned(if self.no_plans { none } else { request.solve() });
        }
    }

    fn kill(&mut self) {
        let now = self.now;
        self.lost = self.step.take();
        self.device.forget_readers();
        self.send_event(|manager, out| manager.engine_lost(now, out));
    }

    /// Passes on what the tenant has to do.
    pub fn set_demand(&mut self) {
        self.manager.set_demand(Demand { has_requests: self.busy(), is_active: self.active });
    }

    fn schedule(&mut self) {
        if self.manager.status().is_blocked() || !self.manager.status().is_loaded() {
            return;
        }
        if let Some(lost) = self.lost.take() {
            self.start(lost.parts, lost.shape);
            return;
        }
        if self.negotiator.is_some() {
            self.set_demand();
        }
        self.maybe_sleep();
        self.switch_policy();
        self.answer_plan();
        let now = self.now;
        self.send_event(|manager, out| manager.boundary(now, out));
        self.negotiate();
        self.finish_sleep();
        if !self.active || self.manager.status().lacks_weights() {
            return;
        }
        self.suspend_offloaded();
        self.admit();
        if !self.launch() {
            self.requeue_all();
        }
    }

    /// Begins a step if memory is available for one.
    fn launch(&mut self) -> bool {
        let mut tried = false;
        while !self.manager.status().is_blocked() && !self.running.is_empty() {
            let now = self.now;
            let admit = self.admissions();
            let whole = self.plan_whole(&admit).filter(|_| !tried);
            tried |= whole.is_some();
            let usual = whole.is_none();
            let (parts, need) = whole.unwrap_or_else(|| self.plan(&admit));
            match self.send_event(|manager, out| manager.prepare(now, &need, out)) {
                Prepared::Ready => {
                    self.admitted.clear();
                    self.start(parts, need.shape);
                    return true;
                }
                Prepared::Wait if self.denied() => {}
                Prepared::Wait => return false,
                Prepared::Loading => self.requeue_loading(),
                Prepared::Short { activation: true, .. } if !usual => {}
                Prepared::Short { .. } => self.preempt(),
            }
        }
        false
    }

    fn switch_policy(&mut self) {
        if self.switch_permille > 0 && chance(&mut self.rng, self.switch_permille) {
            let policy = PolicyName::ALL[self.rng.below(PolicyName::ALL.len() as u64) as usize];
            self.switches += u32::from(self.manager.set_policy(policy).is_ok());
        }
    }

    fn plan(&self, admit: &[Admission]) -> (Vec<(RequestId, usize)>, StepNeed) {
        self.plan_within(admit, self.manager.params().max_step.tokens as usize, 24)
    }

    /// Returns a step of whole prompts if weights are loading and it fits.
    fn plan_whole(&self, admit: &[Admission]) -> Option<(Vec<(RequestId, usize)>, StepNeed)> {
        let all = self.plan_within(admit, usize::MAX, usize::MAX).1;
        let tokens = self.manager.whole_prompt_tokens(&all) as usize;
        (tokens > self.manager.params().max_step.tokens as usize)
            .then(|| self.plan_within(admit, tokens, usize::MAX))
    }

    fn plan_within(
        &self,
        admit: &[Admission],
        mut budget: usize,
        longest: usize,
    ) -> (Vec<(RequestId, usize)>, StepNeed) {
        let mut parts = Vec::new();
        for request in &self.running {
            let pending = request.tokens.len() - request.computed;
            let mut tokens = pending.min(longest).min(budget);
            if 0 < tokens && tokens < pending && self.spills_prefill(request.id) {
                tokens = (tokens - tokens % 16).max(16).min(pending);
            }
            budget = budget.saturating_sub(tokens);
            if tokens > 0 {
                parts.push((request.id, tokens));
            }
        }
        let kv_blocks = parts.iter().map(|(id, tokens)| {
            let computed = self.request(*id).computed;
            let wanted = (computed + tokens).div_ceil(16) as u32;
            (*id, wanted.saturating_sub(self.held_kv_blocks(*id)))
        });
        let tokens = parts.iter().map(|(_, tokens)| *tokens as u32).sum();
        let sequences = parts.len() as u32;
        let shape = StepShape { tokens, sequences, logit_rows: sequences };
        let kv_blocks = kv_blocks.filter(|(_, count)| *count > 0).collect();
        (parts.clone(), StepNeed { admit: admit.to_vec(), kv_blocks, shape, ..StepNeed::default() })
    }

    /// Requeues the youngest request. The oldest always fits alone.
    fn preempt(&mut self) {
        if self.running.len() == 1 && self.drop_suspended_kv(|manager, id| manager.kv_of(id).on_device()) {
            return;
        }
        assert!(self.running.len() > 1, "the oldest request always fits alone");
        let last = self.running.last().map(|request| request.id);
        if last.is_some_and(|id| self.requeue_admitted(id)) {
            self.max_batch = self.running.len();
            return;
        }
        let mut request = self.running.pop().expect("more than one");
        if self.manager.offload_view().can_pause_help() {
            self.manager.suspend(request.id, SuspendReason::Pause);
            self.manager.check();
            self.pauses += 1;
            self.tables.remove(&request.id);
            request.kept = true;
            self.waiting.push_front(request);
            self.max_batch = self.running.len();
            return;
        }
        self.preemptions += 1;
        request.computed = 0;
        self.manager.close(request.id);
        self.manager.check();
        self.tables.remove(&request.id);
        self.waiting.push_front(request);
        self.max_batch = self.running.len();
    }

    fn request(&self, id: RequestId) -> &Request {
        self.running.iter().find(|r| r.id == id).expect("a running request")
    }

    fn start(&mut self, parts: Vec<(RequestId, usize)>, shape: StepShape) {
        let now = self.now;
        let StepLease { generations, kv_generations, activation_limit_bytes, table_changes } =
            self.send_event(|manager, out| manager.begin(now, out));
        for change in table_changes {
            let Some(table) = self.tables.get_mut(&change.request) else {
                assert!(self.waiting.iter().any(|r| r.id == change.request), "changes are of open requests");
                continue;
            };
            table.resize_with(table.len().max(change.kv_block as usize + 1), Vec::new);
            table[change.kv_block as usize] = change.layer_blocks;
        }
        assert!(generations.is_sorted() && kv_generations.is_sorted(), "layers of a lease ascend");
        let needed = self.device.geometry.activation.bytes(shape);
        assert!(activation_limit_bytes >= needed, "activations of a step are backed");
        self.device.check_activations(activation_limit_bytes);
        let held = u64::from(self.manager.figures().activation_chunks());
        assert_eq!(
            activation_limit_bytes,
            held * self.device.geometry.chunk_bytes,
            "as far as the lease says"
        );
        let (lease, kv_lease) = (generations.into_iter().collect(), kv_generations.into_iter().collect());
        self.step = Some(Running { lease, kv_lease, layer: 0, parts, shape });
    }
}
