//! Why a neighbour that is asked lends nothing. It decides from its own state, which is newer than what the asker saw.

use crate::reason::Reason;

/// Why a neighbour lends nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoanDenied {
    /// It is active: its priority is above the asker's, it needs what it has itself, or nothing but its layers could go.
    Active,
    /// All its layers came back too short a time ago.
    MinResidence {
        /// The rest of that time, nanoseconds.
        left_ns: u64,
    },
    /// As many of its layers are away as may be, and nothing else is free.
    AtCap,
    /// It holds no more than its floor.
    AtFloor,
    /// It has nothing that could go now.
    Nothing,
    /// Its memory is being changed: it loads, falls asleep, wakes, or what it promised could not be vacated. Or the GPU's ledger
    /// has no entry left for its loans.
    Busy,
    /// It lends nothing ever: its partition is fixed.
    NotTraded,
}

impl LoanDenied {
    /// As what it counts at the lender.
    pub const fn reason(self) -> Reason {
        match self {
            LoanDenied::Active => Reason::RefusedActive,
            LoanDenied::MinResidence { .. } => Reason::RefusedMinResidence,
            LoanDenied::AtCap => Reason::RefusedAtCap,
            LoanDenied::AtFloor => Reason::RefusedAtFloor,
            LoanDenied::Nothing => Reason::RefusedNothing,
            LoanDenied::Busy => Reason::RefusedBusy,
            LoanDenied::NotTraded => Reason::RefusedNotTraded,
        }
    }
}
