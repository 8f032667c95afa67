//! Faults that tests switch on in a ledger: a look at every write, and each of its promises broken in turn.

use std::fmt;
use std::sync::Arc;

/// Called before a write.
pub type WriteHook = Arc<dyn Fn() + Send + Sync>;

/// What goes wrong in one process's use of the ledger. The default: nothing.
#[derive(Clone, Default)]
pub struct LedgerFaults {
    /// Called before every write of the ledger file, so that a test can end the process between any two of them.
    pub before_write: Option<WriteHook>,
    /// `reserve` checks without the lock.
    pub unlocked_reserve: bool,
    /// `ask_share` checks without the lock.
    pub unlocked_share: bool,
    /// `earmark` subtracts first and writes the earmark then, and nothing keeps others from seeing the gap.
    pub subtract_first: bool,
    /// `earmark` only subtracts.
    pub lose_earmark: bool,
    /// The turn is taken whoever holds it.
    pub unlocked_slice: bool,
    /// The turn is taken whoever is next.
    pub ignore_queue: bool,
    /// A turn is taken over although its deadline is not over.
    pub ignore_deadline: bool,
    /// The time in which this process was itself stopped counts as time in which it saw that a turn is overdue.
    pub count_own_pauses: bool,
    /// A participant believes that it has the turn although another epoch is in force.
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
