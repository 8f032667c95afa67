//! All objects that the driver returns as opaque pointers: numbers that are never reused.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::code;
use crate::capture::Captures;
use crate::cublas::descriptor::{MatmulDescriptor, MatrixLayout, Preference};
use crate::current_context::current;
use crate::env_config::ENV_CONFIG;
use crate::event::Event;
use crate::function::Function;
use crate::graph::{Graph, Node};
use crate::operation::Operation;
use crate::pool::Pool;
use crate::stream::{ContextState, Stream};

/// Device memory per context, in bytes.
const CONTEXT_BYTES: u64 = 32 << 20;

/// All objects of this process.
#[derive(Default)]
pub struct Objects {
    next: usize,
    contexts: BTreeMap<usize, Context>,
    /// The primary context and its reference count.
    pub primary: Option<(usize, usize)>,
    streams: BTreeMap<usize, StreamEntry>,
    pub captures: Captures,
    pub events: BTreeMap<usize, Arc<Event>>,
    /// Events that were created without times.
    pub untimed_events: BTreeSet<usize>,
    pub modules: BTreeMap<usize, Arc<sluice_ptx::Module>>,
    pub functions: BTreeMap<usize, Function>,
    pub handles: BTreeMap<u64, Allocation>,
    pub graphs: BTreeMap<usize, Graph>,
    pub ready_graphs: BTreeMap<usize, Graph>,
    pub cublas: CublasObjects,
}

/// A stream with what it was created with.
#[derive(Clone)]
pub struct StreamEntry {
    pub context: usize,
    pub stream: Arc<Stream>,
    /// `CU_STREAM_NON_BLOCKING` is 1.
    pub flags: u32,
    pub priority: i32,
}

/// Physical memory that a handle refers to.
#[derive(Clone)]
pub struct Allocation {
    pub file: Arc<File>,
    /// Kinds of handles that it may be exported as.
    pub handle_types: u32,
}

/// The objects of cuBLASLt.
#[derive(Default)]
pub struct CublasObjects {
    pub handles: BTreeSet<usize>,
    pub descriptors: BTreeMap<usize, MatmulDescriptor>,
    pub layouts: BTreeMap<usize, MatrixLayout>,
    pub preferences: BTreeMap<usize, Preference>,
}

struct Context {
    shared: Arc<ContextState>,
    default_stream: Arc<Stream>,
    /// Device memory that the context takes.
    _memory: File,
}

static OBJECTS: LazyLock<Mutex<Objects>> = LazyLock::new(Mutex::default);

/// The device's memory; `None` without a folder for it.
pub static POOL: LazyLock<Option<Pool>> =
    LazyLock::new(|| ENV_CONFIG.pool.as_deref().map(|folder| Pool::open(folder, ENV_CONFIG.bytes)));

/// The locked objects.
pub struct Guard(MutexGuard<'static, Objects>);

thread_local! {
    static LOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Locks the objects.
///
/// # Panics
/// If this thread has locked them already, which would deadlock: a guard exists until the end of its statement, in the
/// head of a `match` until the end of the `match`.
pub fn objects() -> Guard {
    assert!(!LOCKED.get(), "the objects are locked twice");
    let guard = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    LOCKED.set(true);
    Guard(guard)
}

impl Drop for Guard {
    fn drop(&mut self) {
        LOCKED.set(false);
    }
}

impl std::ops::Deref for Guard {
    type Target = Objects;
    fn deref(&self) -> &Objects {
        &self.0
    }
}

impl std::ops::DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Objects {
        &mut self.0
    }
}

/// Returns the device's memory.
pub fn pool() -> Result<&'static Pool, u32> {
    POOL.as_ref().ok_or(code::NO_DEVICE)
}

impl Objects {
    /// Returns a number for a new object.
    pub fn next_handle(&mut self) -> usize {
        self.next += 1;
        // Neither null nor one of the small numbers of special streams.
        0x1000 + 16 * self.next
    }

    /// Creates a context.
    pub fn create_context(&mut self) -> Result<usize, u32> {
        let memory = pool()?.allocate(CONTEXT_BYTES)?;
        let shared = Arc::new(ContextState::default());
        let default_stream = Stream::start(Arc::clone(&shared));
        let number = self.next_handle();
        self.contexts.insert(number, Context { shared, default_stream, _memory: memory });
        Ok(number)
    }

    /// Destroys a context and its streams.
    pub fn destroy_context(&mut self, context: usize) -> Result<(), u32> {
        let gone = self.contexts.remove(&context).ok_or(code::INVALID_CONTEXT)?;
        gone.shared.is_closed.store(true, std::sync::atomic::Ordering::Release);
        gone.default_stream.close();
        self.streams.retain(|_, entry| {
            if entry.context == context {
                entry.stream.close();
            }
            entry.context != context
        });
        Ok(())
    }

    /// Returns the state that a context shares with its streams.
    pub fn context(&self, context: usize) -> Result<&Arc<ContextState>, u32> {
        self.contexts.get(&context).map(|context| &context.shared).ok_or(code::INVALID_CONTEXT)
    }

    /// Creates a stream of a context.
    pub fn create_stream(&mut self, context: usize, flags: u32, priority: i32) -> Result<usize, u32> {
        if flags > 1 {
            return Err(code::INVALID_VALUE);
        }
        let stream = Stream::start(Arc::clone(self.context(context)?));
        let number = self.next_handle();
        self.streams.insert(number, StreamEntry { context, stream, flags, priority });
        Ok(number)
    }

    /// Returns a stream; the small numbers are the default stream of the current context.
    pub fn stream(&self, stream: usize) -> Result<Arc<Stream>, u32> {
        self.stream_entry(stream).map(|entry| entry.stream)
    }

    /// Returns a stream with what it was created with.
    pub fn stream_entry(&self, stream: usize) -> Result<StreamEntry, u32> {
        if stream > 2 {
            return self.streams.get(&stream).cloned().ok_or(code::INVALID_HANDLE);
        }
        let context = self.contexts.get(&current()).ok_or(code::INVALID_CONTEXT)?;
        let stream = Arc::clone(&context.default_stream);
        Ok(StreamEntry { context: current(), stream, flags: 0, priority: 0 })
    }

    /// Returns all streams of a context.
    pub fn streams_of(&self, context: usize) -> Vec<Arc<Stream>> {
        let own = self.streams.values().filter(|entry| entry.context == context);
        let default = self.contexts.get(&context).map(|context| Arc::clone(&context.default_stream));
        own.map(|entry| Arc::clone(&entry.stream)).chain(default).collect()
    }

    /// Returns the streams of a context that wait for its legacy stream.
    pub fn blocking_streams(&self, context: usize) -> Vec<usize> {
        let own = self.streams.iter().filter(|(_, entry)| entry.context == context && entry.flags == 0);
        own.map(|(number, _)| *number).collect()
    }

    /// Destroys a stream after its queued work is done. A capture that it began ends without a graph.
    pub fn destroy_stream(&mut self, stream: usize) -> Result<(), u32> {
        let entry = self.streams.remove(&stream).ok_or(code::INVALID_HANDLE)?;
        entry.stream.close();
        let begun = self.captures.of_stream(stream).filter(|capture| capture.origin == stream);
        if let Some(id) = begun.map(|capture| capture.id)
            && let Some(capture) = self.captures.end(id)
        {
            self.graphs.remove(&capture.graph);
        }
        Ok(())
    }

    /// Returns an event.
    pub fn event(&self, event: usize) -> Result<Arc<Event>, u32> {
        self.events.get(&event).map(Arc::clone).ok_or(code::INVALID_HANDLE)
    }

    /// Returns a stream and an event.
    pub fn both(&self, stream: usize, event: usize) -> Result<(Arc<Stream>, Arc<Event>), u32> {
        Ok((self.stream(stream)?, self.event(event)?))
    }

    /// Creates an empty graph.
    pub fn create_graph(&mut self) -> usize {
        let number = self.next_handle();
        self.graphs.insert(number, Graph::default());
        number
    }

    /// Adds a node to a graph that is not instantiated, after nodes of it.
    pub fn add_node(
        &mut self,
        graph: usize,
        operation: Operation,
        dependencies: Vec<usize>,
    ) -> Result<usize, u32> {
        let number = self.next_handle();
        let graph = self.graphs.get_mut(&graph).ok_or(code::INVALID_VALUE)?;
        if dependencies.iter().any(|node| graph.node(*node).is_none()) {
            return Err(code::INVALID_VALUE);
        }
        graph.nodes.push(Node::new(number, operation, dependencies));
        Ok(number)
    }

    /// Returns a node of a graph that is not instantiated.
    pub fn node(&self, node: usize) -> Result<&Node, u32> {
        self.graphs.values().find_map(|graph| graph.node(node)).ok_or(code::INVALID_VALUE)
    }

    /// Returns the numbers of held objects by name.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("contexts", self.contexts.len()),
            ("streams", self.streams.len()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
            ("handles", self.handles.len()),
            ("graphs", self.graphs.len() + self.ready_graphs.len()),
            ("cublas_handles", self.cublas.handles.len()),
            (
                "cublas_descriptors",
                self.cublas.descriptors.len() + self.cublas.layouts.len() + self.cublas.preferences.len(),
            ),
        ]
    }
}
