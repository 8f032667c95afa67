//! The stack of contexts of each thread. Its top is the current context.

use std::cell::RefCell;

thread_local! {
    /// Numbers of contexts.
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of this thread's current context; 0: none.
pub fn current() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Makes a context current on this thread in place of the current one; 0 only removes that.
pub fn set_current(context: usize) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if context != 0 {
            stack.push(context);
        }
    });
}

/// Makes a context current on this thread until it is popped.
pub fn push_current(context: usize) {
    STACK.with_borrow_mut(|stack| stack.push(context));
}

/// Removes the current context, so that the one before is current again.
pub fn pop_current() -> Option<usize> {
    STACK.with_borrow_mut(Vec::pop)
}
