//! Captures of streams into graphs.

use std::ffi::c_void;

use crate::abi::{InPtr, OutPtr, code};
use crate::call_guard::calls;
use crate::capture::exchange_thread_mode;
use crate::objects::objects;

/// `CU_STREAM_CAPTURE_STATUS_NONE`, `_ACTIVE` and `_INVALIDATED`.
const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;
/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`; 0 adds.
const SET: u32 = 1;

calls! {
    Context fn cuStreamBeginCapture_v2(stream: usize, mode: u32) {
        let objects = &mut *objects();
        objects.stream(stream)?;
        // The legacy stream waits for others, which a graph cannot express.
        if stream <= 2 {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        let graph = objects.create_graph();
        let begun = objects.captures.begin(stream, graph, mode);
        if begun.is_err() {
            objects.graphs.remove(&graph);
        }
        begun
    }

    Context fn cuStreamEndCapture(stream: usize, graph: OutPtr<usize>) {
        let objects = &mut *objects();
        objects.stream(stream)?;
        graph.set(0)?;
        let capture = objects.captures.of_stream(stream).ok_or(code::ILLEGAL_STATE)?;
        if capture.origin != stream {
            capture.is_invalid = true;
            return Err(code::STREAM_CAPTURE_UNMATCHED);
        }
        capture.check_thread()?;
        let id = capture.id;
        let ended = objects.captures.end(id).ok_or(code::UNKNOWN)?;
        let made = objects.graphs.get(&ended.graph).ok_or(code::UNKNOWN)?;
        let error = if ended.is_invalid {
            Some(code::STREAM_CAPTURE_INVALIDATED)
        } else if !made.reaches(ended.dependencies(stream), ended.joined()) {
            Some(code::STREAM_CAPTURE_UNJOINED)
        } else {
            None
        };
        match error {
            None => graph.set(ended.graph),
            Some(code) => {
                objects.graphs.remove(&ended.graph);
                Err(code)
            }
        }
    }

    Context fn cuStreamIsCapturing(stream: usize, status: OutPtr<u32>) {
        let objects = &mut *objects();
        objects.stream(stream)?;
        status.set(objects.captures.of_stream(stream).map_or(NONE, |capture| capture_status(capture.is_invalid)))
    }

    Context fn cuStreamGetCaptureInfo_v2(
        stream: usize,
        status: OutPtr<u32>,
        id: OutPtr<u64>,
        graph: OutPtr<usize>,
        dependencies: OutPtr<*const usize>,
        count: OutPtr<usize>,
    ) {
        capture_info(stream, &status, &id, &graph, &dependencies, &count)
    }

    // The data of edges says what programmatic launches wait for: there are none.
    Context fn cuStreamGetCaptureInfo_v3(
        stream: usize,
        status: OutPtr<u32>,
        id: OutPtr<u64>,
        graph: OutPtr<usize>,
        dependencies: OutPtr<*const usize>,
        edges: OutPtr<*const c_void>,
        count: OutPtr<usize>,
    ) {
        let _ = edges.set(std::ptr::null());
        capture_info(stream, &status, &id, &graph, &dependencies, &count)
    }

    Context fn cuStreamUpdateCaptureDependencies(
        stream: usize, dependencies: InPtr<usize>, count: usize, flags: u32,
    ) {
        update_dependencies(stream, &dependencies, count, flags)
    }

    Context fn cuStreamUpdateCaptureDependencies_v2(
        stream: usize, dependencies: InPtr<usize>, edges: *const c_void, count: usize, flags: u32,
    ) {
        if !edges.is_null() {
            return Err(code::NOT_SUPPORTED);
        }
        update_dependencies(stream, &dependencies, count, flags)
    }

    Start fn cuThreadExchangeStreamCaptureMode(mode: OutPtr<u32>) {
        // SAFETY: the caller passes a mode, which is replaced by the one before.
        let wanted = unsafe { InPtr::new(mode.raw().cast_const()) }.get()?;
        mode.set(exchange_thread_mode(wanted)?)
    }
}

fn capture_status(is_invalid: bool) -> u32 {
    if is_invalid { INVALIDATED } else { ACTIVE }
}

/// Every output but the status may be null.
fn capture_info(
    stream: usize,
    status: &OutPtr<u32>,
    id: &OutPtr<u64>,
    graph: &OutPtr<usize>,
    dependencies: &OutPtr<*const usize>,
    count: &OutPtr<usize>,
) -> Result<(), u32> {
    let objects = &mut *objects();
    objects.stream(stream)?;
    let Some(capture) = objects.captures.of_stream(stream) else {
        return status.set(NONE);
    };
    status.set(capture_status(capture.is_invalid))?;
    if !capture.is_invalid {
        let nodes = capture.dependencies(stream);
        let _ = id.set(capture.id);
        let _ = graph.set(capture.graph);
        // Valid until the next call for this stream, as the driver documents it.
        let _ = dependencies.set(nodes.as_ptr());
        let _ = count.set(nodes.len());
    }
    Ok(())
}

fn update_dependencies(stream: usize, nodes: &InPtr<usize>, count: usize, flags: u32) -> Result<(), u32> {
    let nodes: Vec<usize> = (0..count).map(|index| nodes.at(index)).collect::<Result<_, _>>()?;
    let objects = &mut *objects();
    objects.stream(stream)?;
    let capture = objects.captures.of_stream(stream).ok_or(code::ILLEGAL_STATE)?;
    if capture.is_invalid {
        return Err(code::STREAM_CAPTURE_INVALIDATED);
    }
    let graph = objects.graphs.get(&capture.graph).ok_or(code::UNKNOWN)?;
    if flags > SET || nodes.iter().any(|node| graph.node(*node).is_none()) {
        return Err(code::INVALID_VALUE);
    }
    if flags == SET {
        capture.set_dependencies(stream, nodes);
    } else {
        capture.add_dependencies(stream, &nodes);
    }
    Ok(())
}
