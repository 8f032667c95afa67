//! Streams, and their waits for words of memory.

use std::sync::atomic::Ordering;

use crate::abi::{BatchOperation, InPtr, OutPtr, code};
use crate::call_guard::calls;
use crate::current_context::current;
use crate::objects::objects;
use crate::operation::{Operation, WordOperation};

calls! {
    Context fn cuStreamCreate(stream: OutPtr<usize>, _flags: u32) {
        stream.set(objects().create_stream(current())?)
    }

    Context fn cuStreamCreateWithPriority(stream: OutPtr<usize>, _flags: u32, _priority: i32) {
        stream.set(objects().create_stream(current())?)
    }

    Start fn cuStreamDestroy_v2(stream: usize) {
        objects().destroy_stream(stream)
    }

    Context fn cuStreamQuery(stream: usize) {
        let stream = objects().stream(stream)?;
        if stream.is_idle() { check_health() } else { Err(code::NOT_READY) }
    }

    Context fn cuStreamSynchronize(stream: usize) {
        let stream = objects().stream(stream)?;
        stream.drain();
        check_health()
    }

    Context fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let (stream, event) = objects().both(stream, event)?;
        if let Some(mark) = event.mark() {
            stream.push(Operation::Wait(mark));
        }
        Ok(())
    }

    Context fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        enqueue_words(stream, vec![WordOperation::Wait { address, value, flags }])
    }

    Context fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        enqueue_words(stream, vec![WordOperation::Write { address, value }])
    }

    Context fn cuStreamBatchMemOp_v2(stream: usize, count: u32, operations: InPtr<BatchOperation>, _flags: u32) {
        enqueue_words(stream, batch(&operations, count)?)
    }

    Context fn cuStreamBeginCapture_v2(stream: usize, _mode: u32) {
        objects().stream(stream)?.begin_capture()
    }

    Context fn cuStreamEndCapture(stream: usize, graph: OutPtr<usize>) {
        let operations = objects().stream(stream)?.end_capture()?;
        graph.set(objects().create_graph(operations))
    }
}

/// Parses the operations of a batch.
pub fn batch(operations: &InPtr<BatchOperation>, count: u32) -> Result<Vec<WordOperation>, u32> {
    (0..count as usize).map(|index| WordOperation::from_batch(&operations.at(index)?)).collect()
}

/// Returns the fault of the current context, if it has one.
pub fn check_health() -> Result<(), u32> {
    match objects().context(current())?.fault.load(Ordering::Acquire) {
        0 => Ok(()),
        fault => Err(fault),
    }
}

fn enqueue_words(stream: usize, operations: Vec<WordOperation>) -> Result<(), u32> {
    objects().stream(stream)?.push(Operation::Words(operations));
    Ok(())
}
