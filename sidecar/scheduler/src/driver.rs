//! Connects the scheduler to its backend (memory and compute), its peers and its planner.
//!
//! One queue orders everything that can change a decision: external events and the reports of memory, compute and the
//! planner. The journal, if enabled, records each event before the scheduler handles it.

use std::collections::VecDeque;

use sluice_policy::ids::Nanos;
use sluice_ports::peers::PeerPort;
use sluice_ports::{Compute, Memory, PlacementPlanner};

use crate::event::{Command, Event, SchedulerOutput};
use crate::journal::Recorder;
use crate::scheduler::Scheduler;

/// Longest wait of an idle driver while the scheduler needs ticks, nanoseconds.
const IDLE_TICK_NS: u64 = 20_000_000;

/// The ports besides memory and compute.
#[derive(Debug)]
pub struct Ports {
    /// Sends commands to the peers.
    pub peers: Box<dyn PeerPort>,
    /// Makes placement plans.
    pub planner: Box<dyn PlacementPlanner>,
}

/// The scheduler with its memory, compute, peer and planner ports.
#[derive(Debug)]
pub struct Driver<M, C> {
    scheduler: Scheduler,
    memory: M,
    compute: C,
    ports: Ports,
    queue: VecDeque<Event>,
    journal: Option<Recorder>,
    outputs: Vec<SchedulerOutput>,
    last_tick: Nanos,
}

impl<M: Memory, C: Compute> Driver<M, C> {
    /// Starts to load the tenant.
    pub fn start(
        ports: Ports,
        now: Nanos,
        mut scheduler: Scheduler,
        memory: M,
        compute: C,
        mut journal: Option<Recorder>,
    ) -> Self {
        if let Some(journal) = &mut journal {
            journal.start(now, &scheduler);
        }
        scheduler.start(now);
        let mut driver = Driver {
            scheduler,
            memory,
            compute,
            ports,
            queue: VecDeque::new(),
            journal,
            outputs: Vec::new(),
            last_tick: now,
        };
        driver.dispatch(now);
        driver
    }

    /// Queues an external event.
    pub fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Handles all events up to `now`. Returns the latest time of the next call if no event arrives earlier.
    pub fn step(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            self.collect(now);
            let Some(event) = self.queue.pop_front() else { break };
            self.handle(now, event);
        }
        if self.scheduler.needs_ticks() && now.since(self.last_tick) >= IDLE_TICK_NS {
            self.last_tick = now;
            self.handle(now, Event::Tick);
        }
        let tick = self.scheduler.needs_ticks().then(|| self.last_tick.plus(IDLE_TICK_NS));
        let planned = self.ports.planner.next_due();
        [tick, self.memory.next_due(), self.compute.next_due(), planned].into_iter().flatten().min()
    }

    /// Returns the scheduler's outputs since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<SchedulerOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// Returns the scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Returns the memory port.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the compute port.
    pub fn compute(&mut self) -> &mut C {
        &mut self.compute
    }

    fn collect(&mut self, now: Nanos) {
        while let Some(completion) = self.memory.poll(now) {
            self.queue.push_back(Event::Memory(completion));
        }
        while let Some(event) = self.compute.poll(now) {
            self.queue.push_back(Event::Compute(event));
        }
        while let Some(answer) = self.ports.planner.poll(now) {
            self.queue.push_back(Event::Plan(answer));
        }
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        if let Some(journal) = &mut self.journal {
            journal.event(now, &event);
        }
        self.scheduler.handle(now, event);
        if let Some(journal) = &mut self.journal {
            journal.outcome(&self.scheduler);
        }
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Nanos) {
        for command in self.scheduler.take_commands() {
            match command {
                Command::Memory(action) => self.memory.submit(now, action),
                Command::Compute(step) => self.compute.submit(now, step),
                Command::Peer(command) => self.ports.peers.send(now, command),
                Command::Slice(call) => self.ports.peers.send_slice_command(now, call),
                Command::Plan(request) => self.ports.planner.submit(now, request),
            }
        }
        self.outputs.append(&mut self.scheduler.take_outputs());
    }
}
