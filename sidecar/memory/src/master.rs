//! The host's one copy of the weights, slab by slab. Filled once from the model's files, read-only from then on, and
//! never written back to.

use std::ffi::c_void;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};
use sluice_policy::action::FillTarget;
use sluice_policy::ids::LayerId;

/// Why there is no master copy.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// The machine has no memory for a slab.
    #[error("no host memory for {bytes} bytes of {slab:?}")]
    OutOfMemory {
        /// Which slab.
        slab: Slab,
        /// How large.
        bytes: u64,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
    /// The slab could not be made read-only.
    #[error("{slab:?} cannot be made read-only")]
    Freeze {
        /// Which slab.
        slab: Slab,
        /// The kernel's answer.
        #[source]
        source: Errno,
    },
}

/// One slab of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slab {
    /// Embeddings, head and final norm.
    Global,
    /// One layer.
    Layer(LayerId),
}

impl Slab {
    /// The slab that a fill copies.
    pub fn of(target: FillTarget) -> Slab {
        match target {
            FillTarget::Global => Slab::Global,
            FillTarget::Resident(layer) | FillTarget::Slot(_, layer) => Slab::Layer(layer),
        }
    }

    fn index(self) -> usize {
        match self {
            Slab::Global => 0,
            Slab::Layer(layer) => 1 + layer.index(),
        }
    }
}

/// The master copy while it is loaded.
#[derive(Debug)]
pub struct MasterCopy {
    /// Global, then the layers, front first.
    slabs: Vec<Region>,
}

impl MasterCopy {
    /// Takes all memory at once, prefaulted and zeroed, so that loading cannot run out half way.
    pub fn new(global_bytes: u64, slab_bytes: &[u64]) -> Result<MasterCopy, MasterError> {
        let layers = slab_bytes.iter().enumerate();
        let layers = layers.map(|(l, &bytes)| (Slab::Layer(LayerId(l as u16)), bytes));
        let all = std::iter::once((Slab::Global, global_bytes)).chain(layers);
        let region = |(slab, bytes)| {
            Region::new(bytes).map_err(|source| MasterError::OutOfMemory { slab, bytes, source })
        };
        Ok(MasterCopy { slabs: all.map(region).collect::<Result<_, _>>()? })
    }

    /// The bytes of one slab, to be written. Panics when the model has no such layer.
    pub fn slab_mut(&mut self, slab: Slab) -> &mut [u8] {
        self.slabs[slab.index()].bytes_mut()
    }

    /// The end of loading: the pages become read-only.
    pub fn freeze(self) -> Result<Master, MasterError> {
        for (at, region) in self.slabs.iter().enumerate() {
            let slab = if at == 0 { Slab::Global } else { Slab::Layer(LayerId(at as u16 - 1)) };
            region.protect().map_err(|source| MasterError::Freeze { slab, source })?;
        }
        Ok(Master { slabs: self.slabs })
    }
}

/// The master copy, loaded.
#[derive(Debug)]
pub struct Master {
    slabs: Vec<Region>,
}

impl Master {
    /// The bytes of one slab; `None` for a layer that the model does not have.
    pub fn slab(&self, slab: Slab) -> Option<&[u8]> {
        self.slabs.get(slab.index()).map(Region::bytes)
    }

    /// Bytes of host memory.
    pub fn total_bytes(&self) -> u64 {
        self.slabs.iter().map(|slab| slab.bytes as u64).sum()
    }
}

/// One anonymous mapping.
#[derive(Debug)]
struct Region {
    start: *mut c_void,
    bytes: usize,
}

// SAFETY: the region owns its memory, which is not tied to a thread.
unsafe impl Send for Region {}
// SAFETY: `&Region` allows reading only, `&mut Region` writing.
unsafe impl Sync for Region {}

impl Region {
    fn new(bytes: u64) -> Result<Region, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::NOMEM)?;
        if bytes == 0 {
            return Ok(Region { start: ptr::NonNull::dangling().as_ptr(), bytes });
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, protection, MapFlags::PRIVATE) }?;
        let region = Region { start, bytes };
        // Advice only: without huge pages the slab consists of small ones.
        let _ = region.advise(Advice::LinuxHugepage);
        region.advise(Advice::LinuxPopulateWrite)?;
        Ok(region)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the range is our own mapping; both kinds of advice used above keep its contents.
        unsafe { mm::madvise(self.start, self.bytes, advice) }
    }

    fn protect(&self) -> Result<(), Errno> {
        if self.bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range is our own mapping, and `freeze` took the only owner of mutable slices by value.
        unsafe { mm::mprotect(self.start, self.bytes, MprotectFlags::READ) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is readable and as long as `self`; writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; only `MasterCopy` calls it, whose regions are still writable.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the mapping is ours and its slices do not outlive `self`.
        let result = unsafe { mm::munmap(self.start, self.bytes) };
        debug_assert!(result.is_ok(), "munmap of our own slab: {result:?}");
    }
}
