//! The core joined to a body.
//!
//! Everything that can change a decision passes one queue: what comes from outside, what memory, compute and the planner
//! report.
//! Each event is written to the journal, if there is one, before the core sees it.

use std::collections::VecDeque;

use sluice_policy::ids::Nanos;
use sluice_ports::peers::PeerPort;
use sluice_ports::{Compute, Memory, Planner};

use crate::event::{Command, Event, SchedulerOutput};
use crate::journal::Recorder;
use crate::scheduler::Scheduler;

/// How long an idle body may sleep while borrowed memory has yet to flow back.
const IDLE_TICK_NS: u64 = 20_000_000;

/// What there is beside memory and compute.
#[derive(Debug)]
pub struct Ports {
    /// The way to the neighbours.
    pub peers: Box<dyn PeerPort>,
    /// Who makes plans.
    pub planner: Box<dyn Planner>,
}

/// Core, memory, compute, neighbours and planner.
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
        around: Ports,
        now: Nanos,
        mut core: Scheduler,
        memory: M,
        compute: C,
        mut journal: Option<Recorder>,
    ) -> Self {
        if let Some(journal) = &mut journal {
            journal.start(now, &core);
        }
        core.start(now);
        let mut driver = Driver {
            scheduler: core,
            memory,
            compute,
            ports: around,
            queue: VecDeque::new(),
            journal,
            outputs: Vec::new(),
            last_tick: now,
        };
        driver.dispatch(now);
        driver
    }

    /// Adds an event from outside.
    pub fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    /// Handles everything that has happened by `now`. Returns when to come back at the latest, if nothing else happens.
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

    /// Notices since the last call, in order.
    pub fn take_outputs(&mut self) -> Vec<SchedulerOutput> {
        std::mem::take(&mut self.outputs)
    }

    /// The core, to look at.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The memory port.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The compute port.
    pub fn compute(&mut self) -> &mut C {
        &mut self.compute
    }

    /// Ends the recording and takes the body apart.
    pub fn into_parts(self) -> (Scheduler, M, C) {
        (self.scheduler, self.memory, self.compute)
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
                Command::Peer(letter) => self.ports.peers.send(now, letter),
                Command::Turn(call) => self.ports.peers.send_slice_command(now, call),
                Command::Plan(request) => self.ports.planner.submit(now, request),
            }
        }
        self.outputs.append(&mut self.scheduler.take_outputs());
    }
}
