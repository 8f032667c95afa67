//! The transition (chunks that change their owner) that is decided and has not happened: its target, the back-off after
//! a failed one, and the remaps that were declined. The caller counts steps and boundaries and passes the counts: this
//! file reads no clock.

pub mod step;

use crate::orders::Orders;
use crate::reason::Reason;
use crate::revert::{Hysteresis, Pressure};
use crate::step_model::Layout;

/// Boundaries after which a transition that was given up is tried again. Each failure of the backend in a row doubles
/// them.
pub const RETRY_BOUNDARIES: u64 = 16;

/// Failures in a row that still double the back-off.
const MAX_DOUBLINGS: u32 = 6;

/// Steps for which a declined remap is not considered again.
pub const DECLINE_MEMORY_STEPS: u64 = 16;

/// The target of a transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransitionTarget {
    /// This layout of moving layers. The chunks that it frees become KV.
    Layout(Layout),
    /// This many activation chunks. KV gives or takes the difference.
    Activation(u32),
    /// This many free chunks more for KV.
    KvChunks(u32),
    /// KV chunks and layers without chunks.
    Vacate {
        /// KV chunks.
        kv_chunks: u32,
        /// Layers, counted from the last one that has chunks of its own.
        layers: u16,
    },
}

impl TransitionTarget {
    /// Returns whether weights lose or gain chunks: then no copy may be under way.
    pub fn moves_weights(&self) -> bool {
        matches!(self, TransitionTarget::Layout(_) | TransitionTarget::Vacate { layers: 1.., .. })
    }
}

/// A transition that was decided and has not happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Its target.
    pub target: TransitionTarget,
    /// Why it was decided.
    pub reason: Reason,
}

impl Transition {
    /// Returns whether it goes on before the next step although blocks were moved for it since the last one.
    fn is_urgent(&self) -> bool {
        matches!(self.target, TransitionTarget::Activation(_)) || self.reason.must_happen()
    }
}

/// The two remaps that can be declined, each remembered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemapKind {
    /// Within the stall that a step may pay.
    Hidden,
    /// With a longer stall.
    Stalling,
}

/// The state of transitions: at most one is under way. It says whether that one goes on, and whether another may be
/// decided.
#[derive(Clone, Debug)]
pub struct TransitionState {
    transition: Option<Transition>,
    /// Calm boundaries since the last transition.
    hysteresis: Hysteresis,
    /// Transitions that the backend failed in a row.
    failures: u32,
    /// No transition that can wait is tried before this boundary.
    retry_at: u64,
    /// Of each [`RemapKind`]: the last one that was declined, at which step, and how many chunks it was to give.
    declined: [Option<(u64, u32)>; 2],
    /// Steps that had ended when blocks were last moved.
    moved_at_step: Option<u64>,
    /// Steps that had ended when own layers were last taken for KV.
    remapped_at_step: Option<u64>,
}

impl TransitionState {
    /// Creates the state in which nothing is decided.
    pub fn new(hysteresis: Hysteresis) -> TransitionState {
        TransitionState {
            transition: None,
            hysteresis,
            failures: 0,
            retry_at: 0,
            declined: [None; 2],
            moved_at_step: None,
            remapped_at_step: None,
        }
    }

    /// Returns the transition that is decided and has not happened.
    pub fn current(&self) -> Option<&Transition> {
        self.transition.as_ref()
    }

    /// Sets the transition that is decided; `None` = none is.
    pub fn decide(&mut self, transition: Option<Transition>) {
        self.transition = transition;
    }

    /// Returns whether the transition takes another action at a boundary after `step` steps. The budget of compaction
    /// is per step: while requests have KV (`is_serving`), a transition that has moved blocks waits for the next step,
    /// unless it is urgent.
    pub fn is_due(&self, step: u64, is_serving: bool) -> bool {
        let moved = is_serving && self.moved_at_step == Some(step);
        self.transition.as_ref().is_some_and(|transition| !moved || transition.is_urgent())
    }

    /// Notes that blocks move for the transition after `step` steps.
    pub fn moves_layer_blocks(&mut self, step: u64) {
        self.moved_at_step = Some(step);
    }

    /// Gives the transition up. It may be decided again after the back-off.
    pub fn give_up(&mut self, boundary: u64) {
        self.transition = None;
        self.hysteresis.reset();
        self.back_off(boundary);
    }

    /// Ends a transition that has happened. `new_layout` is its reason if it came with a new layout, else `None`.
    pub fn applied(&mut self, new_layout: Option<Reason>, step: u64) {
        if let Some(reason) = new_layout {
            self.remapped_at_step = reason.takes_layers().then_some(step);
        }
        self.transition = None;
        self.hysteresis.reset();
        self.forget_declined();
        self.succeeded();
    }

    /// Counts a failure of the backend, in a transition or a transfer: the back-off grows.
    pub fn failed(&mut self, boundary: u64) {
        self.failures += 1;
        self.back_off(boundary);
    }

    /// As [`TransitionState::failed`], at this boundary; the failure is counted among the decisions.
    pub fn on_backend_failed(&mut self, orders: &mut Orders) {
        orders.count(Reason::BackendFailed);
        self.failed(orders.boundaries());
    }

    /// Counts failures from 0 again: the backend has carried out an order.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    fn back_off(&mut self, boundary: u64) {
        self.retry_at = boundary + (RETRY_BOUNDARIES << self.failures.min(MAX_DOUBLINGS));
    }

    /// Returns whether a transition that was given up may be tried again.
    pub fn may_retry(&self, boundary: u64) -> bool {
        boundary >= self.retry_at
    }

    /// Returns whether the backend failed a transition within the back-off: no other transition is tried now. Reclaim
    /// steps without a transition go on.
    pub fn in_backoff(&self, boundary: u64) -> bool {
        self.failures > 0 && !self.may_retry(boundary)
    }

    /// Ends the back-off.
    #[cfg(feature = "testing")]
    pub fn retry_now(&mut self, boundary: u64) {
        self.retry_at = boundary;
    }

    /// Returns the layers to bring back at this boundary, usually 0, and the count of calm boundaries after it
    /// ([`Hysteresis::after`]).
    pub fn layers_to_revert(&self, patience_steps: u32, pressure: &Pressure) -> (u16, Hysteresis) {
        self.hysteresis.after(patience_steps, pressure)
    }

    /// Records the count of calm boundaries.
    pub fn record_calm(&mut self, hysteresis: Hysteresis) {
        self.hysteresis = hysteresis;
    }

    /// Returns whether own layers were taken for KV and no step has ended since.
    pub fn is_remapped(&self, step: u64) -> bool {
        self.remapped_at_step == Some(step)
    }

    /// Remembers that a remap for this many chunks was declined after `step` steps.
    pub fn decline(&mut self, kind: RemapKind, step: u64, chunks: u32) {
        self.declined[kind as usize] = Some((step, chunks));
    }

    /// Returns whether such a remap for as many chunks or fewer was declined within the last steps.
    pub fn is_declined(&self, kind: RemapKind, step: u64, chunks: u32) -> bool {
        self.declined[kind as usize]
            .is_some_and(|(at, least)| step < at + DECLINE_MEMORY_STEPS && chunks >= least)
    }

    /// Forgets what was declined: memory or shares have changed, so it is considered again.
    pub fn forget_declined(&mut self) {
        self.declined = [None; 2];
    }

    /// Returns the words for a digest: the boundary of the next try, failures in a row, the step of the last move of
    /// blocks, and that of the last remap (`u64::MAX` = none). The caller adds whether a transition is decided.
    pub fn digest_words(&self) -> [u64; 4] {
        let step = |step: Option<u64>| step.unwrap_or(u64::MAX);
        [self.retry_at, self.failures.into(), step(self.moved_at_step), step(self.remapped_at_step)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Room for one layer of 100.
    const ROOMY: Pressure = Pressure { spare_bytes: 100, used_bytes: 0, layer_bytes: 100, alpha: 1 };

    fn state() -> TransitionState {
        TransitionState::new(Hysteresis::new(4, 0))
    }

    fn decided(target: TransitionTarget, reason: Reason) -> TransitionState {
        let mut transitions = state();
        transitions.decide(Some(Transition { target, reason }));
        transitions
    }

    #[test]
    fn declined_remap_is_reconsidered_later_or_smaller() {
        let mut transitions = state();
        assert!(!transitions.is_declined(RemapKind::Hidden, 7, 3), "nothing was");
        transitions.decline(RemapKind::Hidden, 7, 3);
        let declined = |step, chunks| transitions.is_declined(RemapKind::Hidden, step, chunks);
        assert_eq!([2, 3, 4].map(|chunks| declined(7, chunks)), [false, true, true], "less may do");
        assert_eq!([22, 23].map(|step| declined(step, 3)), [true, false]);
        assert!(!transitions.is_declined(RemapKind::Stalling, 7, 3), "the other kind has another allowance");
    }

    #[test]
    fn transition_clears_declined_remaps() {
        let mut transitions = state();
        transitions.decline(RemapKind::Stalling, 7, 3);
        transitions.applied(None, 7);
        assert!(!transitions.is_declined(RemapKind::Stalling, 7, 3));
    }

    #[test]
    fn the_back_off_doubles_with_each_failure_up_to_a_bound() {
        let mut transitions = state();
        let waits = [1, 2, 3, 4, 5, 6, 7, 8].map(|_| {
            transitions.failed(100);
            (100..).find(|boundary| transitions.may_retry(*boundary)).map(|boundary| boundary - 100)
        });
        assert_eq!(waits, [32, 64, 128, 256, 512, 1024, 1024, 1024].map(Some));
    }

    #[test]
    fn transition_without_space_waits_without_failure() {
        let mut transitions = decided(TransitionTarget::KvChunks(1), Reason::FreeChunks);
        transitions.give_up(100);
        assert_eq!(transitions.current(), None);
        assert_eq!([115, 116].map(|boundary| transitions.may_retry(boundary)), [false, true]);
        assert!(!transitions.in_backoff(100), "other transitions may be tried");
    }

    #[test]
    fn the_back_off_ends_with_its_boundary_or_with_a_success() {
        let mut transitions = state();
        transitions.failed(0);
        assert_eq!([31, 32].map(|boundary| transitions.in_backoff(boundary)), [true, false]);
        transitions.succeeded();
        assert!(!transitions.in_backoff(0));
        assert!(!transitions.may_retry(0), "a transition that can wait still does");
    }

    #[test]
    fn transition_after_moves_waits_for_step() {
        let mut transitions = decided(TransitionTarget::KvChunks(1), Reason::FreeChunks);
        assert!(transitions.is_due(5, true), "nothing has moved");
        transitions.moves_layer_blocks(5);
        assert_eq!(
            [(5, true), (5, false), (6, true)].map(|(s, on)| transitions.is_due(s, on)),
            [false, true, true]
        );
    }

    #[test]
    fn activations_and_debts_do_not_wait_for_the_next_step() {
        let vacate = TransitionTarget::Vacate { kv_chunks: 1, layers: 0 };
        for (target, reason, due) in [
            (TransitionTarget::Activation(1), Reason::Inflate, true),
            (vacate.clone(), Reason::Repay, true),
            (vacate, Reason::Lend, false),
        ] {
            let mut transitions = decided(target, reason);
            transitions.moves_layer_blocks(5);
            assert_eq!(transitions.is_due(5, true), due, "{reason:?}");
        }
        assert!(!state().is_due(5, false), "nothing is decided");
    }

    #[test]
    fn only_layouts_taking_layers_count_as_remap() {
        let mut transitions = state();
        transitions.applied(Some(Reason::RemapOwn), 3);
        assert_eq!([3, 4].map(|step| transitions.is_remapped(step)), [true, false]);
        transitions.applied(None, 3);
        assert!(transitions.is_remapped(3), "the layout is the same");
        transitions.applied(Some(Reason::Revert), 3);
        assert!(!transitions.is_remapped(3));
    }

    #[test]
    fn transition_resets_steady_boundaries() {
        let mut transitions = state();
        let boundary = |transitions: &mut TransitionState| {
            let (layers, calm) = transitions.layers_to_revert(4, &ROOMY);
            transitions.record_calm(calm);
            layers
        };
        let calm = |transitions: &mut TransitionState| {
            (1..).find(|_| boundary(transitions) > 0).expect("layers come back")
        };
        assert_eq!(calm(&mut transitions), 4);
        boundary(&mut transitions);
        transitions.applied(None, 0);
        assert_eq!(calm(&mut transitions), 4);
        assert_eq!(
            [1, 2].map(|_| transitions.layers_to_revert(1, &ROOMY).0),
            [1, 1],
            "asking counts no boundary"
        );
        boundary(&mut transitions);
        transitions.give_up(0);
        assert_eq!(calm(&mut transitions), 4);
    }

    #[test]
    fn a_digest_covers_the_next_try_failures_moves_and_remaps() {
        let mut transitions = state();
        assert_eq!(transitions.digest_words(), [0, 0, u64::MAX, u64::MAX]);
        transitions.moves_layer_blocks(8);
        transitions.applied(Some(Reason::Wake), 9);
        transitions.failed(10);
        assert_eq!(transitions.digest_words(), [42, 1, 8, 9]);
    }

    #[test]
    fn copies_delay_only_moving_weights() {
        let moving = [
            TransitionTarget::Layout(Layout::resident()),
            TransitionTarget::Vacate { kv_chunks: 0, layers: 1 },
            TransitionTarget::Vacate { kv_chunks: 1, layers: 0 },
            TransitionTarget::Activation(1),
            TransitionTarget::KvChunks(1),
        ];
        assert_eq!(moving.map(|target| target.moves_weights()), [true, true, false, false, false]);
    }
}
