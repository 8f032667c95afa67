//! Copies and fills. The synchronous ones use the default stream and wait for it.

use crate::abi::{Copy2d, CopySide, InPtr, code};
use crate::call_guard::calls;
use crate::enqueue::{enqueue, is_captured};
use crate::objects::objects;
use crate::operation::Operation;
use crate::transfer::{Copy, Fill};

calls! {
    Uncaptured fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy(Copy::new(to, from, bytes as u64)))
    }

    Uncaptured fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy(Copy::new(to, from, bytes as u64)))
    }

    Uncaptured fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy(Copy::new(to, from, bytes as u64)))
    }

    Uncaptured fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        run_sync(Operation::Copy(Copy::new(to, from, bytes as u64)))
    }

    Uncaptured fn cuMemcpy2D_v2(copy: InPtr<Copy2d>) {
        run_sync(Operation::Copy(rows(&copy.get()?)?))
    }

    Context fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(Copy::new(to, from, bytes as u64), stream)
    }

    Context fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(Copy::new(to, from, bytes as u64), stream)
    }

    Context fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(Copy::new(to, from, bytes as u64), stream)
    }

    Context fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: usize) {
        copy_async(Copy::new(to, from, bytes as u64), stream)
    }

    Context fn cuMemcpy2DAsync_v2(copy: InPtr<Copy2d>, stream: usize) {
        copy_async(rows(&copy.get()?)?, stream)
    }

    Uncaptured fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        run_sync(fill(to, value.into(), 1, count)?)
    }

    Uncaptured fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        run_sync(fill(to, value.into(), 2, count)?)
    }

    Uncaptured fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        run_sync(fill(to, value, 4, count)?)
    }

    Context fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) {
        enqueue(stream, fill(to, value.into(), 1, count)?)
    }

    Context fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: usize) {
        enqueue(stream, fill(to, value.into(), 2, count)?)
    }

    Context fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: usize) {
        enqueue(stream, fill(to, value, 4, count)?)
    }
}

/// Returns a fill of `count` elements of `element` bytes.
pub fn fill(to: u64, value: u32, element: u32, count: usize) -> Result<Operation, u32> {
    Ok(Operation::Fill(Fill { to, value, element, count: count as u64 }.checked()?))
}

/// Queues a copy. From ordinary host memory it reads before it returns, to it waits for the copy, as the driver does:
/// outside of a capture the caller may use that memory again.
fn copy_async(copy: Copy, stream: usize) -> Result<(), u32> {
    if is_captured(stream) {
        return enqueue(stream, Operation::Copy(copy));
    }
    if let Some(bytes) = copy.staged() {
        return enqueue(stream, Operation::Store { to: copy.to, bytes });
    }
    enqueue(stream, Operation::Copy(copy))?;
    if copy.is_to_pageable() {
        objects().stream(stream)?.drain();
        return super::stream::check_health();
    }
    Ok(())
}

fn run_sync(operation: Operation) -> Result<(), u32> {
    enqueue(0, operation)?;
    let stream = objects().stream(0)?;
    stream.drain();
    super::stream::check_health()
}

/// Converts a copy of rows.
fn rows(copy: &Copy2d) -> Result<Copy, u32> {
    let pitches = [copy.to, copy.from].map(|side| side.pitch.max(copy.width) as u64);
    let [to, from] =
        [(copy.to, pitches[0]), (copy.from, pitches[1])].map(|(side, pitch)| start(&side, pitch));
    Ok(Copy { to: to?, from: from?, bytes: copy.width as u64, rows: copy.height as u64, pitches })
}

fn start(side: &CopySide, pitch: u64) -> Result<u64, u32> {
    let base = match side.kind {
        1 => side.host,
        2 | 4 => side.device,
        _ => return Err(code::NOT_SUPPORTED),
    };
    Ok(base + side.y as u64 * pitch + side.x as u64)
}
