//! Faults that tests inject into a ledger: a hook before every write, and one switch per guarantee to break.

use std::fmt;
use std::sync::Arc;

/// Callback before a write.
pub type WriteHook = Arc<dyn Fn() + Send + Sync>;

/// Faults of one process's use of the ledger. The default has none.
#[derive(Clone, Default)]
pub struct LedgerFaults {
    /// Runs before every write of the ledger file, so that a test can end the process between any two writes.
    pub before_write: Option<WriteHook>,
    /// `reserve` checks without the guard.
    pub unlocked_reserve: bool,
    /// `raise_share` checks without the guard.
    pub unlocked_share: bool,
    /// `earmark` subtracts before it writes the earmark, and does so without the guard.
    pub subtract_first: bool,
    /// `earmark` only subtracts.
    pub lose_earmark: bool,
    /// A participant takes the time slice even if another holds it.
    pub unlocked_slice: bool,
    /// A participant takes the time slice even if another is next.
    pub ignore_queue: bool,
    /// A participant takes over a time slice before its deadline has passed.
    pub ignore_deadline: bool,
    /// Time during which this process was stopped counts as observed overdue time.
    pub count_own_pauses: bool,
    /// A participant assumes that it holds the time slice even if another epoch is current.
    pub ignore_fence: bool,
}

impl LedgerFaults {
    pub(super) fn before_write(&self) {
        if let Some(tap) = &self.before_write {
            tap();
        }
    }
}

impl fmt::Debug for LedgerFaults {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("LedgerFaults")
            .field("before_write", &self.before_write.is_some())
            .field("unlocked_reserve", &self.unlocked_reserve)
            .field("unlocked_share", &self.unlocked_share)
            .field("subtract_first", &self.subtract_first)
            .field("lose_earmark", &self.lose_earmark)
            .field("unlocked_turn", &self.unlocked_slice)
            .field("ignore_line", &self.ignore_queue)
            .field("ignore_deadline", &self.ignore_deadline)
            .field("count_own_stops", &self.count_own_pauses)
            .field("ignore_fence", &self.ignore_fence)
            .finish()
    }
}
