//! Manages the time slice, and trades memory with peers at step boundaries.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::{Demand, SleepState};
use sluice_policy::peers::time_slice::{Decision, Holder, Quantum};
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};

use super::Scheduler;
use super::slice_state::SliceState;
use crate::config::TimeSharing;
use crate::event::{Command, SchedulerOutput};
use crate::sequence::Sequence;
use crate::step_request::StepRequest;

/// One of this number of steps runs only decodes, while decodes are predicted to take most of a time slice.
const LOOK_EVERY: u64 = 8;

impl Scheduler {
    /// Handles a message from a peer, or a change of the time slice.
    pub(super) fn on_peer_event(&mut self, now: Nanos, event: PeerPortEvent) {
        match (event, self.slice) {
            (PeerPortEvent::Peer(event), _) => {
                if let Some(negotiator) = &mut self.negotiator {
                    negotiator.on_event(now, event, &mut self.manager);
                }
            }
            (PeerPortEvent::SliceGranted { epoch }, SliceState::Queued { since }) => {
                self.counters.slices += 1;
                self.counters.slice_wait_ns += now.since(since);
                self.outputs.push(SchedulerOutput::Waited(WaitSpan {
                    kind: WaitKind::Turn,
                    since,
                    until: now,
                }));
                self.slice = SliceState::Held { epoch, since: now, has_run: false, has_waiters: false };
            }
            (PeerPortEvent::SliceGranted { .. }, SliceState::NotQueued | SliceState::Held { .. }) => {}
            (PeerPortEvent::SliceTakenOver { epoch: lost }, SliceState::Held { epoch, since, .. })
                if lost == epoch =>
            {
                self.counters.slice_held_ns += now.since(since);
                (self.slice, self.quantum_expired) = (SliceState::NotQueued, false);
            }
            (PeerPortEvent::SliceTakenOver { .. }, _) => {}
            (PeerPortEvent::SliceRequested { epoch: wanted }, _) => {
                if let SliceState::Held { epoch, has_waiters, .. } = &mut self.slice {
                    // A request for an earlier epoch does not apply to this time slice.
                    *has_waiters |= *epoch == wanted;
                }
            }
        }
    }

    /// Whether a step may begin now. Under temporal sharing this requests the time slice and releases it.
    pub(super) fn can_run(&mut self, now: Nanos) -> bool {
        let busy = self.has_requests() && self.manager.status().sleep_state() == SleepState::Awake;
        let is_served = busy && self.engine.is_some();
        let is_active = match self.config.sharing {
            TimeSharing::Exclusive => true,
            TimeSharing::Spatial => busy,
            TimeSharing::Temporal(quantum) => self.should_keep_slice(now, quantum, busy),
        };
        self.manager.set_demand(Demand { has_requests: is_served, is_active });
        is_active
    }

    /// Whether time sharing lets the tenant run steps: it holds the time slice, or sharing is not temporal.
    pub fn holds_slice(&self) -> bool {
        !matches!(self.config.sharing, TimeSharing::Temporal(_))
            || matches!(self.slice, SliceState::Held { .. })
    }

    /// Returns the epoch of the held time slice.
    pub fn held_epoch(&self) -> Option<u64> {
        match self.slice {
            SliceState::Held { epoch, .. } => Some(epoch),
            SliceState::NotQueued | SliceState::Queued { .. } => None,
        }
    }

    fn should_keep_slice(&mut self, now: Nanos, quantum: Quantum, busy: bool) -> bool {
        if let SliceState::Held { since, has_run, has_waiters, .. } = self.slice {
            let predicted_step_ns = self.predicted_step_ns(quantum);
            let holder = Holder { started: since, has_waiters, has_work: busy, predicted_step_ns };
            match quantum.should_keep_slice(now, &holder) {
                Decision::Keep => return true,
                // Each time slice runs at least one step, even if preparation used up the quantum.
                Decision::Release
                    if busy
                        && !has_run
                        && !self.manager.status().lacks_weights()
                        && self.head_starved == 0 =>
                {
                    self.quantum_expired = true;
                    return true;
                }
                Decision::Release => self.release_slice(now),
            }
        }
        if busy && self.slice == SliceState::NotQueued && self.engine.is_some() {
            self.slice = SliceState::Queued { since: now };
            self.commands.push(Command::Slice(SliceCommand::Request));
        }
        false
    }

    /// Predicts the duration of the next step: all decodes, and as many prompt tokens as fit into a full quantum. The
    /// slice thus ends instead of computing small remainders of a prompt, each of which would read all weights.
    fn predicted_step_ns(&self, quantum: Quantum) -> u64 {
        let running = self.running.values().filter(|s| s.pending() > 1).map(Sequence::pending);
        let pending = running.chain(self.queue.iter().map(Sequence::len)).fold(0, u32::saturating_add);
        let measures = self.manager.timing().step_stats();
        let decodes = decodes(self.running.values().map(StepRequest::running));
        let max_tokens = measures.prefill_tokens_within(decodes, quantum.max_ns());
        measures.step_ns(decodes, pending.min(max_tokens).min(self.config.max_step_tokens))
    }

    /// Returns the tokens of a step that ends within the time slice by measured speed: one per decode, and prompt
    /// tokens as far as they fit, at least one. Unbounded unless a time slice is held.
    pub(super) fn fitting_tokens(&self, now: Nanos, requests: &[StepRequest<'_>]) -> u32 {
        let (TimeSharing::Temporal(quantum), SliceState::Held { since, has_run, has_waiters, .. }) =
            (self.config.sharing, self.slice)
        else {
            return u32::MAX;
        };
        // The first step gets a full quantum even if preparation used part of it. While no peer waits, a step may take
        // a full quantum too: a peer that arrives then waits for at most one step of that length.
        let left_ns = if has_run && has_waiters { quantum.left_ns(now, since) } else { quantum.max_ns() };
        // A step that waits for remapped layers does not become shorter with a shorter prompt chunk.
        let within_ns = left_ns.max(self.manager.timing().streaming_ns());
        match decodes(requests.iter().copied()) {
            0 if self.is_decode_dominated(quantum) => {
                self.manager.timing().step_stats().prefill_tokens_adding(within_ns)
            }
            decodes => decodes
                .saturating_add(self.manager.timing().step_stats().prefill_tokens_within(decodes, within_ns)),
        }
    }

    /// Whether decodes are predicted to take at least half of a quantum. Prompts then progress by a minimal chunk per
    /// step, and only a step without prompts can measure the current decode time.
    fn is_decode_dominated(&self, quantum: Quantum) -> bool {
        2 * self.manager.timing().step_stats().decode_step_ns() >= u128::from(quantum.max_ns())
    }

    /// Whether the next step runs only decodes, to measure their time.
    pub(super) fn prefers_decodes(&self, requests: &[StepRequest<'_>]) -> bool {
        let TimeSharing::Temporal(quantum) = self.config.sharing else { return false };
        let due = self.next_step.is_multiple_of(LOOK_EVERY) && self.is_decode_dominated(quantum);
        due && decodes(requests.iter().copied()) > 0 && !self.manager.timing().weights_loading()
    }

    /// Releases the time slice if it is held.
    pub(super) fn release_slice(&mut self, now: Nanos) {
        if let SliceState::Held { since, .. } = self.slice {
            self.counters.slice_held_ns += now.since(since);
            (self.slice, self.quantum_expired) = (SliceState::NotQueued, false);
            self.commands.push(Command::Slice(SliceCommand::Release));
        }
    }

    /// Releases the time slice while the tenant has no engine or is not loaded, because it cannot run a step. It
    /// requests the slice again when it can.
    pub(super) fn release_idle_slice(&mut self, now: Nanos) {
        let computes = self.in_flight.as_ref().is_some_and(|step| !step.lost);
        if !self.serving() && !computes {
            self.release_slice(now);
        }
    }

    /// Returns the epoch that a step carries.
    pub(super) fn epoch(&self) -> u64 {
        match self.slice {
            SliceState::Held { epoch, .. } => epoch,
            SliceState::NotQueued | SliceState::Queued { .. } => 0,
        }
    }

    /// Records that a step of this time slice begins.
    pub(super) fn record_slice_use(&mut self) {
        self.quantum_expired = false;
        if let SliceState::Held { has_run, .. } = &mut self.slice {
            *has_run = true;
        }
    }

    /// Trades memory with peers at a boundary. If a due return does not fit, it pauses or preempts the request that the
    /// policy chooses.
    pub(super) fn negotiate(&mut self, now: Nanos) {
        self.continue_negotiation(now);
        while self.manager.status().debt_lacks_room() && self.running.len() > 1 {
            if let Some(eviction) = self.plan_debt_eviction(now) {
                self.evict(now, &eviction);
            }
            self.manager.boundary(now, &mut self.actions);
        }
        if self.manager.status().debt_lacks_room() {
            // The remaining KV belongs to the oldest request or to suspended requests.
            self.manager.loans_mut().force_reclaim();
            self.manager.boundary(now, &mut self.actions);
        }
        // While the tenant falls asleep, `make_host_room` drops suspended KV instead.
        while self.manager.status().debt_lacks_room()
            && self.manager.status().sleep_state() == SleepState::Awake
            && self.drop_suspended_kv(|manager, id| manager.kv_of(id).on_device())
        {
            self.manager.boundary(now, &mut self.actions);
        }
    }

    fn continue_negotiation(&mut self, now: Nanos) {
        let Some(negotiator) = &mut self.negotiator else { return };
        let waited = self.manager.loans().awaits_loans();
        negotiator.boundary(now, &mut self.manager, &mut self.actions);
        if waited && !self.manager.loans().awaits_loans() && !self.manager.status().is_blocked() {
            // The loans that absent layers waited for are settled: restore the layers now instead of at the next event.
            self.manager.boundary(now, &mut self.actions);
        }
        self.commands.extend(negotiator.take_commands().into_iter().map(Command::Peer));
    }

    /// Claims the missing floor of a new instance from the peers that hold it, and retries.
    pub(super) fn claim_floor(&mut self, now: Nanos) {
        let (Some(chunks), Some(negotiator)) =
            (self.manager.loans().missing_floor_chunks(), &mut self.negotiator)
        else {
            return;
        };
        negotiator.claim(now, chunks);
        self.commands.extend(negotiator.take_commands().into_iter().map(Command::Peer));
        self.manager.loans_mut().claim_floor(&mut self.actions);
    }

    /// Reports the waits for peers that ended.
    pub(super) fn record_waits(&mut self, now: Nanos) {
        let Some(negotiator) = &self.negotiator else { return };
        let ended = self.waits.sample(now, &self.manager, negotiator, self.next_step);
        self.outputs.extend(ended.map(SchedulerOutput::Waited));
    }

    /// Asks peers for memory if the step waits for a loan. Returns true if they denied it, so that another reclaim
    /// option is due now.
    pub(super) fn borrow_denied(&mut self, now: Nanos) -> bool {
        if self.manager.loans().borrow_request().is_none() {
            return false;
        }
        self.negotiate(now);
        self.manager.loans().borrow_request().is_none() && !self.manager.status().is_blocked()
    }
}

/// Returns the number of requests that decode.
pub(super) fn decodes<'a>(requests: impl Iterator<Item = StepRequest<'a>>) -> u32 {
    requests.filter(|one| one.pending() == 1).count() as u32
}
