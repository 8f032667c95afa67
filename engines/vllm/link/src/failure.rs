//! Results of the C functions: codes, and the text of the last failure of a thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard};

use sluice_link::error::LinkError;
use sluice_memory::MappingError;
use thiserror::Error;

/// The call has done what it should.
pub const SLUICE_OK: i32 = 0;
/// Nothing happened in time. The link is usable.
pub const SLUICE_TIMEOUT: i32 = 1;
/// The sidecar has closed the link or exited.
pub const SLUICE_CLOSED: i32 = 2;
/// The sidecar refuses this engine, or an order was refused and nothing changed.
pub const SLUICE_REFUSED: i32 = 3;
/// The weights of a later pass are in the slot already, so the result of this pass is worthless.
pub const SLUICE_OVERTAKEN: i32 = 4;
/// The protocol was violated, or a system call failed. The link is unusable.
pub const SLUICE_ERROR: i32 = -1;
/// An argument or JSON is not valid. Nothing was sent, and the link is usable.
pub const SLUICE_INVALID: i32 = -2;
/// The call does not fit the state of the link.
pub const SLUICE_STATE: i32 = -3;
/// A change of mappings failed in the middle. The process must exit before it touches a range.
pub const SLUICE_TORN: i32 = -4;
/// A bug of this library. The process must exit.
pub const SLUICE_PANIC: i32 = -5;

/// Why a call failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("nothing happened in time")]
    Timeout,
    #[error("the sidecar has closed the link")]
    Closed,
    #[error("{0}")]
    Refused(String),
    #[error("layer {layer} holds the weights of a later pass than {pass}")]
    Overtaken { layer: u32, pass: u64 },
    #[error(transparent)]
    Link(LinkError),
    #[error("{0}")]
    Memory(String),
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    State(String),
    #[error("{0}")]
    Torn(String),
    #[error("a call has panicked: {0}")]
    Panicked(String),
}

impl Failure {
    fn code(&self) -> i32 {
        match self {
            Failure::Timeout => SLUICE_TIMEOUT,
            Failure::Closed => SLUICE_CLOSED,
            Failure::Refused(_) => SLUICE_REFUSED,
            Failure::Overtaken { .. } => SLUICE_OVERTAKEN,
            Failure::Link(_) | Failure::Memory(_) => SLUICE_ERROR,
            Failure::Invalid(_) => SLUICE_INVALID,
            Failure::State(_) => SLUICE_STATE,
            Failure::Torn(_) => SLUICE_TORN,
            Failure::Panicked(_) => SLUICE_PANIC,
        }
    }
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        match error {
            LinkError::Closed => Failure::Closed,
            LinkError::Timeout(_) => Failure::Timeout,
            LinkError::SetupRefused(_) => Failure::Refused(error.to_string()),
            // The checks of sizes come before anything is sent.
            LinkError::Setup(error) => Failure::Invalid(error.to_string()),
            other => Failure::Link(other),
        }
    }
}

impl From<MappingError> for Failure {
    fn from(error: MappingError) -> Self {
        match error {
            MappingError::RollbackFailed { .. } => Failure::Torn(with_causes(&error)),
            other => Failure::Memory(with_causes(&other)),
        }
    }
}

/// Returns the text of an error and of what caused it.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// Locks what a call of another thread may use. After a panic of that call nothing is known of it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Failure> {
    mutex.lock().map_err(|_| Failure::Panicked("in another thread".to_owned()))
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a C function: no panic leaves it, and a failure becomes its code and the thread's last error.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let result =
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Failure::Panicked(text(&*panic))));
    match result {
        Ok(()) => SLUICE_OK,
        Err(failure) => {
            keep(&failure.to_string());
            failure.code()
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    words
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned())
}

fn keep(text: &str) {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    let text = CString::new(bytes).expect("zero bytes were removed");
    // Fails only while the thread ends, when no call asks for the text.
    let _ = LAST.try_with(|last| last.replace(Some(text)));
}

/// Returns the text of the last failure in this thread. It is valid until the next failure in this thread.
pub(crate) fn last_error() -> *const c_char {
    const NONE: &CStr = c"";
    let kept = LAST.try_with(|last| last.borrow().as_ref().map(|text| text.as_ptr()));
    kept.ok().flatten().unwrap_or(NONE.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the text is valid until the next failure in this thread.
        unsafe { CStr::from_ptr(last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_code_and_a_text_of_its_thread() {
        assert_eq!(call(|| panic!("number {}", 7)), SLUICE_PANIC);
        assert_eq!(last(), "a call has panicked: number 7");
        let other = std::thread::spawn(last).join().unwrap();
        assert_eq!(other, "", "each thread has its own");
        assert_eq!(call(|| Ok(())), SLUICE_OK);
        assert_eq!(call(|| Err(Failure::Invalid("a\0b".to_owned()))), SLUICE_INVALID);
        assert_eq!(last(), "ab");
    }

    #[test]
    fn a_lock_that_a_panic_has_left_is_refused() {
        let shared = Mutex::new(1);
        let panics = || {
            let _held = lock(&shared)?;
            panic!("while it is held")
        };
        assert_eq!(call(panics), SLUICE_PANIC);
        assert_eq!(call(|| lock(&shared).map(drop)), SLUICE_PANIC);
    }
}
