//! Messages to the loop of an engine that schedules by itself.

use sluice_link::server::scheduler::SchedulerEvent;
use sluice_link::server::worker::{WorkerEvent, WorkerSender};
use sluice_scheduler::block_budget::BudgetEvent;

use super::engine::SchedulerEnd;

/// What happens to the engine.
#[derive(Debug)]
pub enum EngineMessage {
    /// A worker has its memory. Nothing is mapped in it.
    WorkerAttached(WorkerSender),
    /// The worker reports.
    Worker(WorkerEvent),
    /// A scheduler has connected.
    SchedulerConnected(Box<dyn SchedulerEnd>),
    /// The scheduler reports.
    Scheduler(SchedulerEvent),
    /// All processes of the engine have exited. Holds the reason why its link ended.
    Lost(String),
}

/// A message to the loop.
#[derive(Debug)]
pub enum LoopMessage {
    /// From the engine.
    Engine(EngineMessage),
    /// For the scheduler of the block budget.
    Event(Box<BudgetEvent>),
    /// A copy has ended, or a pass has begun.
    Wake,
    /// The loop ends.
    Stop,
}
