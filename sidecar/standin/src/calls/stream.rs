//! Streams, and their waits for words of memory.

use std::sync::atomic::Ordering;

use crate::abi::{BatchOperation, In, Out, code};
use crate::entry::{calls, current};
use crate::objects::objects;
use crate::operation::{Operation, WordOperation};

calls! {
    Context fn cuStreamCreate(stream: Out<usize>, _flags: u32) {
        stream.set(objects().create_stream(current())?)
    }

    Context fn cuStreamCreateWithPriority(stream: Out<usize>, _flags: u32, _priority: i32) {
        stream.set(objects().create_stream(current())?)
    }

    Start fn cuStreamDestroy_v2(stream: usize) {
        objects().destroy_stream(stream)
    }

    Context fn cuStreamQuery(stream: usize) {
        let stream = objects().stream(stream)?;
        if stream.idle() { health() } else { Err(code::NOT_READY) }
    }

    Context fn cuStreamSynchronize(stream: usize) {
        let stream = objects().stream(stream)?;
        stream.drain();
        health()
    }

    Context fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let (stream, event) = objects().both(stream, event)?;
        if let Some(mark) = event.mark() {
            stream.push(Operation::Wait(mark));
        }
        Ok(())
    }

    Context fn cuStreamWaitValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        words(stream, vec![WordOperation::Wait { address, value, flags }])
    }

    Context fn cuStreamWriteValue64_v2(stream: usize, address: u64, value: u64, flags: u32) {
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        words(stream, vec![WordOperation::Write { address, value }])
    }

    Context fn cuStreamBatchMemOp_v2(stream: usize, count: u32, operations: In<BatchOperation>, _flags: u32) {
        words(stream, batch(&operations, count)?)
    }

    Context fn cuStreamBeginCapture_v2(stream: usize, _mode: u32) {
        objects().stream(stream)?.begin_capture()
    }

    Context fn cuStreamEndCapture(stream: usize, graph: Out<usize>) {
        let operations = objects().stream(stream)?.end_capture()?;
        graph.set(super::graph::add(operations))
    }
}

/// The operations of a batch.
pub fn batch(operations: &In<BatchOperation>, count: u32) -> Result<Vec<WordOperation>, u32> {
    (0..count as usize).map(|index| WordOperation::from_batch(&operations.at(index)?)).collect()
}

/// The fault of the current context, if it has one.
pub fn health() -> Result<(), u32> {
    match objects().context(current())?.fault.load(Ordering::Acquire) {
        0 => Ok(()),
        fault => Err(fault),
    }
}

fn words(stream: usize, operations: Vec<WordOperation>) -> Result<(), u32> {
    objects().stream(stream)?.push(Operation::Words(operations));
    Ok(())
}
