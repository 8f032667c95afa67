//! The memory that a warp sees: translation of addresses, with bounds and alignment.

use crate::check::record::Me;
use crate::check::{Checks, Found};
use crate::copies::Copies;
use crate::fault::{Access, FaultKind, Space};
use crate::image::Image;
use crate::memory::{Extent, GlobalMemory};
use crate::place::{Named, Where};
use crate::profile::Profile;
use crate::slots::LANES;
use crate::windows::{LOCAL_WINDOW, MODULE_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};

/// Extents that are kept at hand. A kernel seldom reads and writes more arrays in one loop.
const KEPT_EXTENTS: usize = 6;

/// What a warp finds around it.
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    pub memory: &'a dyn GlobalMemory,
    pub params: &'a [u8],
    pub image: &'a Image,
    /// Shared memory of the block, and its bytes.
    pub shared: (*mut u8, u64),
    /// Local memory of the first lane, and the bytes of each lane; that of the others follows.
    pub local: (*mut u8, u64),
    /// Number of the warp in its block.
    pub warp: usize,
}

/// The memory of a warp during one slice.
pub(crate) struct BlockView<'a> {
    around: Surroundings<'a>,
    /// Checks and counts, unless the launch is a fast one.
    watch: Option<&'a mut Watch>,
    /// The copies by `cp.async` that are under way.
    pub copies: &'a mut Copies,
    /// Number of the instruction.
    pub pc: usize,
    extents: [Extent; KEPT_EXTENTS],
    oldest: usize,
}

const NO_EXTENT: Extent = Extent { first: u64::MAX, bytes: 0, host: std::ptr::null_mut() };

impl<'a> BlockView<'a> {
    pub fn new(around: Surroundings<'a>, watch: Option<&'a mut Watch>, copies: &'a mut Copies) -> Self {
        BlockView { around, watch, copies, pc: 0, extents: [NO_EXTENT; KEPT_EXTENTS], oldest: 0 }
    }

    /// What to add to each address from `least` to `most` for a pointer, if all bytes of these accesses are in one
    /// piece of memory that is at hand.
    #[inline(always)]
    pub fn whole(&mut self, named: Named, least: u64, most: u64, bytes: u64) -> Option<*mut u8> {
        match named {
            Named::Shared => {
                (most.checked_add(bytes)? <= self.around.shared.1).then_some(self.around.shared.0)
            }
            Named::Global | Named::Generic => {
                let end = most.checked_add(bytes)?;
                for extent in &self.extents {
                    if least >= extent.first && end - extent.first <= extent.bytes {
                        return Some(extent.host.wrapping_sub(extent.first as usize));
                    }
                }
                if named == Named::Generic
                    && end <= SHARED_WINDOW + self.around.shared.1
                    && least >= SHARED_WINDOW
                {
                    return Some(self.around.shared.0.wrapping_sub(SHARED_WINDOW as usize));
                }
                let found = self.find(least)?;
                (end <= found.first + found.bytes).then(|| found.host.wrapping_sub(found.first as usize))
            }
            _ => None,
        }
    }

    /// Asks for the extent of `address` and keeps it at hand.
    #[cold]
    fn find(&mut self, address: u64) -> Option<Extent> {
        let found = if address >= MODULE_WINDOW && address - MODULE_WINDOW < self.around.image.bytes() {
            Extent { first: MODULE_WINDOW, bytes: self.around.image.bytes(), host: self.around.image.start() }
        } else {
            self.around.memory.extent(address)?
        };
        self.extents[self.oldest] = found;
        self.oldest = (self.oldest + 1) % KEPT_EXTENTS;
        Some(found)
    }

    /// The bytes of one lane's access, or why it may not have them.
    pub fn place(
        &mut self,
        named: Named,
        address: u64,
        bytes: u64,
        lane: usize,
    ) -> Result<(*mut u8, Where), FaultKind> {
        let place = self.locate(named, address);
        let Where { space, address } = place;
        // A size is a power of two.
        if address & (bytes - 1) != 0 {
            return Err(FaultKind::Misaligned { space, address, bytes });
        }
        let within = |start: *mut u8, length: u64| {
            let fits = address.checked_add(bytes).is_some_and(|end| end <= length);
            fits.then(|| start.wrapping_add(address as usize))
        };
        let found = match space {
            Space::Shared => within(self.around.shared.0, self.around.shared.1),
            Space::Param => within(self.around.params.as_ptr().cast_mut(), self.around.params.len() as u64),
            Space::Local => within(self.lane_local(lane), self.around.local.1),
            Space::Global | Space::Module => self.global(address, bytes),
        };
        found.map(|pointer| (pointer, place)).ok_or(FaultKind::OutOfBounds { space, address, bytes })
    }

    fn lane_local(&self, lane: usize) -> *mut u8 {
        self.around.local.0.wrapping_add(lane * self.around.local.1 as usize)
    }

    fn global(&mut self, address: u64, bytes: u64) -> Option<*mut u8> {
        for extent in &self.extents {
            if let Some(found) = extent.translate(address, bytes) {
                return Some(found);
            }
        }
        self.find(address)?.translate(address, bytes)
    }

    /// The space of an address, and its offset there.
    fn locate(&self, named: Named, address: u64) -> Where {
        let in_window = |start: u64| (start..start + WINDOW_BYTES).contains(&address);
        let (space, start) = match named {
            Named::Shared => (Space::Shared, 0),
            Named::Param => (Space::Param, 0),
            Named::Local => (Space::Local, 0),
            Named::Global | Named::Generic if in_window(MODULE_WINDOW) => (Space::Module, 0),
            Named::Generic if in_window(SHARED_WINDOW) => (Space::Shared, SHARED_WINDOW),
            Named::Generic if in_window(LOCAL_WINDOW) => (Space::Local, LOCAL_WINDOW),
            Named::Generic if in_window(PARAM_WINDOW) => (Space::Param, PARAM_WINDOW),
            Named::Global | Named::Generic => (Space::Global, 0),
        };
        Where { space, address: address - start }
    }
}

/// What looks at each access.
#[derive(Default)]
pub(crate) struct Watch {
    pub checks: Option<Checks>,
    pub profile: Option<Profile>,
}

/// A place that an access was granted.
type Granted = (*mut u8, Where);

impl BlockView<'_> {
    /// Whether each access is looked at by itself.
    #[inline(always)]
    pub fn inspects(&self) -> bool {
        self.watch.is_some()
    }

    /// Counts a request of a warp.
    #[inline(always)]
    pub fn count(&mut self, named: Named, all: &[u64; LANES], bytes: u64, mask: u32) {
        if self.watch.is_some() {
            self.count_watched(named, all, bytes, mask);
        }
    }

    #[cold]
    fn count_watched(&mut self, named: Named, all: &[u64; LANES], bytes: u64, mask: u32) {
        let first = all[mask.trailing_zeros() as usize % LANES];
        let space = self.locate(named, first).space;
        let Some(profile) = self.watch.as_mut().and_then(|watch| watch.profile.as_mut()) else { return };
        match space {
            Space::Shared => profile.count(self.pc, true, all, bytes, mask),
            Space::Global => profile.count(self.pc, false, all, bytes, mask),
            _ => {}
        }
    }

    fn checks(&mut self) -> Option<&mut Checks> {
        self.watch.as_mut()?.checks.as_mut()
    }

    /// Checks a read; `Access::Atomic` is a strong one.
    #[inline(always)]
    pub fn check_read(
        &mut self,
        granted: Granted,
        bytes: u64,
        access: Access,
        lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        self.check(granted, bytes, access, lane, false)
    }

    /// Checks a write; `Access::Atomic` is a strong one, or one that reads as well.
    #[inline(always)]
    pub fn check_write(
        &mut self,
        granted: Granted,
        bytes: u64,
        access: Access,
        lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        self.check(granted, bytes, access, lane, true)
    }

    #[inline(always)]
    fn check(
        &mut self,
        (pointer, place): Granted,
        bytes: u64,
        access: Access,
        lane: usize,
        write: bool,
    ) -> Result<*mut u8, FaultKind> {
        let (memory, warp) = (self.around.memory, self.around.warp);
        if let Some(checks) = self.checks() {
            let me = Me { warp, lane, write, strong: access == Access::Atomic };
            checks.access(memory, Found { place, bytes, access }, me)?;
        }
        Ok(pointer)
    }

    /// Checks the target of a copy that begins.
    pub fn check_copy_start(
        &mut self,
        (_, place): Granted,
        bytes: u64,
        lane: usize,
    ) -> Result<(), FaultKind> {
        let me = Me { warp: self.around.warp, lane, write: true, strong: false };
        let found = Found { place, bytes, access: Access::Write };
        self.checks().map_or(Ok(()), |checks| checks.copy_start(found, me))
    }

    /// Checks the target of a copy that was waited for.
    pub fn check_copy_end(
        &mut self,
        (pointer, place): Granted,
        bytes: u64,
        lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        let me = Me { warp: self.around.warp, lane, write: true, strong: false };
        let found = Found { place, bytes, access: Access::Write };
        self.checks().map_or(Ok(()), |checks| checks.copy_end(found, me))?;
        Ok(pointer)
    }

    /// The lanes of `mask` have passed a barrier of their warp, of whose lanes `alive` have not ended.
    pub fn warp_barrier(&mut self, mask: u32, alive: u32) {
        let warp = self.around.warp;
        if let Some(checks) = self.checks() {
            checks.clocks.warp_barrier(warp, mask, alive);
        }
    }

    /// The lanes of `mask` have passed a fence.
    pub fn fence(&mut self, mask: u32) {
        let warp = self.around.warp;
        if let Some(checks) = self.checks() {
            checks.clocks.fence(warp, mask);
        }
    }
}
