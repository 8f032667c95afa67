//! A mapped file that another process makes shorter: whoever touches the part that is gone gets a bus error, which ends
//! the process. For mappings of the neighbourhood's files it does not: zeros take the place of the file, and the mapping is marked.
//!
//! One process-wide handler of that signal serves all mappings; every other bus error goes to whoever handled it before.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Mappings that one process can have: two for each ledger that it opens.
const MAX_MAPPINGS: usize = 1024;

/// A mapping that the handler knows.
struct GuardedMapping {
    /// First address; 0 = nobody's.
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

/// Who handled the signal before.
static PREVIOUS_HANDLER: OnceLock<libc::sigaction> = OnceLock::new();

/// The place of one mapping.
#[derive(Debug)]
pub(crate) struct TruncationGuard(usize);

impl TruncationGuard {
    /// From now on no bus error in the mapping ends the process. `None` when there are too many.
    ///
    /// # Safety
    /// `bytes` bytes from `base` on are mapped shared, are reached as atomics only, and stay mapped until
    /// [`Watched::end`].
    pub(crate) unsafe fn new(base: *mut libc::c_void, bytes: usize) -> Option<TruncationGuard> {
        install_handler();
        let at = MAPPINGS.iter().position(GuardedMapping::try_claim)?;
        let place = &MAPPINGS[at];
        place.truncated.store(false, Ordering::Relaxed);
        place.bytes.store(bytes, Ordering::Relaxed);
        place.base.store(base as usize, Ordering::Release);
        Some(TruncationGuard(at))
    }

    /// Whether a part of the file was missing when it was touched.
    pub(crate) fn is_truncated(&self) -> bool {
        MAPPINGS[self.0].truncated.load(Ordering::Acquire)
    }

    /// The mapping is about to go.
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
        // SAFETY: both structures live during the call, and the handler does only what a handler may.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, &raw mut before) };
        assert_eq!(result, 0, "a bus error can be handled");
        before
    });
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid structure, whose address is set for an error of an access.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let ours = MAPPINGS.iter().find(|place| code == libc::BUS_ADRERR && place.contains(address));
    match ours {
        Some(place) => place.map_zero_pages(),
        None => call_previous_handler(signal, info, context),
    }
}

impl GuardedMapping {
    /// Makes it somebody's if it is nobody's. No mapping has the address 1, so no fault is taken for one of it.
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
        // SAFETY: whoever faulted is using the mapping, so it is there, and it is only reached as atomics, for which any
        // bytes are valid. `errno` is what the interrupted code last left in it.
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

/// To whoever was there before. The default is restored; the access then fails again and ends the process.
fn call_previous_handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = PREVIOUS_HANDLER
        .get()
        .filter(|before| ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction));
    let Some(before) = before else {
        // SAFETY: all zeros ask for the default.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &raw const default, ptr::null_mut());
        }
        return;
    };
    // SAFETY: the kernel would have called it in this way, as its flags say.
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
