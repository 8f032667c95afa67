//! Protects mappings of the ledger's files against truncation by another process. An access to a truncated
//! part raises SIGBUS, which would end the process. The handler instead replaces the mapping with zeros and
//! marks it.
//!
//! One process-wide signal handler serves all mappings; it passes every other SIGBUS to the previous handler.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Maximum number of guarded mappings per process: two for each open ledger.
const MAX_MAPPINGS: usize = 1024;

/// A mapping that the handler protects.
struct GuardedMapping {
    /// First address; 0 = unused.
    base: AtomicUsize,
    bytes: AtomicUsize,
    truncated: AtomicBool,
}

static MAPPINGS: [GuardedMapping; MAX_MAPPINGS] = [const {
    GuardedMapping {
        base: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        truncated: AtomicBool::new(false),
    }
}; MAX_MAPPINGS];

/// Handler of SIGBUS that was installed before.
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

/// Index of one guarded mapping.
#[derive(Debug)]
pub(crate) struct TruncationGuard(usize);

impl TruncationGuard {
    /// Protects the mapping: from now on SIGBUS in it does not end the process. Returns `None` if there are
    /// too many mappings.
    ///
    /// # Safety
    /// `bytes` bytes from `base` are mapped shared, are accessed only as atomics, and stay mapped until
    /// [`TruncationGuard::unregister`].
    pub(crate) unsafe fn new(base: *mut libc::c_void, bytes: usize) -> Option<TruncationGuard> {
        install_handler();
        let at = MAPPINGS.iter().position(GuardedMapping::try_claim)?;
        let place = &MAPPINGS[at];
        place.truncated.store(false, Ordering::Relaxed);
        place.bytes.store(bytes, Ordering::Relaxed);
        place.base.store(base as usize, Ordering::Release);
        Some(TruncationGuard(at))
    }

    /// Whether an access touched a truncated part of the file.
    pub(crate) fn is_truncated(&self) -> bool {
        MAPPINGS[self.0].truncated.load(Ordering::Acquire)
    }

    /// Ends the protection, before the mapping is unmapped.
    pub(crate) fn unregister(&self) {
        MAPPINGS[self.0].base.store(0, Ordering::Release);
    }
}

fn install_handler() {
    PREVIOUS_HANDLER.get_or_init(|| {
        // SAFETY: all zeros are a valid value of this plain structure.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
        ours.sa_sigaction = handler as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: as above.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: both structures exist during the call, and the handler is async-signal-safe.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
        assert_eq!(result, 0, "a bus error can be handled");
        before
    });
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure, whose address is set for an access error.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let ours = MAPPINGS.iter().find(|place| code == libc::BUS_ADRERR && place.contains(address));
    match ours {
        Some(place) => place.map_zero_pages(),
        None => call_previous_handler(signal, info, context),
    }
}

impl GuardedMapping {
    /// Claims an unused entry. The placeholder address 1 is never mapped, so no fault matches it.
    fn try_claim(&self) -> bool {
        self.base.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn contains(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Acquire);
        base > 1 && (base..base + self.bytes.load(Ordering::Relaxed)).contains(&address)
    }

    fn map_zero_pages(&self) {
        self.truncated.store(true, Ordering::Release);
        let (base, bytes) = (self.base.load(Ordering::Acquire), self.bytes.load(Ordering::Relaxed));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the thread that faulted is using the mapping, so it exists, and it is accessed only as
        // atomics, for which any bytes are valid. `errno` keeps the value of the interrupted code.
        unsafe {
            let errno = *libc::__errno_location();
            let zeros = libc::mmap(ptr::without_provenance_mut(base), bytes, access, flags, -1, 0);
            if zeros == libc::MAP_FAILED {
                libc::abort();
            }
            *libc::__errno_location() = errno;
        }
    }
}

/// Calls the previous handler. If there was none, restores the default action; the access then faults again
/// and ends the process.
fn call_previous_handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = PREVIOUS_HANDLER
        .get()
        .filter(|before| ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction));
    let Some(before) = before else {
        // SAFETY: all zeros select the default action.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
        return;
    };
    // SAFETY: calls the handler with the signature that its flags declare, as the kernel would.
    unsafe {
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(before.sa_sigaction);
            call(signal, info, context);
        } else {
            let call: extern "C" fn(libc::c_int) = std::mem::transmute(before.sa_sigaction);
            call(signal);
        }
    }
}
