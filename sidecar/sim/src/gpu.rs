//! Several tenants on one GPU in virtual time: each with the production scheduler and policy, one ledger of bytes, one link
//! to the host, one line for turns, letters that take their time.
//!
//! Everything that happens passes one queue ordered by time, so the same options and seed give the same run to the last bit.

pub mod line;
pub mod mail;
pub mod seat;

mod births;
mod dealt;
mod post;

use std::cell::RefCell;
use std::rc::Rc;

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{Quantum, TurnOrder};
use sluice_ports::neighbourhood::TurnCall;
use sluice_scheduler::{Event, Request};

use crate::device::{Detail, Faults};
use crate::ledger::{Ledger, SharedLedger};
use crate::machine::{Machine, SharedMachine};
use crate::rng::Rng;
use line::Line;
use mail::{Mail, Roads};
use seat::{Fate, Life, Said, Seat, TenantSetup};

/// How often a tenant looks at the ledger by itself, nanoseconds.
const LOOK_NS: u64 = 25_000_000;

/// How the tenants of the GPU share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One at a time.
    Temporal {
        /// Least and largest turn.
        quantum: Quantum,
        /// Who is next.
        order: TurnOrder,
    },
    /// All at once: while n steps run, each has an n-th of arithmetic and of memory bandwidth.
    Spatial,
    /// Each has its fixed part of memory and compute. The link is shared.
    Isolated,
}

/// Options of a GPU.
#[derive(Clone, Debug)]
pub struct GpuSetup {
    /// How it is shared.
    pub sharing: Sharing,
    /// Chunks of its memory.
    pub capacity_chunks: u32,
    /// How letters travel.
    pub roads: Roads,
    /// What is simulated.
    pub detail: Detail,
    /// After so long a dead tenant's next life begins, nanoseconds.
    pub rebirth_ns: u64,
    /// Lives record their journals.
    pub recorded: bool,
    /// Of everything that is random here.
    pub seed: u64,
}

/// The GPU.
#[derive(Debug)]
pub struct Gpu {
    setup: GpuSetup,
    /// Its tenants.
    pub seats: Vec<Seat>,
    /// Who holds which bytes.
    pub ledger: SharedLedger,
    /// Link and processors.
    pub machine: SharedMachine,
    line: Line,
    /// Letters on their way.
    pub mail: Mail,
    /// What goes wrong in the devices of lives to come.
    pub faults: Faults,
    /// Invariants of every tenant are checked after each of its events; slow.
    pub checked: bool,
    now: Nanos,
    lives: u64,
    falls: u64,
    rng: Rng,
}

impl Gpu {
    /// A GPU whose tenants start to load at time 0.
    ///
    /// # Errors
    /// The name of a tenant, and why the policy refuses it.
    pub fn new(setup: GpuSetup, tenants: Vec<TenantSetup>) -> Result<Gpu, (String, String)> {
        let machine = Machine::of(setup.sharing == Sharing::Spatial);
        let order = match setup.sharing {
            Sharing::Temporal { order, .. } => order,
            _ => TurnOrder::default(),
        };
        let keeps_tokens = setup.detail == Detail::Fingerprints;
        let mut gpu = Gpu {
            seats: tenants.into_iter().map(|tenant| Seat::new(tenant, keeps_tokens)).collect(),
            ledger: Rc::new(RefCell::new(Ledger::new(setup.capacity_chunks))),
            machine: Rc::new(RefCell::new(machine)),
            line: Line::new(order),
            mail: Mail::new(setup.roads, setup.seed ^ 0x3a11),
            faults: Faults::default(),
            checked: setup.detail == Detail::Fingerprints,
            now: Nanos(0),
            lives: 0,
            falls: 0,
            rng: Rng::new(setup.seed),
            setup,
        };
        for at in 0..gpu.seats.len() {
            let born = gpu.begin_life(at);
            born.map_err(|refused| (gpu.seats[at].setup.name.clone(), refused.to_string()))?;
        }
        Ok(gpu)
    }

    /// Virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// A request that arrives at `at`, later than those that were given before.
    pub fn arrives(&mut self, tenant: usize, at: Nanos, request: Request) {
        self.seats[tenant].arrivals.push_back((at, request));
    }

    /// Requests that came and have not ended, of all tenants.
    pub fn open(&self) -> usize {
        self.seats.iter().map(Seat::open).sum()
    }

    /// Every request has come and ended.
    pub fn is_done(&self) -> bool {
        self.seats.iter().all(Seat::is_done)
    }

    /// Hand-overs of the turn so far.
    pub fn turns(&self) -> u64 {
        self.line.turns()
    }

    /// Runs until every request has ended. `false` = `limit` came first, or nothing more will happen.
    pub fn run_until_done(&mut self, limit: Nanos) -> bool {
        while !self.is_done() {
            if !self.tick(limit) {
                return false;
            }
        }
        true
    }

    /// Runs until `limit`.
    pub fn run_until(&mut self, limit: Nanos) {
        while self.tick(limit) {}
        self.now = self.now.max(limit);
    }

    /// Everything that happens at the next moment at which anything does, at most at `limit`. `false` = nothing does.
    pub fn tick(&mut self, limit: Nanos) -> bool {
        let Some(due) = self.next_due().filter(|due| *due <= limit) else { return false };
        self.now = self.now.max(due);
        while let Some((to, post)) = self.mail.next(self.now) {
            self.deliver(to, post);
        }
        for at in 0..self.seats.len() {
            self.be_reborn(at);
            self.take_arrivals(at);
            self.look_around(at);
            let wakes = self.seats[at].life.as_ref().and_then(Life::wakes_at);
            if wakes.is_some_and(|wakes| wakes <= self.now) {
                self.step(at);
            }
        }
        self.follow();
        true
    }

    fn next_due(&self) -> Option<Nanos> {
        let seats = self.seats.iter().flat_map(|seat| self.due_of(seat));
        seats.chain(self.mail.next_due()).min()
    }

    fn due_of(&self, seat: &Seat) -> impl Iterator<Item = Nanos> {
        let Some(life) = &seat.life else { return [seat.reborn_at, None, None].into_iter().flatten() };
        let arrival = seat.arrivals.front().map(|(at, _)| (*at).max(life.stopped_until));
        let looks = (!self.ledger.borrow().is_quiet() || self.deaths() > 0)
            .then_some(life.looks_at.max(life.stopped_until));
        [life.wakes_at(), arrival, looks].into_iter().flatten()
    }

    /// Lives that have ended.
    fn deaths(&self) -> u64 {
        let living = self.seats.iter().filter(|seat| seat.life.is_some()).count() as u64;
        self.lives - living
    }

    fn take_arrivals(&mut self, at: usize) {
        let (seat, now) = (&mut self.seats[at], self.now);
        let Some(life) = seat.life.as_mut().filter(|life| life.stopped_until <= now) else { return };
        while let Some((at, request)) = seat.arrivals.pop_front_if(|(at, _)| *at <= now) {
            let id = request.id;
            life.due = Some(now);
            life.driver.push(Event::Submit(request));
            seat.fates.insert(id, Fate { arrived: at, ..Fate::default() });
            seat.open += 1;
        }
    }

    /// Lets a tenant handle what has happened, and carries on what it says.
    fn step(&mut self, at: usize) {
        let (seat, now, checked) = (&mut self.seats[at], self.now, self.checked);
        let Some(life) = &mut seat.life else { return };
        life.due = life.driver.step(now);
        if checked {
            life.driver.core().check();
        }
        let (me, said) = (life.me, life.mouth.take());
        seat.hear(now);
        seat.look(now);
        said.into_iter().for_each(|said| self.carry(at, me, said));
    }

    fn carry(&mut self, at: usize, me: Peer, said: Said) {
        match said {
            Said::Letter(letter) => self.send(me, letter),
            Said::Turn(TurnCall::Want) => self.line.want(me, self.seats[at].setup.terms.priority),
            Said::Turn(TurnCall::Release) => self.line.release(me),
        }
        self.settle_line();
    }

    /// The engine of a tenant is killed now.
    pub fn kill_engine(&mut self, at: usize) {
        let now = self.now;
        if let Some(life) = &mut self.seats[at].life {
            life.driver.compute().kill(now);
            life.due = Some(now);
        }
    }

    /// A client goes away.
    pub fn cancel(&mut self, at: usize, request: RequestId) {
        self.push(at, Event::Cancel(request));
    }

    /// Something happens to a tenant now.
    pub fn push(&mut self, at: usize, event: Event) {
        let now = self.now;
        if let Some(life) = &mut self.seats[at].life {
            life.driver.push(event);
            life.due = Some(now);
        }
    }

    /// A tenant's process is stopped for so long: letters, arrivals and completions wait.
    pub fn stop(&mut self, at: usize, for_ns: u64) {
        let until = self.now.plus(for_ns);
        if let Some(life) = &mut self.seats[at].life {
            life.stopped_until = life.stopped_until.max(until);
        }
    }
}
