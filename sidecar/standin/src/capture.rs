//! Captures of streams: their streams, and the nodes that later work of each stream depends on.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::thread::{self, ThreadId};

use crate::abi::code;

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, `_THREAD_LOCAL` and `_RELAXED`.
const MODE_GLOBAL: u32 = 0;
const MODE_RELAXED: u32 = 2;

thread_local! {
    /// The mode of this thread, as `cuThreadExchangeStreamCaptureMode` sets it.
    static THREAD_MODE: Cell<u32> = const { Cell::new(MODE_GLOBAL) };
}

/// Sets the mode of this thread and returns the mode before.
pub fn exchange_thread_mode(mode: u32) -> Result<u32, u32> {
    if mode > MODE_RELAXED { Err(code::INVALID_VALUE) } else { Ok(THREAD_MODE.replace(mode)) }
}

/// A capture.
pub struct Capture {
    /// A number that no other capture of the process has.
    pub id: u64,
    /// The graph that receives the nodes.
    pub graph: usize,
    /// The stream that began it, which must end it.
    pub origin: usize,
    /// Whether an operation was not allowed; the capture can only be ended.
    pub is_invalid: bool,
    mode: u32,
    thread: ThreadId,
    /// Of each captured stream the nodes that its next operation depends on.
    dependencies: BTreeMap<usize, Vec<usize>>,
}

/// A record of an event inside a capture: the capture, and the nodes before the event.
#[derive(Clone)]
pub struct CapturedEvent {
    /// The capture's number.
    pub capture: u64,
    /// The nodes that a wait for the event depends on.
    pub dependencies: Vec<usize>,
}

/// The captures that have not ended.
#[derive(Default)]
pub struct Captures {
    active: Vec<Capture>,
    last_id: u64,
}

impl Capture {
    /// Whether the driver lets this thread end it.
    pub fn check_thread(&self) -> Result<(), u32> {
        let is_own = self.mode == MODE_RELAXED || self.thread == thread::current().id();
        if is_own { Ok(()) } else { Err(code::STREAM_CAPTURE_WRONG_THREAD) }
    }

    /// Returns the nodes that the next operation of a captured stream depends on.
    pub fn dependencies(&self, stream: usize) -> &[usize] {
        self.dependencies.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// Makes later work of a stream, which joins the capture if it is not in it, depend on these nodes only.
    pub fn set_dependencies(&mut self, stream: usize, nodes: Vec<usize>) {
        self.dependencies.insert(stream, nodes);
    }

    /// Makes later work of a stream, which joins the capture if it is not in it, depend on these nodes too.
    pub fn add_dependencies(&mut self, stream: usize, nodes: &[usize]) {
        let known = self.dependencies.entry(stream).or_default();
        known.extend_from_slice(nodes);
        known.sort_unstable();
        known.dedup();
    }

    /// Returns the last nodes of the streams that joined.
    pub fn joined(&self) -> impl Iterator<Item = usize> {
        self.dependencies
            .iter()
            .filter(|(stream, _)| **stream != self.origin)
            .flat_map(|(_, nodes)| nodes.clone())
    }
}

impl Captures {
    /// Begins a capture of a stream into a graph.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown mode; `ILLEGAL_STATE` if the stream is captured.
    pub fn begin(&mut self, stream: usize, graph: usize, mode: u32) -> Result<(), u32> {
        if mode > MODE_RELAXED {
            return Err(code::INVALID_VALUE);
        }
        if self.of_stream(stream).is_some() {
            return Err(code::ILLEGAL_STATE);
        }
        self.last_id += 1;
        self.active.push(Capture {
            id: self.last_id,
            graph,
            origin: stream,
            is_invalid: false,
            mode,
            thread: thread::current().id(),
            dependencies: BTreeMap::from([(stream, Vec::new())]),
        });
        Ok(())
    }

    /// Ends a capture and returns it.
    pub fn end(&mut self, id: u64) -> Option<Capture> {
        let place = self.active.iter().position(|capture| capture.id == id)?;
        Some(self.active.remove(place))
    }

    /// Returns the capture of a stream.
    pub fn of_stream(&mut self, stream: usize) -> Option<&mut Capture> {
        self.active.iter_mut().find(|capture| capture.dependencies.contains_key(&stream))
    }

    /// Returns a capture by its number.
    pub fn with_id(&mut self, id: u64) -> Option<&mut Capture> {
        self.active.iter_mut().find(|capture| capture.id == id)
    }

    /// Whether a graph still receives nodes.
    pub fn is_into(&self, graph: usize) -> bool {
        self.active.iter().any(|capture| capture.graph == graph)
    }

    /// Invalidates the captures that one of these streams belongs to. Returns whether there was one.
    pub fn invalidate_of(&mut self, streams: &[usize]) -> bool {
        let mut found = false;
        for capture in &mut self.active {
            if streams.iter().any(|stream| capture.dependencies.contains_key(stream)) {
                capture.is_invalid = true;
                found = true;
            }
        }
        found
    }

    /// Checks a call that may wait for other work or allocate, which captures forbid by their modes. It invalidates the
    /// captures that forbid it.
    pub fn check_unsafe_call(&mut self) -> Result<(), u32> {
        let (mode, own) = (THREAD_MODE.get(), thread::current().id());
        let forbids = |capture: &Capture| {
            capture.mode != MODE_RELAXED && capture.thread == own
                || mode == MODE_GLOBAL && capture.mode == MODE_GLOBAL
        };
        if mode == MODE_RELAXED || !self.active.iter().any(&forbids) {
            return Ok(());
        }
        self.active
            .iter_mut()
            .filter(|capture| forbids(capture))
            .for_each(|capture| capture.is_invalid = true);
        Err(code::STREAM_CAPTURE_UNSUPPORTED)
    }
}
