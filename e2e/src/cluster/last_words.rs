//! What is to be done when the process ends: values in statics are never dropped.

use std::sync::{Mutex, PoisonError};

type Act = Box<dyn FnOnce() + Send>;

static ACTS: Mutex<Vec<Act>> = Mutex::new(Vec::new());

/// Calls `act` when this process exits in an orderly way, which is how test harnesses end; later ones first.
pub fn at_exit(act: impl FnOnce() + Send + 'static) {
    let mut acts = ACTS.lock().unwrap_or_else(PoisonError::into_inner);
    if acts.is_empty() {
        // SAFETY: `run` is a plain function of this program, which stays loaded to its end.
        let status = unsafe { libc::atexit(run) };
        assert_eq!(status, 0, "atexit takes at least 32 functions");
    }
    acts.push(Box::new(act));
}

extern "C" fn run() {
    let acts = std::mem::take(&mut *ACTS.lock().unwrap_or_else(PoisonError::into_inner));
    acts.into_iter().rev().for_each(|act| act());
}
