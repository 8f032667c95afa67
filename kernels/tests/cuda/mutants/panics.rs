//! Panics that are the expected result: caught, and not printed.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a case. Returns the message of its panic, or nothing if there was none.
pub fn message(run: impl FnOnce()) -> Option<String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                others(info);
            }
        }));
    });
    EXPECTED.set(true);
    // What the case leaves half done is its own device, which is dropped.
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    EXPECTED.set(false);
    let payload = result.err()?;
    let text = payload.downcast_ref::<String>().cloned();
    Some(text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
}
