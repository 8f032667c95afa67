//! Inputs and commands of the scheduler of a block budget.

use sluice_policy::event::Completion;
use sluice_policy::params::Bounds;
use sluice_policy::reclaim::PolicyName;
use sluice_ports::block_budget::{EngineOrder, EngineReport};
use sluice_ports::peers::PeerPortEvent;

use crate::event::{Command, Sleep};

/// An input of [`super::BudgetScheduler`].
#[derive(Clone, Debug, PartialEq)]
pub enum BudgetEvent {
    /// A memory action completed or failed.
    Memory(Completion),
    /// The engine reports.
    Engine(EngineReport),
    /// A message from a peer, or a change of the time slice.
    Peer(PeerPortEvent),
    /// The tenant releases its memory or restores it.
    Sleep(Sleep),
    /// Switches to another named policy.
    Policy(PolicyName),
    /// Changes the memory share and the cap on remapped memory.
    Bounds(Bounds),
    /// Time passed with nothing else to report.
    Tick,
}

/// A command of [`super::BudgetScheduler`].
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum BudgetCommand {
    /// To memory, a peer or the time slice.
    Port(Command),
    /// To the engine.
    Engine(EngineOrder),
}
