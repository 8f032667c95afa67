//! Serves requests with a scheduler that is not ours: first come, first served, and the youngest request is recomputed
//! when memory is short. It shows every call that a scheduler must make, in its order.
//!
//! Run with `cargo run -p sluice-policy --example external_scheduler`. The backend ends each action at once, and the
//! engine computes tokens without KV; a real one carries out the actions, and reads what the lease names.

use std::collections::{BTreeMap, VecDeque};

use sluice_policy::action::Action;
use sluice_policy::config_error::ConfigError;
use sluice_policy::event::{Completion, Outcome};
use sluice_policy::geometry::{ActivationCost, Geometry, StepShape};
use sluice_policy::ids::{LayerBlockId, Nanos, RequestId};
use sluice_policy::memory_manager::{Admission, Demand, MemoryManager, Prepared, StepNeed, StepTimes};
use sluice_policy::params::Params;

/// Requests that run together at most.
const MAX_RUNNING: usize = 8;
const LAYERS: usize = 4;
const STEP_NS: u64 = 1_000_000;

/// A request and its tokens so far.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request.
    pub id: RequestId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// The request ends with this number of tokens.
    pub max_tokens: usize,
    /// Tokens whose KV is written.
    computed: usize,
}

impl Request {
    /// Returns a request for `generated` tokens after the prompt.
    pub fn new(id: u64, prompt: Vec<u32>, generated: usize) -> Request {
        let max_tokens = prompt.len() + generated;
        Request { id: RequestId(id), tokens: prompt, max_tokens, computed: 0 }
    }
}

/// A scheduler, and the memory manager that it asks.
#[derive(Debug)]
pub struct Scheduler {
    manager: MemoryManager,
    now: Nanos,
    waiting: VecDeque<Request>,
    /// The requests of the next step, the oldest first. The last `admitted` have no KV yet.
    running: Vec<Request>,
    admitted: usize,
    /// Block tables: the device blocks of each KV block, one for each layer.
    tables: BTreeMap<(RequestId, u32), Vec<LayerBlockId>>,
    /// Requests that have all their tokens.
    pub finished: Vec<Request>,
    /// Requests that were recomputed for others.
    pub preemptions: u32,
    /// Steps after which the engine is lost, to show what follows.
    pub loses_engine_every: u64,
    steps: u64,
}

impl Scheduler {
    /// Loads a tenant: every action that the manager orders must end before a step.
    pub fn new(params: Params, geometry: Geometry) -> Result<Scheduler, ConfigError> {
        let mut scheduler = Scheduler {
            manager: MemoryManager::new(params, geometry)?,
            now: Nanos(0),
            waiting: VecDeque::new(),
            running: Vec::new(),
            admitted: 0,
            tables: BTreeMap::new(),
            finished: Vec::new(),
            preemptions: 0,
            loses_engine_every: u64::MAX,
            steps: 0,
        };
        scheduler.call(MemoryManager::start);
        assert!(scheduler.manager.status().is_loaded(), "every action has ended");
        Ok(scheduler)
    }

    /// Queues a request.
    pub fn submit(&mut self, request: Request) {
        self.waiting.push_back(request);
    }

    /// Runs until each request has its tokens.
    pub fn run(&mut self) {
        while !(self.waiting.is_empty() && self.running.is_empty()) {
            self.boundary();
            self.admit();
            if self.find_memory() {
                self.run_step();
            }
        }
    }

    /// Between two steps: memory may move. A step begins only when nothing is under way.
    fn boundary(&mut self) {
        self.manager.set_demand(Demand { has_requests: true, is_active: true });
        self.call(MemoryManager::boundary);
    }

    /// Moves waiting requests to the next step. Their KV opens when the step has its memory.
    fn admit(&mut self) {
        while self.running.len() < MAX_RUNNING {
            let Some(request) = self.waiting.pop_front() else { return };
            self.running.push(request);
            self.admitted += 1;
        }
    }

    /// Asks for the step's memory until it is there. Returns false if the step must wait for the next boundary.
    fn find_memory(&mut self) -> bool {
        loop {
            if self.running.is_empty() || self.manager.status().is_blocked() {
                return false;
            }
            let need = self.need();
            match self.call(|manager, now, out| manager.prepare(now, &need, out)) {
                Prepared::Ready => {
                    self.admitted = 0;
                    return true;
                }
                // The actions have ended by now: ask again.
                Prepared::Wait => {}
                Prepared::Loading | Prepared::Short { .. } => self.preempt_youngest(),
            }
        }
    }

    /// What the next step needs: its admissions with their cached prefixes, and new KV blocks.
    fn need(&mut self) -> StepNeed {
        let mut need = StepNeed { without_offloaded_prefills: true, ..StepNeed::default() };
        let first_admitted = self.running.len() - self.admitted;
        for (at, request) in self.running.iter_mut().enumerate() {
            let held = if at < first_admitted {
                self.manager.kv_of(request.id).kv_blocks()
            } else {
                let prefix = self.manager.cached_prefix(0, &request.tokens);
                request.computed = prefix.tokens() as usize;
                let held = prefix.kv_block_count();
                need.admit.push(Admission::new(request.id, prefix));
                held
            };
            let missing = Geometry::kv_blocks_for(request.tokens.len() as u32).saturating_sub(held);
            if missing > 0 {
                need.kv_blocks.push((request.id, missing));
            }
        }
        need.shape = self.shape();
        need
    }

    fn shape(&self) -> StepShape {
        let tokens = self.running.iter().map(|one| one.tokens.len() - one.computed).sum::<usize>() as u32;
        let sequences = self.running.len() as u32;
        StepShape { tokens, sequences, logit_rows: sequences }
    }

    /// The youngest request waits and is recomputed. The oldest fits alone: its KV is guaranteed.
    fn preempt_youngest(&mut self) {
        let Some(mut request) = self.running.pop() else { return };
        match self.admitted.checked_sub(1) {
            Some(left) => self.admitted = left,
            None => {
                self.manager.close(request.id);
                self.preemptions += 1;
            }
        }
        request.computed = 0;
        self.waiting.push_front(request);
    }

    /// Computes one step: the engine may use what the lease names until the step finishes.
    fn run_step(&mut self) {
        let shape = self.shape();
        let mut lease = self.call(MemoryManager::begin);
        let table_changes = std::mem::take(&mut lease.table_changes);
        self.steps += 1;
        if self.steps.is_multiple_of(self.loses_engine_every) {
            // A new engine repeats the step under a new lease. `abandon_step` would give the step up.
            self.call(MemoryManager::engine_lost);
            lease = self.call(MemoryManager::begin);
        }
        let activations = self.manager.geometry().activation.bytes(shape);
        assert!(lease.activation_limit_bytes >= activations, "activations of the step are backed");
        for change in table_changes {
            self.tables.insert((change.request, change.kv_block), change.layer_blocks);
        }
        self.now = Nanos(self.now.0 + STEP_NS);
        // Requests whose KV was lost in a failed copy are recomputed; this step's results for them do not count.
        for lost in self.manager.take_lost_requests() {
            self.manager.close(lost);
            if let Some(at) = self.running.iter().position(|request| request.id == lost) {
                self.waiting.push_front(Request { computed: 0, ..self.running.remove(at) });
            }
        }
        for request in &mut self.running {
            let kv_blocks = 0..Geometry::kv_blocks_for(request.tokens.len() as u32);
            assert!(
                kv_blocks.into_iter().all(|at| self.tables.contains_key(&(request.id, at))),
                "KV has blocks"
            );
            self.manager.on_tokens_computed(request.id, &request.tokens[request.computed..]);
            request.computed = request.tokens.len();
            request.tokens.push(next_token(&request.tokens));
        }
        let layer_ns = vec![STEP_NS / LAYERS as u64; LAYERS];
        let (stall_ns, kv_stall_ns) = (vec![0; LAYERS], vec![0; LAYERS]);
        let decode_only = shape.tokens == shape.sequences;
        let times = StepTimes { shape, decode_only, layer_ns, stall_ns, kv_stall_ns, total_ns: STEP_NS };
        self.manager.finish(&times);
        for request in self.running.extract_if(.., |request| request.tokens.len() == request.max_tokens) {
            self.manager.close(request.id);
            self.finished.push(request);
        }
    }

    /// Calls the manager, and reports the end of each action that it orders.
    fn call<T>(&mut self, call: impl FnOnce(&mut MemoryManager, Nanos, &mut Vec<Action>) -> T) -> T {
        let mut actions = Vec::new();
        let answer = call(&mut self.manager, self.now, &mut actions);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                let outcome = Outcome::Done { bytes: 64 << 10, duration_ns: 10_000 };
                self.manager.complete(self.now, &Completion { id: action.id, outcome }, &mut actions);
            }
        }
        self.manager.check();
        answer
    }
}

/// The model: the next token depends on all tokens before it.
pub fn next_token(tokens: &[u32]) -> u32 {
    tokens.iter().fold(7, |hash: u32, token| hash.wrapping_mul(31).wrapping_add(*token)) % 1000
}

/// A tenant whose KV holds about three of eight long requests.
pub fn small_tenant() -> (Params, Geometry) {
    let geometry = Geometry {
        chunk_bytes: 64 << 10,
        capacity_chunks: 40,
        global_bytes: 64 << 10,
        slab_bytes: vec![256 << 10; LAYERS],
        layer_block_bytes: 8 << 10,
        activation: ActivationCost { fixed_bytes: 64 << 10, ..ActivationCost::default() },
        staging_chunks: 1,
    };
    let params = Params { max_model_tokens: 128, guaranteed_kv_bytes: 512 << 10, ..Params::default() };
    (params, geometry)
}

fn main() -> Result<(), ConfigError> {
    let (params, geometry) = small_tenant();
    let mut scheduler = Scheduler::new(params, geometry)?;
    scheduler.loses_engine_every = 50;
    (0..8).for_each(|id| scheduler.submit(Request::new(id, vec![id as u32; 20], 80)));
    scheduler.run();
    let (finished, preemptions, steps) = (scheduler.finished.len(), scheduler.preemptions, scheduler.steps);
    println!("{finished} requests finished in {steps} steps; {preemptions} preemptions");
    Ok(())
}
