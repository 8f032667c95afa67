//! Runs functions at process exit: values in statics are never dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type ExitHook = Box<dyn FnOnce() + Send>;

static EXIT_HOOKS: Mutex<Vec<ExitHook>> = Mutex::new(Vec::new());
/// Set when a check at exit fails.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Exit status of a test binary with a failed test.
const FAILURE: i32 = 101;

/// Calls `act` when this process exits normally, as test harnesses do. The last registered function runs first.
pub fn at_exit(act: impl FnOnce() + Send + 'static) {
    let mut acts = EXIT_HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    if acts.is_empty() {
        // SAFETY: `run` is a plain function of this program, which stays loaded to its end.
        let status = unsafe { libc::atexit(run) };
        assert_eq!(status, 0, "atexit takes at least 32 functions");
    }
    acts.push(Box::new(act));
}

/// Same as [`at_exit`], for a check over all tests of a binary. If it fails, its message is printed and the process
/// exits as after a failed test.
pub fn check_at_exit(check: impl FnOnce() -> Result<(), String> + Send + 'static) {
    at_exit(move || {
        if let Err(words) = check() {
            eprintln!("FAILED: {words}");
            FAILED.store(true, Ordering::Relaxed);
        }
    });
}

extern "C" fn run() {
    let acts = std::mem::take(&mut *EXIT_HOOKS.lock().unwrap_or_else(PoisonError::into_inner));
    acts.into_iter().rev().for_each(|act| act());
    if FAILED.load(Ordering::Relaxed) {
        // SAFETY: `_exit` ends the process at once and runs no handlers. `exit` is already running and must not be
        // called again.
        unsafe { libc::_exit(FAILURE) }
    }
}
