//! The common checks before the work of every driver function.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::abi::code;
use crate::current_context::current;
use crate::documented_codes::is_documented;
use crate::env_config::ENV_CONFIG;
use crate::injected_fault::Fault;
use crate::objects::objects;
use crate::operation::is_in_host_function;
use crate::trace;

/// The state that a function requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum CallRequirement {
    /// No requirement.
    Nothing,
    /// `cuInit` was called.
    Start,
    /// `cuInit` was called, and the current context, if any, has no fault.
    Health,
    /// A current context without a fault.
    Context,
    /// As `Context`, and no capture forbids calls that may wait or allocate.
    Uncaptured,
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Marks the driver as initialized.
pub fn start() {
    STARTED.store(true, Ordering::Release);
}

/// Runs the work of the function `name`, unless a test injects a fault or the requirement is not met. `arguments` are
/// for the trace.
///
/// # Panics
/// If the function's documentation does not have the code: the process ends.
pub fn run(
    name: &str,
    needs: CallRequirement,
    arguments: impl FnOnce() -> String,
    work: impl FnOnce() -> Result<(), u32>,
) -> u32 {
    match ENV_CONFIG.faults.next(name) {
        Some(Fault::Code(code)) => return code,
        Some(Fault::Drop) => return 0,
        None => trace::record(name, arguments),
    }
    let result = catch_unwind(AssertUnwindSafe(|| check_requirement(needs).and_then(|()| work())));
    let code = result.unwrap_or(Err(code::UNKNOWN)).err().unwrap_or(0);
    assert!(is_documented(name, code), "{name} returns {code}, which its documentation does not have");
    code
}

fn check_requirement(needs: CallRequirement) -> Result<(), u32> {
    if needs == CallRequirement::Nothing {
        return Ok(());
    }
    if !STARTED.load(Ordering::Acquire) {
        return Err(code::NOT_INITIALIZED);
    }
    // The driver may allow it. A stand-in that does would hide a call that stands still on another driver.
    if is_in_host_function() {
        return Err(code::NOT_PERMITTED);
    }
    if needs == CallRequirement::Start || (needs == CallRequirement::Health && current() == 0) {
        return Ok(());
    }
    let fault = objects().context(current())?.fault.load(Ordering::Acquire);
    match fault {
        0 if needs == CallRequirement::Uncaptured => objects().captures.check_unsafe_call(),
        0 => Ok(()),
        fault => Err(fault),
    }
}

/// Defines functions of the driver: requirement, exported name, arguments and work of each.
macro_rules! calls {
    ($($needs:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $work:block)*) => {
        $(
            // SAFETY: no other library of the process exports this name, because this library replaces the driver.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "the driver's functions have as many as they have")]
            pub extern "C" fn $name($($argument: $type),*) -> u32 {
                let arguments = || -> String {
                    let arguments: &[&dyn std::fmt::Debug] = &[$(&$argument),*];
                    arguments.iter().map(|argument| format!("{argument:?} ")).collect()
                };
                let needs = crate::call_guard::CallRequirement::$needs;
                crate::call_guard::run(stringify!($name), needs, arguments, || $work)
            }
        )*
    };
}
pub(crate) use calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "cuMemUnmap returns 2, which its documentation does not have")]
    fn a_code_without_documentation_ends_the_process() {
        run("cuMemUnmap", CallRequirement::Nothing, String::new, || Err(code::OUT_OF_MEMORY));
    }
}
