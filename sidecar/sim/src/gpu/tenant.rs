//! A tenant of the GPU: its lives, its clients, what became of their requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand};
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::PeerState;
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use sluice_ports::peers::{PeerPort, SliceCommand};
use sluice_scheduler::{Config, Driver, Finish, RejectReason, Request, SchedulerOutput};

use crate::compute::SimCompute;
use crate::device::{Profile, SharedDevice};
use crate::memory::SimMemory;

/// Options of one tenant.
#[derive(Clone, Debug)]
pub struct TenantSetup {
    /// As it is called in reports.
    pub name: String,
    /// Scheduler. How the GPU is shared, and who the neighbours are, is filled in by the GPU.
    pub config: Config,
    /// Policy.
    pub params: Params,
    /// Sizes; the capacity is the GPU's.
    pub geometry: Geometry,
    /// Speeds.
    pub profile: Profile,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// By which terms it trades.
    pub terms: NegotiationPolicy,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOutcome {
    /// When it arrived.
    pub arrived: Nanos,
    /// When each token came.
    pub token_at: Vec<Nanos>,
    /// The tokens; kept with fingerprints only.
    pub tokens: Vec<u32>,
    /// How it ended.
    pub finish: Option<Finish>,
    /// Why it was not taken.
    pub refusal: Option<RejectReason>,
    /// Times it lost its memory.
    pub preemptions: u32,
    /// The tenant's process died while it was open: its client saw a closed stream.
    pub is_disconnected: bool,
}

impl RequestOutcome {
    /// Nothing more will follow.
    pub fn has_ended(&self) -> bool {
        self.finish.is_some() || self.refusal.is_some() || self.is_disconnected
    }
}

/// What a tenant says to others.
#[derive(Clone, Debug)]
pub(super) enum OutMessage {
    Peer(PeerCommand),
    Turn(SliceCommand),
}

/// The tenant's port to its neighbours: what it says is carried on after its step.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerOutbox(Arc<Mutex<Vec<OutMessage>>>);

impl PeerOutbox {
    fn push(&self, said: OutMessage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(said);
    }

    pub fn take(&self) -> Vec<OutMessage> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PeerPort for PeerOutbox {
    fn send(&mut self, _now: Nanos, letter: PeerCommand) {
        self.push(OutMessage::Peer(letter));
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        self.push(OutMessage::Turn(call));
    }
}

/// A life's journal, in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct JournalBuffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for JournalBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One life of a tenant.
#[derive(Debug)]
pub struct Instance {
    /// Its name in the ledger.
    pub me: Peer,
    /// Scheduler and body.
    pub driver: Driver<SimMemory, SimCompute>,
    /// Its device, to plant faults in and to look at.
    pub device: SharedDevice,
    pub(super) outbox: PeerOutbox,
    pub(super) journal: Option<JournalBuffer>,
    /// When it has something to do by itself.
    pub(super) due: Option<Nanos>,
    /// It looks at the ledger then.
    pub(super) next_survey_at: Nanos,
    /// Those who lived at the last look, or spoke to it since.
    pub(super) known_peers: BTreeSet<Peer>,
    /// It does nothing before: its process is stopped.
    pub(super) stopped_until: Nanos,
    pub(super) last_used: Nanos,
    /// Layers whose memory is away.
    pub(super) absent_layers: u16,
    pub(super) resident_since: Option<Nanos>,
}

impl Instance {
    /// Its journal so far, if it records one.
    pub fn recorded_journal(&self) -> Option<Vec<u8>> {
        let journal = self.journal.as_ref()?;
        Some(journal.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// What it says of itself to neighbours that survey.
    pub(super) fn peer_state(&self, now: Nanos, active: bool, queue_place: Option<u32>) -> PeerState {
        let core = self.driver.scheduler();
        PeerState {
            active,
            last_used: self.last_used,
            resident_since: self.resident_since.unwrap_or(Nanos(0)),
            lendable_chunks: core.manager().lendable_chunks(),
            queue_position: queue_place,
            next_use_ns: core.next_use_ns(now),
        }
    }

    /// The driver's own, with everything that was to come before it.
    pub(super) fn next_wake_at(&self) -> Option<Nanos> {
        self.due.map(|due| due.max(self.stopped_until))
    }
}

/// A tenant and what outlives it.
#[derive(Debug)]
pub struct SimTenant {
    /// Options.
    pub setup: TenantSetup,
    /// What it may hold and give away.
    pub(super) bounds: Bounds,
    /// The present life was told so.
    pub(super) has_sent_bounds: bool,
    /// The present life; none between a death and the next beginning.
    pub instance: Option<Instance>,
    /// The next life begins then.
    pub(super) restart_at: Option<Nanos>,
    /// Requests to come, by time.
    pub(super) arrivals: VecDeque<(Nanos, Request)>,
    /// Requests that came.
    pub outcomes: BTreeMap<RequestId, RequestOutcome>,
    /// Of those, not ended.
    pub(super) open: usize,
    pub(super) should_keep_tokens: bool,
    /// Figures of former lives and this one.
    pub stats: TenantStats,
    /// Of each plan that was found, how much faster another might have been: permille of its time, proven.
    pub plan_gaps: Vec<u32>,
}

/// Figures of a tenant over all its lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// Steps.
    pub steps: u64,
    /// Nanoseconds that steps waited for moving layers.
    pub stall_ns: u64,
    /// Time that steps waited for KV that is fetched.
    pub kv_stall_ns: u64,
    /// Nanoseconds that steps waited for weights on their way.
    pub arrival_ns: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Tokens of prompts computed.
    pub prefill_tokens: u64,
    /// Requests that lost their memory.
    pub preemptions: u64,
    /// Nanoseconds waited for neighbours' memory, as the scheduler tells it.
    pub grant_ns: u64,
    /// Nanoseconds waited for own memory that was lent.
    pub revoke_ns: u64,
    /// Nanoseconds from having that memory to having its layers.
    pub wake_ns: u64,
    /// Most layers whose memory was away at once, lent or remapped.
    pub most_remapped: u16,
    /// Layers that gave their memory away, counted each time.
    pub remapped_layers: u64,
}

impl TenantStats {
    fn add_wait(&mut self, span: WaitSpan) {
        match span.kind {
            WaitKind::Turn => {}
            WaitKind::Grant => self.grant_ns += span.ns(),
            WaitKind::Revoke => self.revoke_ns += span.ns(),
            WaitKind::Wake => self.wake_ns += span.ns(),
        }
    }
}

impl SimTenant {
    /// Requests that came and have not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Nothing is to come and nothing is open.
    pub fn is_done(&self) -> bool {
        self.open == 0 && self.arrivals.is_empty()
    }

    /// Takes what the scheduler tells.
    pub(super) fn process_notices(&mut self, now: Nanos) {
        let Some(life) = &mut self.instance else { return };
        for notice in life.driver.take_outputs() {
            match notice {
                SchedulerOutput::Step(step) => {
                    life.last_used = now;
                    self.stats.steps += 1;
                    self.stats.stall_ns += step.stall_ns;
                    self.stats.kv_stall_ns += step.kv_stall_ns;
                    self.stats.arrival_ns += step.arrival_ns;
                    self.stats.recomputed_tokens += u64::from(step.recomputed_tokens);
                    self.stats.prefill_tokens += u64::from(step.prefill_tokens);
                }
                SchedulerOutput::Token { request, token, .. } => {
                    let fate = self.outcomes.entry(request).or_default();
                    fate.token_at.push(now);
                    if self.should_keep_tokens {
                        fate.tokens.push(token);
                    }
                }
                SchedulerOutput::Finished { request, finish } => {
                    self.outcomes.entry(request).or_default().finish = Some(finish);
                    self.open -= 1;
                }
                SchedulerOutput::Refused { request, refusal } => {
                    self.outcomes.entry(request).or_default().refusal = Some(refusal);
                    self.open -= 1;
                }
                SchedulerOutput::Preempted { request, .. } => {
                    self.outcomes.entry(request).or_default().preemptions += 1;
                    self.stats.preemptions += 1;
                }
                SchedulerOutput::Waited(span) => self.stats.add_wait(span),
                SchedulerOutput::Planned { gap_permille } => self.plan_gaps.push(gap_permille),
                SchedulerOutput::Admitted { .. }
                | SchedulerOutput::PolicyRefused { .. }
                | SchedulerOutput::BoundsRefused { .. } => {}
            }
        }
    }

    /// Looks at the memory manager after something happened.
    pub(super) fn observe_memory(&mut self, now: Nanos) {
        let Some(life) = &mut self.instance else { return };
        let manager = life.driver.scheduler().manager();
        // Before it is loaded its layers are not away, they were never here.
        let away = if manager.is_loaded() { manager.absent_layers() + manager.layout().alpha() } else { 0 };
        self.stats.most_remapped = self.stats.most_remapped.max(away);
        self.stats.remapped_layers += u64::from(away.saturating_sub(life.absent_layers));
        life.absent_layers = away;
        life.resident_since = if manager.is_whole() { life.resident_since.or(Some(now)) } else { None };
    }

    /// Its process is gone, and with it the streams of its clients.
    pub(super) fn disconnect_clients(&mut self) {
        for fate in self.outcomes.values_mut().filter(|fate| !fate.has_ended()) {
            fate.is_disconnected = true;
        }
        self.open = 0;
    }
}
