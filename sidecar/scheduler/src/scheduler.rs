//! Implements the scheduler's state machine: events in, commands and outputs out.
//!
//! At a *step boundary*, between two steps, the scheduler retires the finished step, asks memory for the next batch and
//! starts the next step. At most one step is in flight, and no step is in flight while an address is remapped.

mod admission_hold;
mod commit;
mod event_check;
mod kept_plan;
mod limits;
mod peers;
mod plan;
mod requests;
mod retire;
mod running;
mod schedule;
mod serving;
mod sleep;
mod submit;
#[cfg(test)]
mod test_tenant;

use std::hash::Hash;

use sluice_common::hash::fnv1a;
use sluice_policy::action::Action;
use sluice_policy::digest::Digest;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::LoanNegotiator;
use sluice_policy::memory_manager::{MemoryManager, SleepState};
use sluice_policy::params::Bounds;
use sluice_policy::placement_planner::pause::Pauses;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanResult};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::compute::{ComputeEvent, EngineHello, Step, TableUpdate};

use crate::batch::Batch;
use crate::config::Config;
use crate::event::{Command, Event, Finish, RejectReason, Request, SchedulerOutput, Sleep};
use crate::peer_loans::PeerLoans;
use crate::sequence::Sequence;
use crate::snapshot::{Counters, Snapshot};
use crate::step_plan::KeptPlan;
use crate::time_slice::TimeSlice;
pub use limits::CONSTANTS;
use requests::Requests;

/// Engine losses during one step before its requests fail, so that a step that crashes every engine ends.
const REPLAYS_MAX: u32 = 16;

/// A submitted step without an answer.
#[derive(Debug)]
struct InFlight {
    step: Step,
    batch: Batch,
    submitted: Nanos,
    /// Whether the engine exited during the step or skipped it. The step is replayed, or undone, when a step can run
    /// again.
    lost: bool,
}

/// The scheduler without its backend.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    manager: MemoryManager,
    requests: Requests,
    in_flight: Option<InFlight>,
    /// Consecutive engine losses during a step.
    engine_crashes: u32,
    /// Table updates of an undone step. The engine may not have applied them, so the next step repeats them.
    unsent_table_updates: Vec<TableUpdate>,
    engine: Option<EngineHello>,
    next_step: u64,
    /// Consecutive boundaries at which the oldest request alone did not fit.
    head_starved: u32,
    /// The plan that waits for memory.
    kept: Option<KeptPlan>,
    /// The order to sleep in force until an explicit wake-up.
    sleep_requested: Option<Sleep>,
    counters: Counters,
    slice: TimeSlice,
    loans: PeerLoans,
    commands: Vec<Command>,
    outputs: Vec<SchedulerOutput>,
    actions: Vec<Action>,
}

impl Scheduler {
    /// Returns a scheduler without work. [`Scheduler::start`] loads the tenant.
    pub fn new(config: Config, manager: MemoryManager) -> Self {
        let requests = Requests::new(&config, manager.params().pause_bound_ns);
        let slice = TimeSlice::new(config.sharing);
        let mut manager = manager;
        let loans = PeerLoans::new(config.membership.clone(), &mut manager);
        Scheduler {
            config,
            manager,
            requests,
            in_flight: None,
            engine_crashes: 0,
            unsent_table_updates: Vec::new(),
            engine: None,
            next_step: 0,
            head_starved: 0,
            kept: None,
            sleep_requested: None,
            counters: Counters::default(),
            slice,
            loans,
            commands: Vec::new(),
            outputs: Vec::new(),
            actions: Vec::new(),
        }
    }

    /// Starts to load the tenant's memory.
    pub fn start(&mut self, now: Nanos) {
        self.manager.start(now, &mut self.actions);
        self.flush();
    }

    /// Handles one event. `now` never decreases.
    pub fn handle(&mut self, now: Nanos, event: Event) {
        self.end_kept_plan(&event);
        match event {
            Event::Submit(request) => self.submit(now, request),
            Event::Cancel(request) => self.cancel(request),
            Event::Memory(completion) => self.manager.complete(now, &completion, &mut self.actions),
            Event::Compute(event) => self.compute(now, event),
            Event::Peer(event) => self.on_peer_event(now, event),
            Event::Sleep(order) => self.sleep(order),
            Event::Policy(policy) => self.set_policy(policy),
            Event::Bounds(bounds) => self.set_bounds(bounds),
            Event::Plan(answer) => self.planned(answer),
            Event::Tick => self.claim_floor(now),
        }
        self.flush();
        if self.in_flight.is_none() {
            self.requeue_lost();
        }
        self.release_idle_slice(now);
        match &self.in_flight {
            None => self.schedule(now),
            Some(step) if step.lost => self.resume(now),
            Some(_) => {}
        }
        self.flush();
        self.requests.pauses.on_sleep(self.manager.status().sleep_state() != SleepState::Awake, now);
        self.record_waits(now);
    }

    fn planned(&mut self, answer: PlanAnswer) {
        let gap = answer.result.as_ref().map(PlanResult::gap_permille);
        self.outputs.extend(gap.map(|gap_permille| SchedulerOutput::Planned { gap_permille }));
        self.manager.planned(answer);
    }

    /// Returns the commands since the last call, in order.
    pub fn take_commands(&mut self) -> Vec<Command> {
        core::mem::take(&mut self.commands)
    }

    /// Returns the outputs since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<SchedulerOutput> {
        core::mem::take(&mut self.outputs)
    }

    /// Returns the limits.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the memory manager.
    pub fn manager(&self) -> &MemoryManager {
        &self.manager
    }

    /// Returns the pause state.
    pub fn pauses(&self) -> &Pauses {
        &self.requests.pauses
    }

    /// Returns the loan negotiator; `None` without peers.
    pub fn negotiator(&self) -> Option<&LoanNegotiator> {
        self.loans.negotiator()
    }

    /// Returns the predicted time until the tenant is used next, nanoseconds: 0 while it has requests, `None` without
    /// data.
    pub fn next_use_ns(&self, now: Nanos) -> Option<u64> {
        self.loans.next_use_ns(now)
    }

    /// Whether time alone can change the state: for example, borrowed memory may be returned while no step runs.
    pub fn needs_ticks(&self) -> bool {
        if self.manager.loans().missing_floor_chunks().is_some() {
            return true;
        }
        self.in_flight.is_none()
            && (self.engine.is_some() || self.loans.negotiator().is_some())
            && (self.head_starved > 0 || !self.manager.is_idle() || self.loans.needs_ticks())
    }

    /// Whether the tenant is awake and serving, without requests.
    pub fn is_idle(&self) -> bool {
        self.serving() && self.manager.status().sleep_state() == SleepState::Awake && !self.requests.any()
    }

    /// Returns the totals since the start.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the current state for operators and metrics.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            waiting: self.requests.queue.len() as u32,
            preempted: self.requests.queue.iter().filter(|s| s.started).count() as u32,
            running: self.requests.running.len() as u32,
            engine_attached: self.engine.is_some(),
            engine_pid: self.engine.map(|e| e.pid),
            serving: self.serving(),
            sleep_state: self.manager.status().sleep_state(),
            is_sleep_requested: self.sleep_requested.is_some(),
            counters: self.counters.clone(),
        }
    }

    /// Checks every invariant; panics with a message if one is broken.
    pub fn check(&self) {
        self.manager.check();
        self.loans.check(&self.manager);
        self.requests.running.check();
    }

    /// Returns a fingerprint of the state that affects decisions: equal runs have equal digests.
    pub fn digest(&self) -> u64 {
        let queue = &self.requests.queue;
        let mut words = vec![self.manager.digest(), self.next_step, queue.admissions(), queue.len() as u64];
        for sequence in self.requests.iter() {
            words.push(sequence.id().0 ^ (u64::from(sequence.computed_tokens) << 32));
            words.push(sequence.last_step);
            words.push(u64::from(sequence.len()) ^ sequence.row.map_or(u64::MAX, |r| u64::from(r.0)) << 32);
        }
        words.push(self.epoch());
        words.push(
            u64::from(self.sleep_requested.is_some()) << 32
                | self.requests.queue.iter().filter(|s| s.kv_suspended).count() as u64,
        );
        words.push(self.requests.pauses.digest_word());
        words.extend(self.kept.as_ref().map(KeptPlan::digest_word));
        let sequences = || self.requests.iter();
        if self.manager.params().deadlines().is_some() {
            let deadline = |one: &Sequence| [one.deferred_ns, one.read_until.map_or(0, |until| until.0)];
            words.extend(sequences().flat_map(deadline));
        }
        if self.manager.offload_view().offloads_prefills()
            || sequences().any(|one| one.waiting_offloaded || one.prefill_offloaded)
        {
            words.extend(
                sequences()
                    .map(|one| u64::from(one.prefill_offloaded) << 1 | u64::from(one.waiting_offloaded)),
            );
            words.push(self.manager.figures().prefill_digest());
        }
        words.push(self.loans.digest());
        fnv1a(words)
    }

    /// Returns a fingerprint of the commands and outputs that were not taken yet, in order. It does not depend on names
    /// or on the state's layout, so it shows whether decisions are the same.
    pub fn outputs_digest(&self) -> u64 {
        let mut digest = Digest::new(0);
        (&self.commands, &self.outputs).hash(&mut digest);
        digest.value()
    }

    fn submit(&mut self, now: Nanos, request: Request) {
        let id = request.id;
        match self.refusal(&request) {
            Some(refusal) => self.outputs.push(SchedulerOutput::Refused { request: id, refusal }),
            None => self.requests.queue.push(Sequence::new(request, now)),
        }
    }

    fn set_policy(&mut self, policy: PolicyName) {
        if let Err(refused) = self.manager.set_policy(policy) {
            self.outputs.push(SchedulerOutput::PolicyRefused { policy, refused });
        }
    }

    fn set_bounds(&mut self, bounds: Bounds) {
        if let Err(refused) = self.manager.set_bounds(bounds) {
            self.outputs.push(SchedulerOutput::BoundsRefused { bounds, refused });
        }
    }

    fn refusal(&self, request: &Request) -> Option<RejectReason> {
        let (prompt_tokens, max_tokens) = (request.prompt.len() as u32, request.max_tokens);
        let limit_tokens = self.config.max_model_tokens;
        if prompt_tokens == 0 || max_tokens == 0 {
            return Some(RejectReason::Empty);
        }
        if prompt_tokens.saturating_add(max_tokens) > limit_tokens {
            return Some(RejectReason::ContextLengthExceeded { prompt_tokens, max_tokens, limit_tokens });
        }
        let queued = self.requests.queue.len() as u32;
        (queued >= self.config.max_queued).then_some(RejectReason::QueueFull { queued })
    }

    /// Ends a cancelled request: at once, or at the next boundary if the step in flight uses its memory.
    fn cancel(&mut self, id: RequestId) {
        if self.requests.queue.remove(id).is_some() {
            self.manager.cancel(id);
            self.requests.pauses.on_cancel(id);
            self.outputs.push(SchedulerOutput::Finished { request: id, finish: Finish::Cancelled });
            return;
        }
        let in_step = self.in_flight.as_ref().is_some_and(|f| f.batch.scheduled_tokens(id).is_some());
        match self.requests.running.get_mut(id) {
            Some(sequence) if in_step => sequence.cancelled = true,
            Some(_) => self.end(id, Finish::Cancelled),
            None => {}
        }
    }

    fn compute(&mut self, now: Nanos, event: ComputeEvent) {
        match event {
            ComputeEvent::Attached(hello) => self.engine = Some(hello),
            ComputeEvent::Lost => self.on_engine_lost(now),
            ComputeEvent::Done(done) => self.retire(now, done),
            ComputeEvent::Refused { id, attempt, message } => self.refused(now, id, attempt, &message),
            ComputeEvent::StaleEpoch { id, attempt } => self.on_stale_epoch(now, id, attempt),
        }
    }

    /// Handles a step lost with its engine. With peers the step is undone, because a peer may need memory before the
    /// next engine attaches. Without peers it is kept and replayed unchanged.
    fn resume(&mut self, now: Nanos) {
        if self.engine_crashes > REPLAYS_MAX {
            return self.fail_step();
        }
        match self.loans.negotiator() {
            Some(_) => {
                self.undo_step();
                self.schedule(now);
            }
            None => self.replay(now),
        }
    }

    fn on_engine_lost(&mut self, now: Nanos) {
        self.engine = None;
        self.counters.engine_losses += 1;
        if let Some(in_flight) = self.in_flight.as_mut().filter(|in_flight| !in_flight.lost) {
            in_flight.lost = true;
            self.engine_crashes += 1;
        }
        self.manager.engine_lost(now, &mut self.actions);
    }
}
