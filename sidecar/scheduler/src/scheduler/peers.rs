//! Manages the time slice, and trades memory with peers at step boundaries.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::{Demand, SleepState};
use sluice_policy::peers::wait_time::{WaitKind, WaitSpan};
use sluice_ports::peers::{PeerPortEvent, SliceCommand};

use super::Scheduler;
use crate::event::{Command, SchedulerOutput};
use crate::time_slice::{SliceNeed, SlicePlan};

impl Scheduler {
    /// Handles a message from a peer, or a change of the time slice.
    pub(super) fn on_peer_event(&mut self, now: Nanos, event: PeerPortEvent) {
        match event {
            PeerPortEvent::Peer(event) => {
                self.loans.on_event(now, event, &mut self.manager);
            }
            PeerPortEvent::SliceGranted { epoch } => {
                let Some(since) = self.slice.on_granted(now, epoch) else { return };
                self.counters.slices += 1;
                self.counters.slice_wait_ns += now.since(since);
                let waited = WaitSpan { kind: WaitKind::TimeSlice, since, until: now };
                self.outputs.push(SchedulerOutput::Waited(waited));
            }
            PeerPortEvent::SliceTakenOver { epoch } => {
                let since = self.slice.on_taken_over(epoch);
                self.counters.slice_held_ns += since.map_or(0, |since| now.since(since));
            }
            PeerPortEvent::SliceRequested { epoch } => self.slice.on_requested(epoch),
        }
    }

    /// Requests or releases the time slice at a boundary, and sets the demand of the memory manager. Returns whether
    /// a step may begin now.
    pub(super) fn update_slice(&mut self, now: Nanos) -> bool {
        let status = self.manager.status();
        let has_work = self.requests.any() && status.sleep_state() == SleepState::Awake;
        let has_engine = self.engine.is_some();
        let is_ready = !status.lacks_weights() && self.head_starved == 0;
        let predicted_ns = |quantum| self.planner(now).predicted_step_ns(quantum);
        let plan = self.slice.plan(now, SliceNeed { has_work, has_engine, is_ready }, predicted_ns);
        match plan {
            SlicePlan::Run => {}
            SlicePlan::RunExpired => self.slice.expire(),
            SlicePlan::Wait { release, request } => {
                if release {
                    self.release_slice(now);
                }
                if request {
                    self.slice.request(now);
                    self.commands.push(Command::Slice(SliceCommand::Request));
                }
            }
        }
        let is_active = !matches!(plan, SlicePlan::Wait { .. });
        self.manager.set_demand(Demand { has_requests: has_work && has_engine, is_active });
        is_active
    }

    /// Whether time sharing lets the tenant run steps: it holds the time slice, or sharing is not temporal.
    pub fn holds_slice(&self) -> bool {
        self.slice.is_held()
    }

    /// Returns the epoch of the held time slice.
    pub fn held_epoch(&self) -> Option<u64> {
        self.slice.held_epoch()
    }

    /// Releases the time slice if it is held.
    fn release_slice(&mut self, now: Nanos) {
        if let Some(since) = self.slice.release() {
            self.counters.slice_held_ns += now.since(since);
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
        self.slice.held_epoch().unwrap_or(0)
    }

    /// Trades memory with peers at a boundary. If a due return does not fit, it pauses or preempts the request that the
    /// policy chooses.
    pub(super) fn negotiate(&mut self, now: Nanos) {
        self.loans.boundary(now, &mut self.manager, &mut self.actions, &mut self.commands);
        self.evict_for_debt(now);
    }

    /// Claims the missing floor of a new instance from the peers that hold it, and retries.
    pub(super) fn claim_floor(&mut self, now: Nanos) {
        self.loans.claim_floor(now, &mut self.manager, &mut self.actions, &mut self.commands);
    }

    /// Reports the waits for peers that ended.
    pub(super) fn record_waits(&mut self, now: Nanos) {
        let ended = self.loans.observe(now, &self.manager, (self.next_step, self.requests.any()));
        self.outputs.extend(ended.into_iter().map(SchedulerOutput::Waited));
    }

    /// Asks peers for memory if the step waits for a loan. Returns true if they denied it, so that another reclaim
    /// option is due now.
    pub(super) fn ask_peers(&mut self, now: Nanos) -> bool {
        if self.manager.loans().borrow_request().is_none() {
            return false;
        }
        self.negotiate(now);
        self.manager.loans().borrow_request().is_none() && !self.manager.status().is_blocked()
    }
}
