//! The operations of streams.

use std::cell::Cell;
use std::sync::Arc;

use crate::abi::HostNode;
use crate::cublas::matmul::Matmul;
use crate::event::RecordedEvent;
use crate::kernels::Launch;
use crate::transfer::{Copy, Fill, store};
use crate::word_operation::WordOperation;

thread_local! {
    /// Whether this thread runs a host function, which must not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a host function of a stream.
pub fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// One operation.
#[derive(Clone)]
pub enum Operation {
    /// Copies bytes.
    Copy(Copy),
    /// Writes bytes that were ordinary host memory when the copy was queued.
    Store { to: u64, bytes: Arc<[u8]> },
    /// Fills memory.
    Fill(Fill),
    /// Runs a kernel.
    Kernel(Launch),
    /// Runs a product of cuBLASLt.
    Matmul(Box<Matmul>),
    /// Waits for words and writes words, in order.
    Words(Vec<WordOperation>),
    /// Calls a function of the process.
    Host(HostFunction),
    /// Runs operations in order: a graph inside a graph.
    Graph(Arc<[Operation]>),
    /// Does nothing: an empty node.
    Nothing,
    /// Marks an event as reached.
    Record(Arc<RecordedEvent>),
    /// Waits for an event.
    Wait(Arc<RecordedEvent>),
}

/// A function of the process with its argument.
#[derive(Clone, Copy)]
pub struct HostFunction(HostNode);

// SAFETY: who queues the function guarantees, as for the driver, that it may be called with the argument on any thread.
unsafe impl Send for HostFunction {}
// SAFETY: as above.
unsafe impl Sync for HostFunction {}

impl HostFunction {
    /// Wraps a function that is not null.
    pub fn new(node: HostNode) -> Option<Self> {
        node.function.map(|_| Self(node))
    }

    fn call(self) {
        let Some(function) = self.0.function else { return };
        IN_HOST_FUNCTION.set(true);
        function(self.0.data);
        IN_HOST_FUNCTION.set(false);
    }
}

impl Operation {
    /// Runs the operation. A long one stops when `given_up` returns `true`.
    ///
    /// # Errors
    /// The fault that the device would report.
    pub fn run(&self, given_up: &(dyn Fn() -> bool + Sync)) -> Result<(), u32> {
        match self {
            Self::Copy(copy) => copy.run()?,
            Self::Store { to, bytes } => store(*to, bytes)?,
            Self::Fill(fill) => fill.run()?,
            Self::Kernel(launch) => launch.run(given_up)?,
            Self::Matmul(matmul) => matmul.run()?,
            Self::Words(all) => all.iter().try_for_each(|one| one.run(given_up))?,
            Self::Host(function) => function.call(),
            Self::Graph(operations) => operations.iter().try_for_each(|one| one.run(given_up))?,
            Self::Nothing => {}
            Self::Record(mark) => mark.reach(),
            Self::Wait(mark) => mark.wait(given_up),
        }
        Ok(())
    }
}
