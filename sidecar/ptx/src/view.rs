//! The memory that a warp sees: translation of addresses, with bounds and alignment.

use crate::copies::Copies;
use crate::fault::{Access, FaultKind, Space};
use crate::image::Image;
use crate::memory::{Extent, GlobalMemory};
use crate::windows::{LOCAL_WINDOW, MODULE_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};

/// Extents that are kept at hand. A kernel seldom reads and writes more arrays in one loop.
const KEPT_EXTENTS: usize = 6;

/// The space that an instruction names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Named {
    Global = 0,
    Shared = 1,
    Param = 2,
    Local = 3,
    Generic = 4,
}

impl Named {
    /// Out of the lowest bits of `Instruction::detail`.
    #[inline(always)]
    pub fn of(detail: u32) -> Named {
        match detail & 7 {
            0 => Named::Global,
            1 => Named::Shared,
            2 => Named::Param,
            3 => Named::Local,
            _ => Named::Generic,
        }
    }
}

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
}

/// The memory of a warp during one slice.
pub(crate) struct BlockView<'a> {
    around: Surroundings<'a>,
    /// The copies by `cp.async` that are under way.
    pub copies: &'a mut Copies,
    /// Number of the instruction.
    pub pc: usize,
    extents: [Extent; KEPT_EXTENTS],
    oldest: usize,
}

const NO_EXTENT: Extent = Extent { first: u64::MAX, bytes: 0, host: std::ptr::null_mut() };

impl<'a> BlockView<'a> {
    pub fn new(around: Surroundings<'a>, copies: &'a mut Copies) -> Self {
        BlockView { around, copies, pc: 0, extents: [NO_EXTENT; KEPT_EXTENTS], oldest: 0 }
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
        if !address.is_multiple_of(bytes) {
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

/// A place in a state space: an offset, or an address of global memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Where {
    pub space: Space,
    pub address: u64,
}

impl BlockView<'_> {
    /// Whether each access is looked at by itself.
    #[inline(always)]
    pub fn inspects(&self) -> bool {
        false
    }

    pub fn count(&mut self, _named: Named, _all: &[u64; 32], _bytes: u64, _mask: u32) {}

    pub fn check_read(
        &mut self,
        found: (*mut u8, Where),
        _bytes: u64,
        _access: Access,
        _lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        Ok(found.0)
    }
    pub fn check_write(
        &mut self,
        found: (*mut u8, Where),
        _bytes: u64,
        _access: Access,
        _lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        Ok(found.0)
    }
    pub fn check_copy_start(
        &mut self,
        _found: (*mut u8, Where),
        _bytes: u64,
        _lane: usize,
    ) -> Result<(), FaultKind> {
        Ok(())
    }
    pub fn check_copy_end(
        &mut self,
        found: (*mut u8, Where),
        _bytes: u64,
        _lane: usize,
    ) -> Result<*mut u8, FaultKind> {
        Ok(found.0)
    }
    pub fn warp_barrier(&mut self, _mask: u32) {}
    pub fn fence(&mut self, _mask: u32) {}
}
