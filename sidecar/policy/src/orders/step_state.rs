//! The step under way: whether there is one, since when, and whether it must be repeated for a new engine.

use crate::ids::Nanos;

/// Where the tenant is between two step boundaries.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepState {
    /// Time of the event that is being handled.
    now: Nanos,
    /// Begin of the step under way, or of the last one.
    began: Nanos,
    running: bool,
    /// The step lost its engine and begins again: what its lease names may not move until then.
    interrupted: bool,
    /// The step under way, or the last one, began while weights were loading.
    waited_for_weights: bool,
}

impl StepState {
    /// An event is being handled.
    pub fn set_now(&mut self, now: Nanos) {
        self.now = now;
    }

    /// Time of the event that is being handled.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The begin that copies are timed from: of the step under way, or now for the next one.
    pub fn timed_from(&self) -> Nanos {
        if self.running { self.began } else { self.now }
    }

    /// A step runs.
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// A step lost its engine and has not begun again.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// A step runs, or begins again for a new engine.
    pub fn holds_lease(&self) -> bool {
        self.running || self.interrupted
    }

    /// Whether the step under way, or the last one, began while weights were loading.
    pub fn waited_for_weights(&self) -> bool {
        self.waited_for_weights
    }

    pub fn begin(&mut self, weights_are_loading: bool) {
        (self.running, self.interrupted) = (true, false);
        self.began = self.now;
        self.waited_for_weights = weights_are_loading;
    }

    /// # Panics
    /// If no step runs.
    pub fn finish(&mut self) {
        assert!(self.running, "a step that ends has begun");
        self.running = false;
    }

    /// A step boundary: no step waits to begin again.
    pub fn on_boundary(&mut self) {
        self.interrupted = false;
    }

    pub fn on_engine_lost(&mut self) {
        self.interrupted |= self.running;
        self.running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_step_holds_its_lease_until_it_begins_again_or_a_boundary() {
        let mut step = StepState::default();
        step.on_engine_lost();
        assert!(!step.holds_lease(), "no step ran");
        step.begin(false);
        step.on_engine_lost();
        assert!(!step.is_running() && step.holds_lease());
        step.begin(false);
        assert!(step.is_running() && !step.is_interrupted());
        step.on_engine_lost();
        step.on_boundary();
        assert!(!step.holds_lease());
    }

    #[test]
    fn copies_are_timed_from_the_step_under_way_or_from_now() {
        let mut step = StepState::default();
        step.set_now(Nanos(5));
        step.begin(true);
        step.set_now(Nanos(9));
        assert_eq!((step.timed_from(), step.waited_for_weights()), (Nanos(5), true));
        step.finish();
        assert_eq!(step.timed_from(), Nanos(9));
    }
}
