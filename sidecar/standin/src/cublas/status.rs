//! The codes of `cublasStatus_t`, and the guard of the library's functions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::env_config::ENV_CONFIG;
use crate::injected_fault::Fault;

pub const NOT_INITIALIZED: u32 = 1;
pub const INVALID_VALUE: u32 = 7;
pub const EXECUTION_FAILED: u32 = 13;
pub const INTERNAL_ERROR: u32 = 14;
pub const NOT_SUPPORTED: u32 = 15;

/// Returns a code's name, ending with a zero byte.
pub fn name(status: u32) -> &'static [u8] {
    match status {
        0 => b"CUBLAS_STATUS_SUCCESS\0",
        NOT_INITIALIZED => b"CUBLAS_STATUS_NOT_INITIALIZED\0",
        INVALID_VALUE => b"CUBLAS_STATUS_INVALID_VALUE\0",
        EXECUTION_FAILED => b"CUBLAS_STATUS_EXECUTION_FAILED\0",
        INTERNAL_ERROR => b"CUBLAS_STATUS_INTERNAL_ERROR\0",
        NOT_SUPPORTED => b"CUBLAS_STATUS_NOT_SUPPORTED\0",
        _ => b"CUBLAS_STATUS_UNKNOWN\0",
    }
}

/// Runs the work of the function `name`, unless a test injects a fault. A panic becomes a code of this library, because
/// a caller may hold the code in an enumeration without the driver's codes.
pub fn run(name: &str, work: impl FnOnce() -> Result<(), u32>) -> u32 {
    match ENV_CONFIG.faults.next(name) {
        Some(Fault::Code(code)) => return code,
        Some(Fault::Drop) => return 0,
        None => {}
    }
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(INTERNAL_ERROR)).err().unwrap_or(0)
}

/// Defines functions of cuBLASLt: exported name, arguments and work of each.
macro_rules! library_calls {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $work:block)*) => {
        $(
            // SAFETY: no other library of the process exports this name, because this library replaces cuBLASLt.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "the library's functions have as many as they have")]
            pub extern "C" fn $name($($argument: $type),*) -> u32 {
                crate::cublas::status::run(stringify!($name), || $work)
            }
        )*
    };
}
pub(crate) use library_calls;
