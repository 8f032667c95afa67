//! Connects the scheduler of a block budget to memory, the engine and the peers.

use std::collections::VecDeque;

use sluice_policy::ids::Nanos;
use sluice_policy::peers::wait_time::WaitSpan;
use sluice_ports::Memory;
use sluice_ports::block_budget::BudgetEngine;
use sluice_ports::peers::PeerPort;

use super::BudgetScheduler;
use super::event::{BudgetCommand, BudgetEvent};
use crate::event::Command;

/// Longest wait while the scheduler needs ticks, nanoseconds.
const TICK_NS: u64 = 20_000_000;

/// The scheduler with its ports. One queue orders everything that can change a decision.
#[derive(Debug)]
pub struct BudgetDriver<M, E> {
    scheduler: BudgetScheduler,
    memory: M,
    engine: E,
    peers: Box<dyn PeerPort>,
    queue: VecDeque<BudgetEvent>,
    last_tick: Nanos,
}

impl<M: Memory, E: BudgetEngine> BudgetDriver<M, E> {
    /// Starts to load the tenant.
    pub fn start(
        now: Nanos,
        mut scheduler: BudgetScheduler,
        memory: M,
        engine: E,
        peers: Box<dyn PeerPort>,
    ) -> Self {
        scheduler.start(now);
        let mut driver =
            BudgetDriver { scheduler, memory, engine, peers, queue: VecDeque::new(), last_tick: now };
        driver.dispatch(now);
        driver
    }

    /// Queues an external event.
    pub fn push(&mut self, event: BudgetEvent) {
        self.queue.push_back(event);
    }

    /// Handles all events up to `now`. Returns the latest time of the next call if no event arrives earlier.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            self.collect(now);
            let Some(event) = self.queue.pop_front() else { break };
            self.handle(now, event);
        }
        if self.scheduler.needs_ticks() && now.since(self.last_tick) >= TICK_NS {
            self.last_tick = now;
            self.handle(now, BudgetEvent::Tick);
        }
        let tick = self.scheduler.needs_ticks().then(|| self.last_tick.plus(TICK_NS));
        [tick, self.memory.next_due(), self.engine.next_due()].into_iter().flatten().min()
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &BudgetScheduler {
        &self.scheduler
    }

    /// Returns the waits for peers that ended since the last call.
    pub fn take_waits(&mut self) -> Vec<WaitSpan> {
        self.scheduler.take_waits()
    }

    /// Returns the memory port.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the engine.
    pub fn engine(&mut self) -> &mut E {
        &mut self.engine
    }

    fn collect(&mut self, now: Nanos) {
        while let Some(completion) = self.memory.poll(now) {
            self.queue.push_back(BudgetEvent::Memory(completion));
        }
        while let Some(report) = self.engine.poll(now) {
            self.queue.push_back(BudgetEvent::Engine(report));
        }
    }

    fn handle(&mut self, now: Nanos, event: BudgetEvent) {
        self.scheduler.handle(now, event);
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Nanos) {
        for command in self.scheduler.take_commands() {
            match command {
                BudgetCommand::Engine(order) => self.engine.submit(now, order),
                BudgetCommand::Port(Command::Memory(action)) => self.memory.submit(now, action),
                BudgetCommand::Port(Command::Peer(command)) => self.peers.send(now, command),
                BudgetCommand::Port(Command::Slice(command)) => self.peers.send_slice_command(now, command),
                BudgetCommand::Port(other @ (Command::Compute(_) | Command::Plan(_))) => {
                    unreachable!("a block budget has no steps and no placement plans: {other:?}")
                }
            }
        }
    }
}
