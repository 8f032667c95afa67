//! The addresses of this process as a kernel sees them.

use std::cell::RefCell;

use sluice_ptx::{Extent, GlobalMemory};

use crate::address_space::View;

thread_local! {
    /// The view that keeps mappings as they are while this thread runs a slice of a kernel.
    static VIEW: RefCell<Option<View>> = const { RefCell::new(None) };
}

/// Device memory for one launch.
pub struct DeviceMemory<'a> {
    given_up: &'a (dyn Fn() -> bool + Sync),
}

impl<'a> DeviceMemory<'a> {
    /// Device memory for a launch that ends early when `given_up` returns `true`.
    pub fn new(given_up: &'a (dyn Fn() -> bool + Sync)) -> Self {
        Self { given_up }
    }
}

// SAFETY: `slice` holds a view, which keeps every mapping and registration until it is dropped; extents come from that
// view. Device memory and registered host memory are only used through raw pointers here.
unsafe impl GlobalMemory for DeviceMemory<'_> {
    fn extent(&self, address: u64) -> Option<Extent> {
        VIEW.with_borrow(|view| {
            let (first, bytes, host) = view.as_ref()?.extent(address)?;
            Some(Extent { first, bytes, host })
        })
    }

    fn slice(&self, run: &mut dyn FnMut()) {
        VIEW.set(Some(View::new()));
        // A slice that panics must not leave the addresses locked.
        let _end = EndOfSlice;
        run();
    }

    fn cancelled(&self) -> bool {
        (self.given_up)()
    }
}

struct EndOfSlice;

impl Drop for EndOfSlice {
    fn drop(&mut self) {
        VIEW.set(None);
    }
}
