//! All objects that the driver returns as opaque pointers: numbers that are never reused.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::code;
use crate::cublas::descriptor::{MatmulDescriptor, MatrixLayout, Preference};
use crate::current_context::current;
use crate::env_config::ENV_CONFIG;
use crate::event::Event;
use crate::graph::{Graph, Node};
use crate::kernels::Kernel;
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
    streams: BTreeMap<usize, (usize, Arc<Stream>)>,
    pub events: BTreeMap<usize, Arc<Event>>,
    pub modules: BTreeMap<usize, String>,
    pub functions: BTreeMap<usize, Function>,
    pub handles: BTreeMap<u64, Arc<File>>,
    pub graphs: BTreeMap<usize, Graph>,
    pub ready_graphs: BTreeMap<usize, Graph>,
    pub cublas: CublasObjects,
}

/// The objects of cuBLASLt.
#[derive(Default)]
pub struct CublasObjects {
    pub handles: BTreeSet<usize>,
    pub descriptors: BTreeMap<usize, MatmulDescriptor>,
    pub layouts: BTreeMap<usize, MatrixLayout>,
    pub preferences: BTreeMap<usize, Preference>,
}

/// A kernel of a module.
#[derive(Clone, Copy)]
pub struct Function {
    /// Module of the kernel.
    pub module: usize,
    /// The kernel.
    pub kernel: Kernel,
    /// Whether its code is loaded; the first launch loads it.
    pub loaded: bool,
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
        self.streams.retain(|_, (owner, stream)| {
            if *owner == context {
                stream.close();
            }
            *owner != context
        });
        Ok(())
    }

    /// Returns the state that a context shares with its streams.
    pub fn context(&self, context: usize) -> Result<&Arc<ContextState>, u32> {
        self.contexts.get(&context).map(|context| &context.shared).ok_or(code::INVALID_CONTEXT)
    }

    /// Creates a stream of a context.
    pub fn create_stream(&mut self, context: usize) -> Result<usize, u32> {
        let stream = Stream::start(Arc::clone(self.context(context)?));
        let number = self.next_handle();
        self.streams.insert(number, (context, stream));
        Ok(number)
    }

    /// Returns a stream; the small numbers are the default stream of the current context.
    pub fn stream(&self, stream: usize) -> Result<Arc<Stream>, u32> {
        if stream <= 2 {
            let context = self.contexts.get(&current()).ok_or(code::INVALID_CONTEXT)?;
            return Ok(Arc::clone(&context.default_stream));
        }
        self.streams.get(&stream).map(|(_, stream)| Arc::clone(stream)).ok_or(code::INVALID_HANDLE)
    }

    /// Returns all streams of a context.
    pub fn streams_of(&self, context: usize) -> Vec<Arc<Stream>> {
        let own = self.streams.values().filter(|(owner, _)| *owner == context);
        let default = self.contexts.get(&context).map(|context| Arc::clone(&context.default_stream));
        own.map(|(_, stream)| Arc::clone(stream)).chain(default).collect()
    }

    /// Destroys a stream after its queued work is done.
    pub fn destroy_stream(&mut self, stream: usize) -> Result<(), u32> {
        let (_, stream) = self.streams.remove(&stream).ok_or(code::INVALID_HANDLE)?;
        stream.close();
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

    /// Creates a graph that runs `operations` in order.
    pub fn create_graph(&mut self, operations: Vec<Operation>) -> usize {
        let nodes =
            operations.into_iter().map(|operation| Node::new(self.next_handle(), operation)).collect();
        let number = self.next_handle();
        self.graphs.insert(number, Graph { nodes });
        number
    }

    /// Returns a node of a graph that is not instantiated.
    pub fn node(&self, node: usize) -> Result<&Node, u32> {
        let mut nodes = self.graphs.values().flat_map(|graph| &graph.nodes);
        nodes.find(|known| known.handle == node).ok_or(code::INVALID_VALUE)
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
