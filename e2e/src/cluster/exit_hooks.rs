//! What is to be done when the process ends: values in statics are never dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type ExitHook = Box<dyn FnOnce() + Send>;

static EXIT_HOOKS: Mutex<Vec<ExitHook>> = Mutex::new(Vec::new());
/// Something does not hold that must hold at the end.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Status of a test binary of which a test failed.
const FAILURE: i32 = 101;

/// Calls `act` when this process exits in an orderly way, which is how test harnesses end; later ones first.
pub fn at_exit(act: impl FnOnce() + Send + 'static) {
    let mut acts = EXIT_HOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    if acts.is_empty() {
        // SAFETY: `run` is a plain function of this program, which stays loaded to its end.
        let status = unsafe { libc::atexit(run) };
        assert_eq!(status, 0, "atexit takes at least 32 functions");
    }
    acts.push(Box::new(act));
}

/// As [`at_exit`], for what no test of a binary can see, since it is about all of them: where it does not hold, its words are
/// printed, and the process ends as if a test had failed.
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
        // SAFETY: it ends the process and does nothing before. `exit` is at work already, and must not be called again.
        unsafe { libc::_exit(FAILURE) }
    }
}
