//! Device memory that a test owns.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::memory::{Extent, GlobalMemory};

/// Device address of the first allocation.
const FIRST_ADDRESS: u64 = 0x7000_0000_0000;
/// Allocations are aligned as those of `cuMemAlloc`.
const ALIGN: u64 = 256;
/// Least gap between two allocations, in bytes. An access past the end of one is a fault.
const GAP: u64 = 64 << 10;

/// Values that may be copied as bytes.
///
/// # Safety
/// A type without padding, of which every pattern of bits is a value.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($T:ty)*) => { $(
        // SAFETY: a number has no padding, and every pattern of bits is one.
        unsafe impl Plain for $T {}
    )* };
}
plain! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }
// SAFETY: an array of plain values has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Device memory of a test: allocations with gaps between them, which remember what of them was written.
pub struct Arena {
    allocations: Vec<Allocation>,
    next: u64,
}

struct Allocation {
    first: u64,
    bytes: u64,
    host: *mut u8,
    /// One bit a byte, whether it was written; a page of them exists once a byte of it was.
    written: Vec<OnceLock<Box<Page>>>,
}

/// Bits of 32 KiB.
type Page = [AtomicU64; PAGE_WORDS];
const PAGE_WORDS: usize = 512;

// SAFETY: the bytes are only used through raw pointers, by kernels and by the copies of `Arena`.
unsafe impl Send for Allocation {}
// SAFETY: as above; kernels that race on the bytes are what the checked mode looks for.
unsafe impl Sync for Allocation {}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// An arena without allocations.
    pub fn new() -> Self {
        Arena { allocations: Vec::new(), next: FIRST_ADDRESS }
    }

    /// Allocates `bytes` bytes and returns their device address, a multiple of 256. They hold 0xff (NaN as a float) and
    /// count as never written.
    pub fn alloc(&mut self, bytes: u64) -> u64 {
        let address = self.alloc_sparse(bytes);
        let last = self.allocations.last().expect("an allocation was just added");
        // SAFETY: the allocation has `bytes` bytes, and `&mut self` keeps other users away.
        unsafe { last.host.write_bytes(0xff, last.bytes as usize) };
        address
    }

    /// As [`Self::alloc`], but the bytes are zero and take host memory only once they are used: for allocations larger
    /// than the memory of the machine.
    pub fn alloc_sparse(&mut self, bytes: u64) -> u64 {
        let first = self.next;
        self.next = (first + bytes + GAP).next_multiple_of(ALIGN);
        // SAFETY: the layout has a size above zero.
        let host = unsafe { alloc_zeroed(layout(bytes)) };
        if host.is_null() {
            handle_alloc_error(layout(bytes));
        }
        let pages = bytes.div_ceil(64 * PAGE_WORDS as u64);
        let written = (0..pages).map(|_| OnceLock::new()).collect();
        self.allocations.push(Allocation { first, bytes, host, written });
        first
    }

    /// Allocates room for `values` and writes them.
    pub fn alloc_with<T: Plain>(&mut self, values: &[T]) -> u64 {
        let address = self.alloc(size_of_val(values) as u64);
        self.write(address, values);
        address
    }

    /// Writes `values` at `address`.
    ///
    /// # Panics
    /// If the bytes are not within one allocation.
    pub fn write<T: Plain>(&self, address: u64, values: &[T]) {
        let bytes = size_of_val(values);
        let to = self.translate(address, bytes as u64).expect("a write within one allocation");
        // SAFETY: the range was checked; plain values are their bytes.
        unsafe { to.copy_from_nonoverlapping(values.as_ptr().cast(), bytes) };
        self.mark_written(address, bytes as u64);
    }

    /// Reads `count` values at `address`.
    ///
    /// # Panics
    /// If the bytes are not within one allocation.
    pub fn read<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let from =
            self.translate(address, (count * size_of::<T>()) as u64).expect("a read within one allocation");
        // SAFETY: the range was checked; every pattern of bits is a value of `T`.
        (0..count).map(|at| unsafe { from.cast::<T>().add(at).read_unaligned() }).collect()
    }

    fn allocation(&self, address: u64) -> Option<&Allocation> {
        let after = self.allocations.partition_point(|allocation| allocation.first <= address);
        let found = self.allocations.get(after.checked_sub(1)?)?;
        (address - found.first < found.bytes).then_some(found)
    }
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes.max(1) as usize, ALIGN as usize)
        .expect("the size of an allocation fits in memory")
}

impl Allocation {
    /// Calls `visit` for each word of bits of these bytes: its page, its number there, and the bits.
    fn words(&self, address: u64, bytes: u64, mut visit: impl FnMut(&OnceLock<Box<Page>>, usize, u64)) {
        let (mut at, end) = (address - self.first, (address - self.first + bytes).min(self.bytes));
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let word = (at / 64) as usize;
            visit(
                &self.written[word / PAGE_WORDS],
                word % PAGE_WORDS,
                (u64::MAX >> (64 - count)) << (at % 64),
            );
            at += count;
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout and is not used after this.
        unsafe { dealloc(self.host, layout(self.bytes)) };
    }
}

// SAFETY: extents are allocations, which live as long as the arena and never move.
unsafe impl GlobalMemory for Arena {
    fn extent(&self, address: u64) -> Option<Extent> {
        self.allocation(address).map(|found| Extent {
            first: found.first,
            bytes: found.bytes,
            host: found.host,
        })
    }

    fn uninitialised(&self, address: u64, bytes: u64) -> bool {
        let mut missing = false;
        if let Some(found) = self.allocation(address) {
            found.words(address, bytes, |page, word, bits| {
                missing |= page.get().is_none_or(|page| page[word].load(Relaxed) & bits != bits);
            });
        }
        missing
    }

    fn mark_written(&self, address: u64, bytes: u64) {
        if let Some(found) = self.allocation(address) {
            found.words(address, bytes, |page, word, bits| {
                let page = page.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PAGE_WORDS]));
                page[word].fetch_or(bits, Relaxed);
            });
        }
    }
}
