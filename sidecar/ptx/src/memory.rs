//! Device memory as a kernel sees it: which addresses exist, and where their bytes are on the host.

/// A range of device addresses that lies in one piece in host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First device address.
    pub first: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Where the first byte is on the host.
    pub host: *mut u8,
}

impl Extent {
    /// Where the bytes are, if all of them belong to the extent.
    pub fn translate(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let offset = address.checked_sub(self.first)?;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        fits.then(|| self.host.wrapping_add(offset as usize))
    }
}

/// Device memory. Host threads may use it during a launch, as hosts do with mapped memory.
///
/// # Safety
/// The bytes of every [`Extent`] that [`Self::extent`] returns during [`Self::slice`] must be valid for reads and
/// writes until that call of `slice` ends, and must not be borrowed by Rust references. The extents of one `slice`
/// are kept by their addresses and not asked for again.
pub unsafe trait GlobalMemory: Sync {
    /// The extent that holds `address`: the largest one, so that it is seldom asked for.
    fn extent(&self, address: u64) -> Option<Extent>;

    /// Calls `run`, which executes some ten thousand instructions of one warp. An implementation holds its mappings as
    /// they are until `run` returns, and lets other threads change them between two calls. So a kernel that spins on a
    /// word blocks no other thread.
    fn slice(&self, run: &mut dyn FnMut()) {
        run();
    }

    /// Whether the launch must end: asked between slices. The launch then ends with `FaultKind::Cancelled`.
    fn cancelled(&self) -> bool {
        false
    }

    /// Whether some of these bytes were never written. Asked in checked mode only, for bytes of one extent.
    fn uninitialised(&self, _address: u64, _bytes: u64) -> bool {
        false
    }

    /// Notes that a kernel has written these bytes. Called in checked mode only, for bytes of one extent.
    fn mark_written(&self, _address: u64, _bytes: u64) {}

    /// Where the bytes are on the host, if they exist in one piece.
    fn translate(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        self.extent(address)?.translate(address, bytes)
    }
}
