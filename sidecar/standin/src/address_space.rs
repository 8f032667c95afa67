//! Addresses: what is reserved, what is mapped there, and which host memory the device may use.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fs::File;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

use crate::abi::code;

/// Set in every device address, which the host may not dereference.
const TAG: u64 = 1 << 56;

/// Smallest piece of memory that can be mapped, bytes.
pub const GRANULARITY: u64 = 2 << 20;

/// All addresses of this process. Keys are device addresses, or host addresses of registered memory.
#[derive(Default)]
pub struct AddressSpace {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
    allocated: BTreeMap<u64, u64>,
    host: BTreeMap<u64, HostMemory>,
}

struct Mapping {
    bytes: u64,
    allowed: bool,
    /// The memory, which is held as long as it is mapped.
    _memory: Arc<File>,
}

struct HostMemory {
    bytes: u64,
    /// Allocated here, not only registered.
    is_owned: bool,
}

static SPACE: RwLock<Option<AddressSpace>> = RwLock::new(None);

/// Locks the addresses for a change: nothing on the device moves bytes meanwhile.
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

/// Lets work on the device look addresses up; they do not change while this lives.
pub struct View(RwLockReadGuard<'static, Option<AddressSpace>>);

impl View {
    /// Locks the addresses against changes.
    pub fn new() -> Self {
        Self(SPACE.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Where `bytes` at a device address lie on the host; host addresses must be registered.
    pub fn host(&self, address: u64, bytes: u64) -> Result<*mut u8, u32> {
        let space = self.0.as_ref().ok_or(code::ILLEGAL_ADDRESS)?;
        let known =
            if address & TAG != 0 { space.is_allowed(address, bytes) } else { space.is_host(address, bytes) };
        if known { Ok((address & !TAG) as *mut u8) } else { Err(code::ILLEGAL_ADDRESS) }
    }
}

impl AddressSpace {
    /// Reserves addresses.
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, u32> {
        // More than needed, so that the range can start at a multiple of the granularity; the rest stays unused.
        let room = (bytes + GRANULARITY) as usize;
        // SAFETY: a new mapping wherever the kernel likes, without access.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), room, ProtFlags::empty(), MapFlags::PRIVATE) };
        let start = start.map_err(|_| code::OUT_OF_MEMORY)? as u64;
        let address = start.next_multiple_of(GRANULARITY) | TAG;
        trim(start, room as u64, address & !TAG, bytes);
        self.reserved.insert(address, bytes);
        Ok(address)
    }

    /// Gives addresses back; nothing may be mapped there.
    pub fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.reserved.get(&address) != Some(&bytes)
            || self.mapped.range(address..address + bytes).next().is_some()
        {
            return Err(code::INVALID_VALUE);
        }
        self.reserved.remove(&address);
        // SAFETY: the range was mapped by `reserve` and nothing refers to it any more.
        unsafe { munmap((address & !TAG) as *mut c_void, bytes as usize) }.map_err(|_| code::OPERATING_SYSTEM)
    }

    /// Maps memory at a reserved address; it is not accessible yet.
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
        let aligned = bytes > 0 && bytes.is_multiple_of(GRANULARITY) && address.is_multiple_of(GRANULARITY);
        if !inside || taken || !aligned {
            return Err(code::INVALID_VALUE);
        }
        let place = (address & !TAG) as *mut c_void;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: inside a reservation of ours, where nothing is mapped.
        unsafe { mmap(place, bytes as usize, ProtFlags::empty(), flags, memory, 0) }
            .map_err(|_| code::OUT_OF_MEMORY)?;
        self.mapped.insert(address, Mapping { bytes, allowed: false, _memory: Arc::clone(memory) });
        Ok(())
    }

    /// Makes mappings accessible; together they have to cover the range exactly.
    pub fn allow(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.covered(address, bytes, |_| true) != Some(true) {
            return Err(code::INVALID_VALUE);
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: mappings of ours.
        unsafe { mprotect((address & !TAG) as *mut c_void, bytes as usize, access) }
            .map_err(|_| code::OPERATING_SYSTEM)?;
        self.mapped.range_mut(address..address + bytes).for_each(|(_, mapping)| mapping.allowed = true);
        Ok(())
    }

    /// Unmaps what lies in a range; mappings go whole.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Result<(), u32> {
        if self.covered(address, bytes, |_| true) != Some(true) {
            return Err(code::INVALID_VALUE);
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        let place = (address & !TAG) as *mut c_void;
        // SAFETY: mappings of ours inside a reservation of ours, which stays reserved.
        unsafe { mmap_anonymous(place, bytes as usize, ProtFlags::empty(), flags) }
            .map_err(|_| code::OPERATING_SYSTEM)?;
        self.mapped.retain(|start, _| !(address..address + bytes).contains(start));
        Ok(())
    }

    /// Memory at an address of its own, for `cuMemAlloc`.
    pub fn allocate(&mut self, bytes: u64, memory: &Arc<File>) -> Result<u64, u32> {
        let address = self.reserve(bytes)?;
        let mapped = self.map(address, bytes, memory).and_then(|()| self.allow(address, bytes));
        if let Err(code) = mapped {
            let _ = self.unmap(address, bytes);
            let _ = self.unreserve(address, bytes);
            return Err(code);
        }
        self.reserved.remove(&address);
        self.allocated.insert(address, bytes);
        Ok(address)
    }

    /// Undoes [`Space::allocate`].
    pub fn free(&mut self, address: u64) -> Result<(), u32> {
        let bytes = self.allocated.remove(&address).ok_or(code::INVALID_VALUE)?;
        self.reserved.insert(address, bytes);
        self.unmap(address, bytes)?;
        self.unreserve(address, bytes)
    }

    /// From now on the device may use this host memory.
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

    /// Undoes [`Space::register`].
    pub fn unregister(&mut self, address: u64) -> Result<(), u32> {
        match self.host.get(&address) {
            Some(memory) if !memory.is_owned => self.host.remove(&address).map(|_| ()).ok_or(code::UNKNOWN),
            _ => Err(code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Host memory of the driver's own.
    pub fn allocate_host(&mut self, bytes: u64) -> Result<u64, u32> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping wherever the kernel likes.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), bytes as usize, access, MapFlags::PRIVATE) };
        let address = address.map_err(|_| code::OUT_OF_MEMORY)? as u64;
        self.host.insert(address, HostMemory { bytes, is_owned: true });
        Ok(address)
    }

    /// Undoes [`Space::allocate_host`].
    pub fn free_host(&mut self, address: u64) -> Result<(), u32> {
        let ours = self.host.get(&address).is_some_and(|memory| memory.is_owned);
        let memory = if ours { self.host.remove(&address) } else { None }.ok_or(code::INVALID_VALUE)?;
        // SAFETY: the range was mapped by `allocate_host`, and the caller says that it is done with it.
        unsafe { munmap(address as *mut c_void, memory.bytes as usize) }.map_err(|_| code::OPERATING_SYSTEM)
    }

    /// Whether host memory is registered or the driver's.
    pub fn is_host(&self, address: u64, bytes: u64) -> bool {
        self.host.range(..=address).next_back().is_some_and(|(start, memory)| {
            address - start <= memory.bytes && bytes <= memory.bytes - (address - start)
        })
    }

    /// What is held, by name.
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

    fn is_allowed(&self, address: u64, bytes: u64) -> bool {
        self.covered(address, bytes, |mapping| mapping.allowed).is_some()
    }

    /// Whether mappings cover a range without a gap, all as wanted: `Some(true)` if they also begin and end with it.
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

/// Gives back what a mapping of `room` bytes has too much around `bytes` at `address`.
fn trim(start: u64, room: u64, address: u64, bytes: u64) {
    let end = address + bytes;
    for (from, to) in [(start, address), (end, start + room)] {
        if to > from {
            // SAFETY: the two ends of a mapping that was just made, which nobody uses.
            let _ = unsafe { munmap(from as *mut c_void, (to - from) as usize) };
        }
    }
}
