//! The current context of each thread.

use std::cell::Cell;

thread_local! {
    /// Number of this thread's current context; 0: none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Returns the number of this thread's current context; 0: none.
pub fn current() -> usize {
    CURRENT.get()
}

/// Makes a context current on this thread.
pub fn set_current(context: usize) {
    CURRENT.set(context);
}
