//! Addresses: reservations, mappings, and the host memory that the device may use.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::abi::code;
use crate::env_config::ENV_CONFIG;

/// Set in every device address, so that the host cannot dereference it.
const TAG: u64 = 1 << 56;

/// Granularity of mappings in bytes.
pub fn granularity() -> u64 {
    ENV_CONFIG.granularity
}

/// All addresses of this process. Keys are device addresses, or host addresses of registered memory.
#[derive(Default)]
pub struct AddressSpace {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    /// Bytes that were asked for, and bytes that are mapped.
    allocated: BTreeMap<u64, (u64, u64)>,
    host: BTreeMap<u64, HostMemory>,
}

struct Mapping {
    bytes: u64,
    allowed: bool,
    /// Keeps the memory while it is mapped.
    memory: Arc<File>,
}

struct HostMemory {
    bytes: u64,
    /// Whether the driver allocated it, rather than only registered it.
    is_owned: bool,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug)]
pub struct AddressRange {
    pub start: u64,
    pub bytes: u64,
    pub is_device: bool,
}

static SPACE: RwLock<Option<AddressSpace>> = RwLock::new(None);

/// Locks the addresses for a change: work on the device accesses no memory during it.
pub fn space() -> SpaceGuard {
    let mut guard = SPACE.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    guard.get_or_insert_default();
    SpaceGuard(guard)
}

/// The locked addresses.
pub struct SpaceGuard(RwLockWriteGuard<'static, Option<AddressSpace>>);

impl std::ops::Deref for SpaceGuard {
    type Target = AddressSpace;
    fn deref(&self) -> &AddressSpace {
        self.0.as_ref().expect("made when it was locked")
    }
}

impl std::ops::DerefMut for SpaceGuard {
    fn deref_mut(&mut self) -> &mut AddressSpace {
        self.0.as_mut().expect("made when it was locked")
    }
}

/// Lets work on the device look up addresses, which do not change while the view exists.
pub struct View(RwLockReadGuard<'static, Option<AddressSpace>>);

impl View {
    /// Locks the addresses against changes.
    pub fn new() -> Self {
        Self(SPACE.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Returns the host pointer for `bytes` at a device address; a host address must be registered.
    pub fn host(&self, address: u64, bytes: u64) -> Result<*mut u8, u32> {
        let space = self.0.as_ref().ok_or(code::ILLEGAL_ADDRESS)?;
        let known =
            if address & TAG != 0 { space.is_allowed(address, bytes) } else { space.is_host(address, bytes) };
        if known { Ok((address & !TAG) as *mut u8) } else { Err(code::ILLEGAL_ADDRESS) }
    }

    /// Returns the largest piece of memory around an address that the device may use: its first address, its bytes and
    /// its host pointer. It ends where a reservation or an allocation ends.
    pub fn extent(&self, address: u64) -> Option<(u64, u64, *mut u8)> {
        let space = self.0.as_ref()?;
        let within = space.range_of(address)?;
        let (first, end) = if within.is_device {
            let (first, end) = space.accessible_around(address)?;
            (first.max(within.start), end.min(within.start + within.bytes))
        } else {
            (within.start, within.start + within.bytes)
        };
        (first..end).contains(&address).then(|| (first, end - first, (first & !TAG) as *mut u8))
    }
}

/// Accesses the word at an address as an atomic.
pub fn word<R>(address: u64, with: impl FnOnce(&AtomicU64) -> R) -> Result<R, u32> {
    let view = View::new();
    let place = view.host(address, 8)?.cast::<u64>();
    if !place.is_aligned() {
        return Err(code::ILLEGAL_ADDRESS);
    }
    // SAFETY: eight mapped, aligned bytes, which stay mapped while the view exists; other users of an awaited word use
    // atomics as well, or are other processes.
    Ok(with(unsafe { AtomicU64::from_ptr(place) }))
}

/// Accesses the word of 32 bits at an address as an atomic.
pub fn half_word<R>(address: u64, with: impl FnOnce(&AtomicU32) -> R) -> Result<R, u32> {
    let view = View::new();
    let place = view.host(address, 4)?.cast::<u32>();
    if !place.is_aligned() {
        return Err(code::ILLEGAL_ADDRESS);
    }
    // SAFETY: as in `word`, with four bytes.
    Ok(with(unsafe { AtomicU32::from_ptr(place) }))
}

impl AddressSpace {
    /// Reserves addresses and returns the first one.
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, u32> {
        // Map more than needed, so that the range can start at a multiple of the granularity; the rest is unmapped.
        let mapped_bytes = (bytes + granularity()) as usize;
        // SAFETY: a new mapping without access, at an address of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), mapped_bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let start = start.map_err(|_| code::OUT_OF_MEMORY)? as u64;
        let address = start.next_multiple_of(granularity()) | TAG;
        trim(start, mapped_bytes as u64, address & !TAG, bytes);
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    /// Releases reserved addresses without mappings.
    pub fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.reserved.get(&address) != Some(&bytes)
            || self.mapped.range(address..address + bytes).next().is_some()
        {
            return Err(code::INVALID_VALUE);
        }
        self.reserved.remove(&address);
        // SAFETY: `reserve` mapped the range, and no mapping uses it.
        unsafe { munmap((address & !TAG) as *mut c_void, bytes as usize) }.map_err(|_| code::OPERATING_SYSTEM)
    }

    /// Maps memory at a reserved address, without access.
    pub fn map(&mut self, address: u64, bytes: u64, memory: &Arc<File>) -> Result<(), u32> {
        let inside =
            self.reserved.range(..=address).next_back().is_some_and(|(start, length)| {
                address - start <= *length && bytes <= start + length - address
            });
        let taken = self
            .mapped
            .range(..address + bytes)
            .next_back()
            .is_some_and(|(start, mapping)| start + mapping.bytes > address);
        let is_aligned = |number: u64| number.is_multiple_of(granularity());
        let aligned = bytes > 0 && is_aligned(bytes) && is_aligned(address);
        if !inside || taken || !aligned {
            return Err(code::INVALID_VALUE);
        }
        let place = (address & !TAG) as *mut c_void;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside a reservation of this process, where nothing is mapped.
        unsafe { mmap(place, bytes as usize, ProtFlags::empty(), flags, memory, 0) }
            .map_err(|_| code::OUT_OF_MEMORY)?;
        self.mapped.insert(address, Mapping { bytes, allowed: false, memory: Arc::clone(memory) });
        Ok(())
    }

    /// Makes mappings accessible; together they must cover the range exactly.
    pub fn allow(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.covered(address, bytes, |_| true) != Some(true) {
            return Err(code::INVALID_VALUE);
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: the range consists of mappings of this process.
        unsafe { mprotect((address & !TAG) as *mut c_void, bytes as usize, access) }
            .map_err(|_| code::OPERATING_SYSTEM)?;
        self.mapped.range_mut(address..address + bytes).for_each(|(_, mapping)| mapping.allowed = true);
        Ok(())
    }

    /// Unmaps a range; mappings must cover it exactly.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.covered(address, bytes, |_| true) != Some(true) {
            return Err(code::INVALID_VALUE);
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let place = (address & !TAG) as *mut c_void;
        // SAFETY: mappings inside a reservation of this process, which stays reserved.
        unsafe { mmap_anonymous(place, bytes as usize, ProtFlags::empty(), flags) }
            .map_err(|_| code::OPERATING_SYSTEM)?;
        self.mapped.retain(|start, _| !(address..address + bytes).contains(start));
        Ok(())
    }

    /// Maps memory of `bytes` bytes at a new address, for `cuMemAlloc` of `wanted` bytes.
    pub fn allocate(&mut self, wanted: u64, bytes: u64, memory: &Arc<File>) -> Result<u64, u32> {
        let address = self.reserve(bytes)?;
        let mapped = self.map(address, bytes, memory).and_then(|()| self.allow(address, bytes));
        if let Err(code) = mapped {
            let _ = self.unmap(address, bytes);
            let _ = self.unreserve(address, bytes);
            return Err(code);
        }
        self.reserved.remove(&address);
        self.allocated.insert(address, (wanted, bytes));
        Ok(address)
    }

    /// Undoes [`AddressSpace::allocate`].
    pub fn free(&mut self, address: u64) -> Result<(), u32> {
        let (_, bytes) = self.allocated.remove(&address).ok_or(code::INVALID_VALUE)?;
        self.reserved.insert(address, bytes);
        self.unmap(address, bytes)?;
        self.unreserve(address, bytes)
    }

    /// Allows the device to use this host memory.
    pub fn register(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        let before = self.host.range(..address + bytes).next_back();
        if bytes == 0 || address == 0 {
            return Err(code::INVALID_VALUE);
        }
        if before.is_some_and(|(start, memory)| start + memory.bytes > address) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.host.insert(address, HostMemory { bytes, is_owned: false });
        Ok(())
    }

    /// Undoes [`AddressSpace::register`].
    pub fn unregister(&mut self, address: u64) -> Result<(), u32> {
        match self.host.get(&address) {
            Some(memory) if !memory.is_owned => self.host.remove(&address).map(|_| ()).ok_or(code::UNKNOWN),
            _ => Err(code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Allocates host memory that the driver owns.
    pub fn allocate_host(&mut self, bytes: u64) -> Result<u64, u32> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, access, MapFlags::PRIVATE) };
        let address = address.map_err(|_| code::OUT_OF_MEMORY)? as u64;
        self.host.insert(address, HostMemory { bytes, is_owned: true });
        Ok(address)
    }

    /// Undoes [`AddressSpace::allocate_host`].
    pub fn free_host(&mut self, address: u64) -> Result<(), u32> {
        let ours = self.host.get(&address).is_some_and(|memory| memory.is_owned);
        let memory = if ours { self.host.remove(&address) } else { None }.ok_or(code::INVALID_VALUE)?;
        // SAFETY: `allocate_host` mapped the range, and the caller no longer uses it.
        unsafe { munmap(address as *mut c_void, memory.bytes as usize) }.map_err(|_| code::OPERATING_SYSTEM)
    }

    /// Whether host memory is registered or allocated by the driver.
    pub fn is_host(&self, address: u64, bytes: u64) -> bool {
        self.host.range(..=address).next_back().is_some_and(|(start, memory)| {
            address - start <= memory.bytes && bytes <= memory.bytes - (address - start)
        })
    }

    /// Returns the memory that is mapped at an address.
    pub fn memory_at(&self, address: u64) -> Option<Arc<File>> {
        let (start, mapping) = self.mapped.range(..=address).next_back()?;
        (address - start < mapping.bytes).then(|| Arc::clone(&mapping.memory))
    }

    /// Returns what holds an address: an allocation, a reservation, or host memory that the device may use.
    pub fn range_of(&self, address: u64) -> Option<AddressRange> {
        let inside = |(start, bytes): (&u64, u64), is_device| {
            let found = AddressRange { start: *start, bytes, is_device };
            (address - start < bytes).then_some(found)
        };
        let allocated = self.allocated.range(..=address).next_back();
        let reserved = self.reserved.range(..=address).next_back();
        let host = self.host.range(..=address).next_back();
        allocated
            .and_then(|(start, (wanted, _))| inside((start, *wanted), true))
            .or_else(|| reserved.and_then(|(start, bytes)| inside((start, *bytes), true)))
            .or_else(|| host.and_then(|(start, memory)| inside((start, memory.bytes), false)))
    }

    /// Returns the numbers of held resources by name.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let ours = self.host.values().filter(|memory| memory.is_owned).count();
        vec![
            ("reservations", self.reserved.len()),
            ("mappings", self.mapped.len() - self.allocated.len()),
            ("allocations", self.allocated.len()),
            ("registrations", self.host.len() - ours),
            ("host_allocations", ours),
        ]
    }

    /// Returns the start and the end of the accessible mappings without a gap around an address.
    fn accessible_around(&self, address: u64) -> Option<(u64, u64)> {
        let (mut first, mut end) = (address, address);
        for (start, mapping) in self.mapped.range(..=address).rev() {
            let expected =
                if end == address { start + mapping.bytes > address } else { start + mapping.bytes == first };
            if !expected || !mapping.allowed {
                break;
            }
            (first, end) = (*start, end.max(start + mapping.bytes));
        }
        if end == address {
            return None;
        }
        for (start, mapping) in self.mapped.range(end..) {
            if *start != end || !mapping.allowed {
                break;
            }
            end += mapping.bytes;
        }
        Some((first, end))
    }

    fn is_allowed(&self, address: u64, bytes: u64) -> bool {
        self.covered(address, bytes, |mapping| mapping.allowed).is_some()
    }

    /// Whether mappings that satisfy `wanted` cover a range without a gap: `Some(true)` if they also start and end with
    /// it.
    fn covered(&self, address: u64, bytes: u64, wanted: impl Fn(&Mapping) -> bool) -> Option<bool> {
        let (first, _) = self.mapped.range(..=address).next_back()?;
        let mut at = *first;
        for (start, mapping) in self.mapped.range(first..) {
            if *start != at || !wanted(mapping) {
                return None;
            }
            at += mapping.bytes;
            if at >= address + bytes {
                return Some(*first == address && at == address + bytes);
            }
        }
        None
    }
}

/// Unmaps the parts of a mapping of `mapped_bytes` bytes outside of `bytes` at `address`.
fn trim(start: u64, mapped_bytes: u64, address: u64, bytes: u64) {
    let end = address + bytes;
    for (from, to) in [(start, address), (end, start + mapped_bytes)] {
        if to > from {
            // SAFETY: the two ends of a new mapping, which are not used.
            let _ = unsafe { munmap(from as *mut c_void, (to - from) as usize) };
        }
    }
}
