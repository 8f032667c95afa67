//! Why a lender denies a request. The lender decides from its own state, which is newer than the borrower's view of it.

use crate::reason::Reason;

/// The reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoanDenied {
    /// The lender is active, and its priority is above the borrower's, it needs its memory, or only its layers could be
    /// lent.
    Active,
    /// The lender's layers were all restored too short a time ago.
    MinResidence {
        /// The rest of the minimum residence, nanoseconds.
        left_ns: u64,
    },
    /// The cap on remapped layers is reached, and no other memory is free.
    AtCap,
    /// The lender holds no more than its floor.
    AtFloor,
    /// The lender has no memory that can be freed now.
    Nothing,
    /// The lender's memory is changing: it loads, suspends, wakes, or cannot free what it promised. Also used when the
    /// GPU ledger has no free entry for the loan, and for a request that was answered before.
    Busy,
    /// The lender's partition is fixed, so it never lends.
    NotTraded,
}

impl LoanDenied {
    /// Returns the reason under which the lender counts the denial.
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
