//! Copies and fills. The synchronous ones use the default stream and wait for it.

use crate::call_guard::calls;
use crate::objects::objects;
use crate::operation::Operation;

calls! {
    Context fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy { to, from, bytes: bytes as u64 })
    }

    Context fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy { to, from, bytes: bytes as u64 })
    }

    Context fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy { to, from, bytes: bytes as u64 })
    }

    Context fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        enqueue(Operation::Copy { to, from, bytes: bytes as u64 }, stream)
    }

    Context fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        enqueue(Operation::Copy { to, from, bytes: bytes as u64 }, stream)
    }

    Context fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        enqueue(Operation::Copy { to, from, bytes: bytes as u64 }, stream)
    }

    Context fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        enqueue(Operation::Copy { to, from, bytes: bytes as u64 }, stream)
    }

    Context fn cuMemsetD32_v2(to: u64, word: u32, count: usize) {
        run_sync(Operation::Fill { to, word, count: count as u64 })
    }

    Context fn cuMemsetD32Async(to: u64, word: u32, count: usize, stream: usize) {
        enqueue(Operation::Fill { to, word, count: count as u64 }, stream)
    }

    Context fn cuMemsetD8Async(to: u64, byte: u8, count: usize, stream: usize) {
        if !count.is_multiple_of(4) {
            return Err(crate::abi::code::NOT_SUPPORTED);
        }
        enqueue(Operation::Fill { to, word: u32::from_ne_bytes([byte; 4]), count: count as u64 / 4 }, stream)
    }
}

fn enqueue(operation: Operation, stream: usize) -> Result<(), u32> {
    objects().stream(stream)?.push(operation);
    Ok(())
}

fn run_sync(operation: Operation) -> Result<(), u32> {
    let stream = objects().stream(0)?;
    stream.push(operation);
    stream.drain();
    super::stream::check_health()
}
