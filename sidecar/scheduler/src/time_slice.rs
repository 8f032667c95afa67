//! The right to run steps: always, while there is work, or during a time slice.

use sluice_policy::ids::Nanos;
use sluice_policy::memory_manager::TimingView;
use sluice_policy::peers::time_slice::{Decision, Holder, Quantum};

use crate::config::TimeSharing;

/// One of this number of steps runs only decodes, while decodes are predicted to take most of a time slice or none was
/// measured.
const LOOK_EVERY: u64 = 8;

/// The time slice under temporal sharing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SliceState {
    /// Not requested.
    #[default]
    NotQueued,
    /// Requested.
    Queued {
        /// When it was requested.
        since: Nanos,
    },
    /// Held.
    Held {
        /// The time slice's epoch.
        epoch: u64,
        /// When it was granted.
        since: Nanos,
        /// Whether a step of this time slice has begun.
        has_run: bool,
        /// Whether a peer waits for it.
        has_waiters: bool,
    },
}

/// What a decision about the time slice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SliceNeed {
    /// Requests wait or run, and the tenant is awake.
    pub has_work: bool,
    /// An engine is attached.
    pub has_engine: bool,
    /// The next step lacks only memory that the tenant itself can free.
    pub is_ready: bool,
}

/// What happens to the time slice at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlicePlan {
    /// A step may begin.
    Run,
    /// A step may begin although the quantum has expired. It no longer waits for peers.
    RunExpired,
    /// No step may begin.
    Wait {
        /// The slice is released.
        release: bool,
        /// The next slice is requested.
        request: bool,
    },
}

/// Whether the tenant may run steps, by the way in which the tenants share the GPU's time.
#[derive(Clone, Debug)]
pub(crate) struct TimeSlice {
    sharing: TimeSharing,
    state: SliceState,
    /// The quantum expired before the first step of the slice.
    is_expired: bool,
}

impl TimeSlice {
    /// Returns the state in which no slice is requested.
    pub fn new(sharing: TimeSharing) -> TimeSlice {
        TimeSlice { sharing, state: SliceState::default(), is_expired: false }
    }

    /// Whether time sharing lets the tenant run steps: it holds the slice, or sharing is not temporal.
    pub fn is_held(&self) -> bool {
        !matches!(self.sharing, TimeSharing::Temporal(_)) || self.held_epoch().is_some()
    }

    /// Returns the epoch of the held slice.
    pub fn held_epoch(&self) -> Option<u64> {
        match self.state {
            SliceState::Held { epoch, .. } => Some(epoch),
            SliceState::NotQueued | SliceState::Queued { .. } => None,
        }
    }

    /// Whether the quantum expired before the first step of the slice: the step no longer waits for peers.
    pub fn is_expired(&self) -> bool {
        self.is_expired
    }

    /// Decides about the slice at a boundary. `predicted_ns` predicts the duration of the next step.
    pub fn plan(&self, now: Nanos, need: SliceNeed, predicted_ns: impl FnOnce(Quantum) -> u64) -> SlicePlan {
        let SliceNeed { has_work, has_engine, is_ready } = need;
        let quantum = match self.sharing {
            TimeSharing::Exclusive => return SlicePlan::Run,
            TimeSharing::Spatial if has_work => return SlicePlan::Run,
            TimeSharing::Spatial => return SlicePlan::Wait { release: false, request: false },
            TimeSharing::Temporal(quantum) => quantum,
        };
        let may_request = has_work && has_engine;
        let SliceState::Held { since, has_run, has_waiters, .. } = self.state else {
            let request = may_request && self.state == SliceState::NotQueued;
            return SlicePlan::Wait { release: false, request };
        };
        let predicted_step_ns = predicted_ns(quantum);
        match quantum
            .should_keep_slice(now, &Holder { started: since, has_waiters, has_work, predicted_step_ns })
        {
            Decision::Keep => SlicePlan::Run,
            // Each time slice runs at least one step, even if preparation used up the quantum.
            Decision::Release if has_work && !has_run && is_ready => SlicePlan::RunExpired,
            Decision::Release => SlicePlan::Wait { release: true, request: may_request },
        }
    }

    /// Notes that the slice is requested.
    pub fn request(&mut self, now: Nanos) {
        self.state = SliceState::Queued { since: now };
    }

    /// Notes a granted slice. Returns when it was requested; `None` if it was not.
    pub fn on_granted(&mut self, now: Nanos, epoch: u64) -> Option<Nanos> {
        let SliceState::Queued { since } = self.state else { return None };
        self.state = SliceState::Held { epoch, since: now, has_run: false, has_waiters: false };
        Some(since)
    }

    /// Notes that a peer has taken the slice of this epoch over. Returns since when it was held; `None` if it was not.
    pub fn on_taken_over(&mut self, epoch: u64) -> Option<Nanos> {
        if self.held_epoch() == Some(epoch) { self.release() } else { None }
    }

    /// Notes that a peer waits. A request for an earlier epoch does not apply to this slice.
    pub fn on_requested(&mut self, wanted: u64) {
        if let SliceState::Held { epoch, has_waiters, .. } = &mut self.state {
            *has_waiters |= *epoch == wanted;
        }
    }

    /// Notes that the quantum expired before the first step.
    pub fn expire(&mut self) {
        self.is_expired = true;
    }

    /// Notes that a step of the slice begins.
    pub fn on_step(&mut self) {
        self.is_expired = false;
        if let SliceState::Held { has_run, .. } = &mut self.state {
            *has_run = true;
        }
    }

    /// Gives the slice up. Returns since when it was held; `None` if it was not.
    pub fn release(&mut self) -> Option<Nanos> {
        let SliceState::Held { since, .. } = self.state else { return None };
        (self.state, self.is_expired) = (SliceState::NotQueued, false);
        Some(since)
    }

    /// Returns the tokens of a step that ends within the slice by measured speed: one for each of its `decodes`, and
    /// prompt tokens as far as they fit, at least one. Unbounded unless a slice is held.
    pub fn fitting_tokens(&self, now: Nanos, decodes: u32, timing: TimingView<'_>) -> u32 {
        let (TimeSharing::Temporal(quantum), SliceState::Held { since, has_run, has_waiters, .. }) =
            (self.sharing, self.state)
        else {
            return u32::MAX;
        };
        // The first step gets a full quantum even if preparation used part of it. While no peer waits, a step may take
        // a full quantum too: a peer that arrives then waits for at most one step of that length.
        let left_ns = if has_run && has_waiters { quantum.left_ns(now, since) } else { quantum.max_ns() };
        // A step that waits for remapped layers does not become shorter with a shorter prompt chunk.
        let within_ns = left_ns.max(timing.streaming_ns());
        let measures = timing.step_stats();
        match decodes {
            0 if is_decode_dominated(quantum, timing) => measures.prefill_tokens_adding(within_ns),
            decodes => decodes.saturating_add(measures.prefill_tokens_within(decodes, within_ns)),
        }
    }

    /// Whether step number `step` runs only its decodes, to measure their time. The caller asks while no weights load:
    /// times of other steps are no samples.
    pub fn prefers_decodes(&self, step: u64, timing: TimingView<'_>) -> bool {
        let TimeSharing::Temporal(quantum) = self.sharing else { return false };
        let is_known = timing.step_stats().compute_known();
        step.is_multiple_of(LOOK_EVERY) && (!is_known || is_decode_dominated(quantum, timing))
    }
}

/// Whether decodes are predicted to take at least half of a quantum. Prompts then progress by a minimal chunk per step,
/// and only a step without prompts can measure the current decode time.
fn is_decode_dominated(quantum: Quantum, timing: TimingView<'_>) -> bool {
    2 * timing.step_stats().decode_step_ns() >= u128::from(quantum.max_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: SliceNeed = SliceNeed { has_work: true, has_engine: true, is_ready: true };
    const STOP: SlicePlan = SlicePlan::Wait { release: false, request: false };

    fn temporal() -> TimeSlice {
        TimeSlice::new(TimeSharing::Temporal(Quantum::new(10, 100)))
    }

    /// A slice since 0 for which a peer waits.
    fn held() -> TimeSlice {
        let mut slice = temporal();
        slice.request(Nanos(0));
        assert_eq!(slice.on_granted(Nanos(0), 7), Some(Nanos(0)));
        slice.on_requested(7);
        slice
    }

    /// The plan for a step that takes 50.
    fn plan(slice: &TimeSlice, now: u64, need: SliceNeed) -> SlicePlan {
        slice.plan(Nanos(now), need, |_| 50)
    }

    #[test]
    fn tenant_without_slices_runs_alone_always_and_next_to_others_while_it_has_work() {
        let idle = SliceNeed { has_work: false, ..READY };
        for (sharing, without_work) in
            [(TimeSharing::Exclusive, SlicePlan::Run), (TimeSharing::Spatial, STOP)]
        {
            let slice = TimeSlice::new(sharing);
            assert_eq!([READY, idle].map(|need| plan(&slice, 0, need)), [SlicePlan::Run, without_work]);
            assert!(slice.is_held());
        }
    }

    #[test]
    fn slice_is_requested_once_and_only_for_work_that_an_engine_can_do() {
        let mut slice = temporal();
        let request = SlicePlan::Wait { release: false, request: true };
        assert_eq!(plan(&slice, 0, READY), request);
        assert_eq!(plan(&slice, 0, SliceNeed { has_engine: false, ..READY }), STOP);
        assert_eq!(plan(&slice, 0, SliceNeed { has_work: false, ..READY }), STOP);
        slice.request(Nanos(0));
        assert_eq!((plan(&slice, 0, READY), slice.is_held()), (STOP, false));
    }

    #[test]
    fn slice_ends_at_the_last_boundary_whose_step_fits() {
        let mut slice = held();
        slice.on_step();
        let release = SlicePlan::Wait { release: true, request: true };
        assert_eq!([50, 51].map(|now| plan(&slice, now, READY)), [SlicePlan::Run, release]);
        assert_eq!((slice.release(), slice.held_epoch()), (Some(Nanos(0)), None));
        assert_eq!(slice.release(), None);
    }

    #[test]
    fn first_step_runs_after_the_quantum_unless_it_cannot_begin() {
        let mut slice = held();
        assert_eq!(plan(&slice, 200, READY), SlicePlan::RunExpired);
        let blocked = SliceNeed { is_ready: false, ..READY };
        assert_eq!(plan(&slice, 200, blocked), SlicePlan::Wait { release: true, request: true });
        slice.expire();
        slice.on_step();
        assert!(!slice.is_expired(), "the step has begun");
    }

    #[test]
    fn events_of_another_epoch_change_nothing() {
        let mut slice = held();
        assert_eq!((slice.on_taken_over(6), slice.held_epoch()), (None, Some(7)));
        assert_eq!((slice.on_granted(Nanos(3), 8), slice.held_epoch()), (None, Some(7)));
        assert_eq!((slice.on_taken_over(7), slice.held_epoch()), (Some(Nanos(0)), None));
    }
}
