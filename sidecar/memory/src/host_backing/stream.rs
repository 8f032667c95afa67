//! Copies that bypass the cache with stores that do not first read the line they overwrite. For slabs larger
//! than the caches this nearly doubles the bandwidth. For smaller ones an ordinary copy is faster, and its
//! reader finds the lines in cache.

/// Copies `bytes` bytes with streaming stores.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    let head = to.align_offset(LINE).min(bytes);
    let layer_blocks = (bytes - head) / BLOCK;
    let tail = head + layer_blocks * BLOCK;
    // SAFETY: head, blocks and tail partition `0..bytes`, for which the caller guarantees both ranges, and
    // `to + head` is aligned to a line. The fence orders the streaming stores before later stores that
    // publish them.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for at in (head..tail).step_by(BLOCK) {
            copy_layer_block(from.add(at), to.add(at));
        }
        std::arch::x86_64::_mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
/// Bytes between two streams of a block.
#[cfg(target_arch = "x86_64")]
const STRIDE: usize = 4096;
/// Number of streams that are read concurrently, so that more lines are in flight from memory.
#[cfg(target_arch = "x86_64")]
const STREAMS: usize = 4;
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = STREAMS * STRIDE;

/// Copies one block, one line of each stream at a time.
///
/// # Safety
/// As [`copy`] for `BLOCK` bytes; `to` is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_layer_block(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const VECTOR_BYTES: usize = size_of::<__m128i>();
    for line in (0..STRIDE).step_by(LINE) {
        for at in (0..STREAMS).map(|stream| stream * STRIDE + line) {
            // SAFETY: `at + LINE <= BLOCK`; SSE2 is part of x86_64; `to + at` is aligned as streaming stores
            // need.
            unsafe {
                let parts: [__m128i; LINE / VECTOR_BYTES] =
                    std::array::from_fn(|part| _mm_loadu_si128(from.add(at + part * VECTOR_BYTES).cast()));
                for (part, value) in parts.into_iter().enumerate() {
                    _mm_stream_si128(to.add(at + part * VECTOR_BYTES).cast(), value);
                }
            }
        }
    }
}

/// Copies `bytes` bytes with an ordinary copy, on machines without streaming stores.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes` bytes, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees both ranges.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}
