//! A tenant of the GPU: its instances, its arrivals, and the outcomes of its requests.

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
    /// Name in reports.
    pub name: String,
    /// Scheduler options. The GPU sets the sharing mode and the peers.
    pub config: Config,
    /// Policy options.
    pub params: Params,
    /// Sizes; the capacity is the GPU's.
    pub geometry: Geometry,
    /// Speeds of the device.
    pub profile: Profile,
    /// Size of the vocabulary, tokens.
    pub vocab: u32,
    /// Terms of loans to and from peers.
    pub terms: NegotiationPolicy,
}

/// The outcome of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOutcome {
    /// Arrival time.
    pub arrived: Nanos,
    /// Time of each token.
    pub token_at: Vec<Nanos>,
    /// Sampled tokens; recorded only with fingerprints.
    pub tokens: Vec<u32>,
    /// How the request ended.
    pub finish: Option<Finish>,
    /// Why the scheduler refused the request.
    pub refusal: Option<RejectReason>,
    /// Number of preemptions.
    pub preemptions: u32,
    /// Whether the tenant's process exited while the request was open, which closed the client's stream.
    pub is_disconnected: bool,
}

impl RequestOutcome {
    /// Whether the request has ended.
    pub fn has_ended(&self) -> bool {
        self.finish.is_some() || self.refusal.is_some() || self.is_disconnected
    }
}

/// A message of a tenant to a peer or to the time-slice queue.
#[derive(Clone, Debug)]
pub(super) enum OutMessage {
    Peer(PeerCommand),
    Slice(SliceCommand),
}

/// The tenant's port to its peers. Its messages are sent after the step.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerOutbox(Arc<Mutex<Vec<OutMessage>>>);

impl PeerOutbox {
    fn push(&self, message: OutMessage) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    pub fn take(&self) -> Vec<OutMessage> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PeerPort for PeerOutbox {
    fn send(&mut self, _now: Nanos, message: PeerCommand) {
        self.push(OutMessage::Peer(message));
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        self.push(OutMessage::Slice(call));
    }
}

/// The journal of an instance, in memory.
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

/// One instance of a tenant.
#[derive(Debug)]
pub struct Instance {
    /// Identity in the ledger.
    pub me: Peer,
    /// Scheduler and backend.
    pub driver: Driver<SimMemory, SimCompute>,
    /// The device, for planting faults and for inspection.
    pub device: SharedDevice,
    pub(super) outbox: PeerOutbox,
    pub(super) journal: Option<JournalBuffer>,
    /// When the driver is due next.
    pub(super) due: Option<Nanos>,
    /// When the instance polls the ledger next.
    pub(super) next_survey_at: Nanos,
    /// Peers that were live at the last poll, or sent a message since.
    pub(super) known_peers: BTreeSet<Peer>,
    /// End of the stop of its process; the instance does nothing before.
    pub(super) stopped_until: Nanos,
    pub(super) last_used: Nanos,
    /// Layers whose memory is lent or remapped.
    pub(super) absent_layers: u16,
    pub(super) resident_since: Option<Nanos>,
}

impl Instance {
    /// Returns the journal so far, if the instance records one.
    pub fn recorded_journal(&self) -> Option<Vec<u8>> {
        let journal = self.journal.as_ref()?;
        Some(journal.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Returns the state that peers see in a survey.
    pub(super) fn peer_state(&self, now: Nanos, active: bool, queue_place: Option<u32>) -> PeerState {
        let core = self.driver.scheduler();
        PeerState {
            active,
            last_used: self.last_used,
            resident_since: self.resident_since.unwrap_or(Nanos(0)),
            lendable_chunks: core.manager().loans().lendable_chunks(),
            queue_position: queue_place,
            next_use_ns: core.next_use_ns(now),
        }
    }

    /// Returns when the driver is due next, delayed by a stop of the process.
    pub(super) fn next_wake_at(&self) -> Option<Nanos> {
        self.due.map(|due| due.max(self.stopped_until))
    }
}

/// A tenant across its instances.
#[derive(Debug)]
pub struct SimTenant {
    /// Options.
    pub setup: TenantSetup,
    /// Share and remap cap now in force for the tenant.
    pub(super) bounds: Bounds,
    /// Whether the current instance has been sent `bounds`.
    pub(super) has_sent_bounds: bool,
    /// The current instance; `None` between an exit and the restart.
    pub instance: Option<Instance>,
    /// Time of the restart.
    pub(super) restart_at: Option<Nanos>,
    /// Future requests, by time.
    pub(super) arrivals: VecDeque<(Nanos, Request)>,
    /// Outcomes of the requests that have arrived.
    pub outcomes: BTreeMap<RequestId, RequestOutcome>,
    /// Number of those that have not ended.
    pub(super) open: usize,
    pub(super) should_keep_tokens: bool,
    /// Statistics of all instances.
    pub stats: TenantStats,
    /// For each plan, the proven bound by which another plan might be faster, permille of its time.
    pub plan_gaps: Vec<u32>,
}

/// Statistics of a tenant over all its instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantStats {
    /// Number of steps.
    pub steps: u64,
    /// Nanoseconds that steps waited for moving layers.
    pub stall_ns: u64,
    /// Nanoseconds that steps waited for fetched KV.
    pub kv_stall_ns: u64,
    /// Nanoseconds that steps waited for loading weights.
    pub arrival_ns: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Nanoseconds waited for memory of peers, as the scheduler reports it.
    pub grant_ns: u64,
    /// Nanoseconds waited for own memory that was lent.
    pub revoke_ns: u64,
    /// Nanoseconds from the return of that memory until its layers are loaded.
    pub wake_ns: u64,
    /// Largest number of layers lent or remapped at once.
    pub most_remapped: u16,
    /// Number of times that a layer was lent or remapped.
    pub remapped_layers: u64,
}

impl TenantStats {
    fn add_wait(&mut self, span: WaitSpan) {
        match span.kind {
            WaitKind::TimeSlice => {}
            WaitKind::Grant => self.grant_ns += span.ns(),
            WaitKind::Revoke => self.revoke_ns += span.ns(),
            WaitKind::Wake => self.wake_ns += span.ns(),
        }
    }
}

impl SimTenant {
    /// Returns the number of requests that have arrived and not ended.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Whether no request is open or to arrive.
    pub fn is_done(&self) -> bool {
        self.open == 0 && self.arrivals.is_empty()
    }

    /// Applies the scheduler's notices to outcomes and statistics.
    pub(super) fn process_notices(&mut self, now: Nanos) {
        let Some(instance) = &mut self.instance else { return };
        for notice in instance.driver.take_outputs() {
            match notice {
                SchedulerOutput::Step(step) => {
                    instance.last_used = now;
                    self.stats.steps += 1;
                    self.stats.stall_ns += step.stall_ns;
                    self.stats.kv_stall_ns += step.kv_stall_ns;
                    self.stats.arrival_ns += step.arrival_ns;
                    self.stats.recomputed_tokens += u64::from(step.recomputed_tokens);
                    self.stats.prefill_tokens += u64::from(step.prefill_tokens);
                }
                SchedulerOutput::Token { request, token, .. } => {
                    let outcome = self.outcomes.entry(request).or_default();
                    outcome.token_at.push(now);
                    if self.should_keep_tokens {
                        outcome.tokens.push(token);
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

    /// Records the state of the memory manager after an event.
    pub(super) fn observe_memory(&mut self, now: Nanos) {
        let Some(instance) = &mut self.instance else { return };
        let manager = instance.driver.scheduler().manager();
        // Layers that were never loaded do not count as absent.
        let away = if manager.status().is_loaded() {
            manager.status().absent_layers() + manager.figures().layout().alpha()
        } else {
            0
        };
        self.stats.most_remapped = self.stats.most_remapped.max(away);
        self.stats.remapped_layers += u64::from(away.saturating_sub(instance.absent_layers));
        instance.absent_layers = away;
        instance.resident_since =
            if manager.status().is_whole() { instance.resident_since.or(Some(now)) } else { None };
    }

    /// Disconnects the clients of all open requests when the process exits.
    pub(super) fn disconnect_clients(&mut self) {
        for outcome in self.outcomes.values_mut().filter(|outcome| !outcome.has_ended()) {
            outcome.is_disconnected = true;
        }
        self.open = 0;
    }
}
