//! Gives work to a stream: it is queued, or becomes a node of the graph that the stream is captured into.

use std::sync::Arc;

use crate::abi::code;
use crate::capture::CapturedEvent;
use crate::current_context::current;
use crate::event::LastRecord;
use crate::graph::Node;
use crate::objects::{Objects, objects};
use crate::operation::Operation;

/// `CU_EVENT_RECORD_EXTERNAL` and `CU_EVENT_WAIT_EXTERNAL`: the operation is a node of its own in a capture.
const EXTERNAL: u32 = 1;

/// Queues or captures an operation.
pub fn enqueue(stream: usize, operation: Operation) -> Result<(), u32> {
    enqueue_in(&mut objects(), stream, operation)
}

/// Queues operations, or captures them as one node.
pub fn enqueue_graph(stream: usize, operations: Vec<Operation>) -> Result<(), u32> {
    let objects = &mut *objects();
    if objects.captures.of_stream(stream).is_some() {
        return enqueue_in(objects, stream, Operation::Graph(operations.into()));
    }
    check_implicit(objects, stream)?;
    objects.stream(stream)?.extend(operations);
    Ok(())
}

/// Whether a stream is captured.
pub fn is_captured(stream: usize) -> bool {
    objects().captures.of_stream(stream).is_some()
}

/// Records an event.
pub fn record(event: usize, stream: usize, flags: u32) -> Result<(), u32> {
    let objects = &mut *objects();
    let (_, event) = objects.both(stream, event)?;
    let Some(capture) = objects.captures.of_stream(stream) else {
        return enqueue_in(objects, stream, Operation::Record(event.renew()));
    };
    if capture.is_invalid {
        return Err(code::STREAM_CAPTURE_INVALIDATED);
    }
    if flags & EXTERNAL != 0 {
        return enqueue_in(objects, stream, Operation::Record(event.renew()));
    }
    let dependencies = capture.dependencies(stream).to_vec();
    event.capture(CapturedEvent { capture: capture.id, dependencies });
    Ok(())
}

/// Makes a stream wait for an event. A captured event makes the stream join its capture.
pub fn wait(stream: usize, event: usize, flags: u32) -> Result<(), u32> {
    let objects = &mut *objects();
    let (_, event) = objects.both(stream, event)?;
    let own = objects.captures.of_stream(stream).map(|capture| capture.id);
    match event.last() {
        None => Ok(()),
        Some(LastRecord::Recorded(mark)) if own.is_none() || flags & EXTERNAL != 0 => {
            enqueue_in(objects, stream, Operation::Wait(mark))
        }
        Some(LastRecord::Recorded(_)) => {
            objects.captures.invalidate_of(&[stream]);
            Err(code::STREAM_CAPTURE_ISOLATION)
        }
        Some(LastRecord::Captured(captured)) => {
            if own.is_some_and(|own| own != captured.capture) {
                objects.captures.invalidate_of(&[stream]);
                return Err(code::STREAM_CAPTURE_MERGE);
            }
            // An event of a capture that has ended is reached by nothing.
            let capture = objects.captures.with_id(captured.capture).ok_or(code::CAPTURED_EVENT)?;
            if capture.is_invalid {
                return Err(code::STREAM_CAPTURE_INVALIDATED);
            }
            capture.add_dependencies(stream, &captured.dependencies);
            Ok(())
        }
    }
}

/// Refuses a call that asks for the work of a captured stream, and invalidates the capture.
pub fn check_uncaptured(stream: usize) -> Result<(), u32> {
    if objects().captures.invalidate_of(&[stream]) { Err(code::STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

fn enqueue_in(objects: &mut Objects, stream: usize, operation: Operation) -> Result<(), u32> {
    let queue = Arc::clone(&objects.stream(stream)?);
    let node = objects.next_handle();
    let Some(capture) = objects.captures.of_stream(stream) else {
        check_implicit(objects, stream)?;
        queue.push(operation);
        return Ok(());
    };
    if capture.is_invalid {
        return Err(code::STREAM_CAPTURE_INVALIDATED);
    }
    let dependencies = capture.dependencies(stream).to_vec();
    capture.set_dependencies(stream, vec![node]);
    let graph = objects.graphs.get_mut(&capture.graph).ok_or(code::UNKNOWN)?;
    graph.nodes.push(Node::new(node, operation, dependencies));
    Ok(())
}

/// Refuses work of the legacy stream while a stream that would wait for it is captured, and invalidates the capture.
fn check_implicit(objects: &mut Objects, stream: usize) -> Result<(), u32> {
    if stream > 1 {
        return Ok(());
    }
    let blocking = objects.blocking_streams(current());
    if objects.captures.invalidate_of(&blocking) { Err(code::STREAM_CAPTURE_IMPLICIT) } else { Ok(()) }
}
