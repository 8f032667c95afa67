//! Streams, their waits for words of memory, and functions of the process that they call.

use std::sync::atomic::Ordering;

use crate::abi::{BatchOperation, HostNode, InPtr, OutPtr, code};
use crate::call_guard::calls;
use crate::current_context::current;
use crate::enqueue::{check_uncaptured, enqueue};
use crate::objects::objects;
use crate::operation::{HostFunction, Operation};
use crate::word_operation::WordOperation;

/// The priority that runs first; 0 runs last.
pub const GREATEST_PRIORITY: i32 = -5;

calls! {
    Context fn cuStreamCreate(stream: OutPtr<usize>, flags: u32) {
        stream.set(objects().create_stream(current(), flags, 0)?)
    }

    // As the driver, it takes any priority and uses the nearest.
    Context fn cuStreamCreateWithPriority(stream: OutPtr<usize>, flags: u32, priority: i32) {
        stream.set(objects().create_stream(current(), flags, priority.clamp(GREATEST_PRIORITY, 0))?)
    }

    Context fn cuStreamGetPriority(stream: usize, priority: OutPtr<i32>) {
        priority.set(objects().stream_entry(stream)?.priority)
    }

    Context fn cuStreamGetFlags(stream: usize, flags: OutPtr<u32>) {
        flags.set(objects().stream_entry(stream)?.flags)
    }

    Context fn cuStreamGetCtx(stream: usize, context: OutPtr<usize>) {
        context.set(objects().stream_entry(stream)?.context)
    }

    Start fn cuStreamDestroy_v2(stream: usize) {
        objects().destroy_stream(stream)
    }

    Context fn cuStreamQuery(stream: usize) {
        check_uncaptured(stream)?;
        let stream = objects().stream(stream)?;
        if stream.is_idle() { check_health() } else { Err(code::NOT_READY) }
    }

    Context fn cuStreamSynchronize(stream: usize) {
        check_uncaptured(stream)?;
        let stream = objects().stream(stream)?;
        stream.drain();
        check_health()
    }

    Context fn cuStreamWaitValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        enqueue_word(stream, WordOperation::wait(address, value.into(), flags, false))
    }

    Context fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        enqueue_word(stream, WordOperation::wait(address, value, flags, true))
    }

    Context fn cuStreamWriteValue32_v2(stream: usize, address: u64, value: u32, flags: u32) {
        enqueue_word(stream, WordOperation::write(address, value.into(), flags, false))
    }

    Context fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        enqueue_word(stream, WordOperation::write(address, value, flags, true))
    }

    Context fn cuStreamBatchMemOp_v2(stream: usize, count: u32, operations: InPtr<BatchOperation>, _flags: u32) {
        enqueue(stream, Operation::Words(batch(&operations, count)?))
    }

    Context fn cuLaunchHostFunc(
        stream: usize, function: Option<extern "C" fn(*mut std::ffi::c_void)>, data: *mut std::ffi::c_void,
    ) {
        let function = HostFunction::new(HostNode { function, data }).ok_or(code::INVALID_VALUE)?;
        enqueue(stream, Operation::Host(function))
    }
}

/// Most operations of a batch, as the driver documents it.
const MOST_IN_BATCH: u32 = 256;

/// Parses the operations of a batch.
pub fn batch(operations: &InPtr<BatchOperation>, count: u32) -> Result<Vec<WordOperation>, u32> {
    if count > MOST_IN_BATCH {
        return Err(code::INVALID_VALUE);
    }
    (0..count as usize).map(|index| WordOperation::from_batch(&operations.at(index)?)).collect()
}

/// Returns the fault of the current context, if it has one.
pub fn check_health() -> Result<(), u32> {
    match objects().context(current())?.fault.load(Ordering::Acquire) {
        0 => Ok(()),
        fault => Err(fault),
    }
}

fn enqueue_word(stream: usize, operation: Result<WordOperation, u32>) -> Result<(), u32> {
    enqueue(stream, Operation::Words(vec![operation?]))
}
