//! What a handle of the C functions stands for.

use std::os::fd::BorrowedFd;

use crate::failure::Failure;
use crate::inbox::Deadline;
use crate::scheduler::Scheduler;
use crate::worker::Worker;

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Link {
    Worker(Box<Worker>),
    Scheduler(Box<Scheduler>),
}

impl Link {
    /// Returns the worker.
    ///
    /// # Errors
    /// The link is a scheduler's.
    pub(crate) fn worker(&self) -> Result<&Worker, Failure> {
        match self {
            Link::Worker(worker) => Ok(worker),
            Link::Scheduler(_) => Err(Failure::State("the link is a scheduler's".to_owned())),
        }
    }

    pub(crate) fn setup_text(&self) -> &str {
        match self {
            Link::Worker(worker) => worker.setup_text(),
            Link::Scheduler(scheduler) => scheduler.setup_text(),
        }
    }

    pub(crate) fn receive(&self, deadline: Deadline) -> Result<(*const u8, usize), Failure> {
        match self {
            Link::Worker(worker) => worker.receive(deadline),
            Link::Scheduler(scheduler) => scheduler.receive(deadline),
        }
    }

    pub(crate) fn send(&self, text: &[u8]) -> Result<(), Failure> {
        match self {
            Link::Worker(worker) => worker.send(text),
            Link::Scheduler(scheduler) => scheduler.send(text),
        }
    }

    pub(crate) fn shutdown(&self) {
        match self {
            Link::Worker(worker) => worker.shutdown(),
            Link::Scheduler(scheduler) => scheduler.shutdown(),
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Link::Worker(worker) => worker.socket(),
            Link::Scheduler(scheduler) => scheduler.socket(),
        }
    }
}
