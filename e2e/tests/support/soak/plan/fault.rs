//! Faults of a soak: processes are killed or stopped.

use std::time::Duration;

use super::super::rng::Rng;
use super::gpu::Gpu;

/// Time before the first fault, milliseconds.
const QUIET_PERIOD: u64 = 1_000;
/// Minimum interval between stops that outlast a loan of default length, milliseconds.
const RARE: u64 = 25_000;
/// Minimum load with such a stop, milliseconds.
const WORTH: u64 = 30_000;
/// Maximum length of a short loan, milliseconds: stops that outlast it may occur at any time.
const SHORT_LOAN: u64 = 2_000;

/// One of a tenant's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The sidecar.
    Sidecar,
    /// The process that computes.
    Engine,
}

/// Target of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultTarget {
    /// This one.
    Tenant(usize),
    /// The tenant that has borrowed most; if none has soon: this one.
    Borrower(usize),
    /// The tenant that has lent most; if none has soon: this one.
    Lender(usize),
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It is killed.
    Kill,
    /// It is stopped for this time.
    Stop(Duration),
}

/// A planned fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFault {
    /// After the start.
    pub at: Duration,
    /// Tenant.
    pub target: FaultTarget,
    /// Process.
    pub side: Side,
    /// Kind of fault.
    pub kind: FaultKind,
}

/// Draws the faults of one plan.
struct Draw<'a> {
    dice: &'a mut Rng,
    tenants: usize,
    loan_ms: u64,
    length_ms: u64,
    /// Earliest time of a stop that outlasts a loan.
    long_from: u64,
}

pub(super) fn planned_faults(
    dice: &mut Rng,
    tenants: usize,
    gpu: &Gpu,
    length: Duration,
) -> Vec<PlannedFault> {
    let (length_ms, loan_ms) = (length.as_millis() as u64, gpu.loan_ms());
    let mut draw = Draw { dice, tenants, loan_ms, length_ms, long_from: 0 };
    let mut faults = draw.sure();
    let mut at = QUIET_PERIOD;
    loop {
        at += draw.dice.between(100, 3_000);
        if at >= length_ms {
            faults.sort_by_key(|fault| fault.at);
            return faults;
        }
        faults.push(draw.one(at));
    }
}

impl Draw<'_> {
    /// Returns the faults of every soak: both sides of a loan outlast it, and each process is killed.
    fn sure(&mut self) -> Vec<PlannedFault> {
        let outlasts = self.long(QUIET_PERIOD);
        let shorter = if self.loan_ms <= SHORT_LOAN { outlasts } else { self.short() };
        let mut all = vec![
            self.around(1_500, FaultTarget::Borrower, Side::Sidecar, outlasts),
            self.around(4_000, FaultTarget::Borrower, Side::Engine, FaultKind::Kill),
            self.around(5_500, FaultTarget::Lender, Side::Sidecar, shorter),
            self.around(7_000, FaultTarget::Lender, Side::Sidecar, FaultKind::Kill),
        ];
        all.retain(|fault| fault.at.as_millis() < u128::from(self.length_ms));
        all
    }

    fn around(
        &mut self,
        at: u64,
        whom: fn(usize) -> FaultTarget,
        side: Side,
        kind: FaultKind,
    ) -> PlannedFault {
        let who = self.dice.between(0, self.tenants as u64) as usize;
        let at = Duration::from_millis(at + self.dice.between(0, 800));
        PlannedFault { at, target: whom(who), side, kind }
    }

    fn one(&mut self, at: u64) -> PlannedFault {
        let (side, kind) = match self.dice.between(0, 100) {
            0..30 => (Side::Engine, FaultKind::Kill),
            30..50 => (Side::Sidecar, FaultKind::Kill),
            50..65 => (Side::Engine, self.short()),
            65..80 => (Side::Sidecar, self.short()),
            80..88 => (Side::Engine, self.long(at)),
            _ => (Side::Sidecar, self.long(at)),
        };
        let who = self.dice.between(0, self.tenants as u64) as usize;
        let whom =
            self.dice.pick(&[FaultTarget::Tenant(who), FaultTarget::Borrower(who), FaultTarget::Lender(who)]);
        PlannedFault { at: Duration::from_millis(at), target: whom, side, kind }
    }

    fn short(&mut self) -> FaultKind {
        FaultKind::Stop(Duration::from_millis(self.dice.between(50, 900)))
    }

    /// Returns a stop longer than the revocation limit and, if there is time, than a loan.
    fn long(&mut self, at: u64) -> FaultKind {
        let loan = self.loan_ms;
        let worth = loan <= SHORT_LOAN || (self.length_ms >= WORTH && at >= self.long_from);
        if worth && loan > SHORT_LOAN {
            self.long_from = at + RARE;
        }
        let (least, most) = if worth { (loan + loan / 10, loan + 3_000.min(loan)) } else { (900, 2_000) };
        FaultKind::Stop(Duration::from_millis(self.dice.between(least, most)))
    }
}
