//! How long memory admits no request after it refused one.

use super::limits::ADMISSION_HOLD_STEPS;

/// Steps without admissions, or without some of them. A request that ends lifts both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AdmissionHold {
    /// First step that may admit requests again. Under deadline scheduling the hold applies only to requests that do
    /// not fit as they are.
    until: u64,
    /// First step that may again admit more than one request that does not fit at one boundary.
    extra_until: u64,
}

impl AdmissionHold {
    /// Memory refused an admission of the step after `step` steps.
    pub fn refuse(&mut self, step: u64) {
        self.until = step + ADMISSION_HOLD_STEPS;
    }

    /// Memory refused admissions beyond those that fit.
    pub fn refuse_extra(&mut self, step: u64) {
        self.extra_until = step + ADMISSION_HOLD_STEPS;
    }

    /// Admits requests again: memory is free.
    pub fn lift(&mut self) {
        *self = AdmissionHold::default();
    }

    /// Whether no request is admitted after `step` steps. Never for a request that would run `alone`: no other could
    /// end then, so requests that were refused while memory was moving are retried.
    pub fn holds(&self, step: u64, alone: bool) -> bool {
        !alone && step < self.until
    }

    /// Whether no request is admitted next to one that does not fit.
    pub fn holds_extra(&self, step: u64) -> bool {
        step < self.extra_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_holds_admissions_for_a_while_unless_a_request_ends() {
        let mut hold = AdmissionHold::default();
        assert!(!hold.holds(0, false));
        hold.refuse(7);
        assert_eq!([7, 22, 23].map(|step| hold.holds(step, false)), [true, true, false]);
        assert!(!hold.holds(7, true), "a request may run alone");
        assert!(!hold.holds_extra(7), "the other limit stands by itself");
        hold.refuse_extra(7);
        assert_eq!([22, 23].map(|step| hold.holds_extra(step)), [true, false]);
        hold.lift();
        assert!(!hold.holds(7, false) && !hold.holds_extra(7));
    }
}
