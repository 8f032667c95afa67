//! One block: its warps in turn, its shared memory and its barriers.

use std::sync::Arc;

use crate::barriers::{ARRIVE, Arrival, Barrier, Barriers, COUNT, NOT};
use crate::check::Checks;
use crate::fault::{Fault, FaultKind, Place};
use crate::lanes::{LANES, NONE, Slot};
use crate::launch::{Mode, Shared, Stats};
use crate::profile::Profile;
use crate::scope::{Constant, Special};
use crate::view::{Surroundings, Watch};
use crate::warp::{Failure, Stop, Warp};

/// What a warp does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    AtBarrier,
    Done,
}

/// The warps and the memory of a block; used for one block after the other.
pub(crate) struct Block<'a> {
    shared: &'a Shared<'a>,
    warps: Vec<Warp>,
    states: Vec<State>,
    barriers: Barriers,
    /// Shared memory in words, so that it is aligned for every access.
    memory: Vec<u128>,
    memory_bytes: u64,
    local: Vec<u128>,
    number: u64,
    cta: [u32; 3],
    threads: u32,
    random: u64,
    /// Checks and counts, unless the launch is a fast one.
    watch: Option<Watch>,
}

impl<'a> Block<'a> {
    pub fn new(shared: &'a Shared<'a>) -> Self {
        let (kernel, launch) = (shared.kernel, shared.launch);
        let threads: u32 = launch.block.iter().product();
        let count = threads.div_ceil(LANES as u32) as usize;
        let memory_bytes = match launch.dynamic_shared_bytes {
            0 => u64::from(kernel.static_shared_bytes),
            more => u64::from(kernel.dynamic_shared_start() + more),
        };
        let local_bytes = kernel.local_bytes as usize * LANES * count;
        let mut block = Block {
            shared,
            warps: (0..count).map(|_| Warp::new(kernel)).collect(),
            states: vec![State::Ready; count],
            barriers: Barriers::default(),
            memory: vec![0; memory_bytes.div_ceil(16) as usize],
            memory_bytes,
            local: vec![0; local_bytes.div_ceil(16)],
            number: 0,
            cta: [0; 3],
            threads,
            random: 0,
            watch: watch(shared, count, memory_bytes),
        };
        for warp in 0..count {
            for (constant, slot) in &kernel.constants {
                block.set_constant(warp, *constant, *slot);
            }
        }
        block
    }

    /// What its blocks have done.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for warp in &self.warps {
            stats.warp_instructions += warp.instructions;
            stats.thread_instructions += warp.thread_instructions;
        }
        if let Some(profile) = self.watch.as_ref().and_then(|watch| watch.profile.as_ref()) {
            stats.lines = profile.lines(self.shared.kernel.origins.iter().map(|origin| origin.source));
        }
        stats
    }

    /// Runs block `number` of the grid.
    pub fn run(&mut self, number: u64) -> Result<(), Fault> {
        self.start(number);
        loop {
            for warp in self.order() {
                if self.states[warp] == State::Ready {
                    self.run_warp(warp)?;
                }
            }
            if self.shared.stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Ok(());
            }
            self.release();
            if self.states.iter().all(|state| *state == State::Done) {
                return Ok(());
            }
            if !self.states.contains(&State::Ready) {
                return Err(self.unreached());
            }
            if self.shared.memory.cancelled() {
                let failure = Failure { kind: FaultKind::Cancelled, pc: 0, lane: None };
                return Err(self.fault(failure, 0));
            }
        }
    }

    fn start(&mut self, number: u64) {
        let [x, y, _] = self.shared.launch.grid.map(u64::from);
        self.number = number;
        self.cta = [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32];
        // What no thread has written is not a number.
        self.memory.fill(u128::MAX);
        self.local.fill(u128::MAX);
        self.barriers = Barriers::default();
        if let Some(checks) = self.checks() {
            checks.start(number);
        }
        self.random = self.shared.options.warp_order_seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number;
        for warp in 0..self.warps.len() {
            let lanes = (self.threads - LANES as u32 * warp as u32).min(LANES as u32);
            self.warps[warp].start(u32::MAX >> (LANES as u32 - lanes));
            self.states[warp] = State::Ready;
            for (constant, slot) in &self.shared.kernel.constants {
                if matches!(
                    constant,
                    Constant::Special(Special::Ctaid(_)) | Constant::WideSpecial(Special::Ctaid(_))
                ) {
                    self.set_constant(warp, *constant, *slot);
                }
            }
        }
    }

    fn set_constant(&mut self, warp: usize, constant: Constant, slot: Slot) {
        let value = |lane: usize| match constant {
            Constant::Word(value) => u64::from(value),
            Constant::Wide(value) => value,
            Constant::Special(special) | Constant::WideSpecial(special) => {
                u64::from(self.special(special, warp as u32, lane as u32))
            }
        };
        let values: [u64; LANES] = std::array::from_fn(value);
        let wide = matches!(constant, Constant::Wide(_) | Constant::WideSpecial(_));
        let first = slot as usize * LANES;
        let to = &mut self.warps[warp].registers[first..];
        for (lane, value) in values.into_iter().enumerate() {
            if wide {
                // A register of 64 bits is 32 values of the host, one after the other.
                let words: [u32; 2] = bytes_of(value);
                to[2 * lane..2 * lane + 2].copy_from_slice(&words);
            } else {
                to[lane] = value as u32;
            }
        }
    }

    fn special(&self, special: Special, warp: u32, lane: u32) -> u32 {
        let (launch, kernel) = (self.shared.launch, self.shared.kernel);
        let thread = self.thread(warp, lane);
        match special {
            Special::Tid(d) => thread[d as usize],
            Special::Ntid(d) => launch.block[d as usize],
            Special::Ctaid(d) => self.cta[d as usize],
            Special::Nctaid(d) => launch.grid[d as usize],
            Special::Laneid => lane,
            Special::Warpid => warp,
            Special::Nwarpid => self.warps.len() as u32,
            Special::Zero => 0,
            Special::One => 1,
            Special::LanemaskEq => 1 << lane,
            Special::LanemaskLt => (1 << lane) - 1,
            Special::LanemaskLe => u32::MAX >> (31 - lane),
            Special::LanemaskGt => !(u32::MAX >> (31 - lane)),
            Special::LanemaskGe => u32::MAX << lane,
            Special::DynamicSharedBytes => launch.dynamic_shared_bytes,
            Special::TotalSharedBytes => self.memory_bytes as u32,
            Special::DynamicSharedStart => kernel.dynamic_shared_start(),
        }
    }

    fn thread(&self, warp: u32, lane: u32) -> [u32; 3] {
        let [x, y, _] = self.shared.launch.block;
        let number = LANES as u32 * warp + lane;
        [number % x, number / x % y, number / x / y]
    }

    /// The order of the warps in one round.
    fn order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.warps.len()).collect();
        if self.shared.options.warp_order_seed != 0 {
            for last in (1..order.len()).rev() {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                order.swap(last, (self.random % (last as u64 + 1)) as usize);
            }
        }
        order
    }

    /// Runs a warp for one slice, or until it is at a barrier.
    fn run_warp(&mut self, warp: usize) -> Result<(), Fault> {
        let kernel = self.shared.kernel;
        let mut stop = None;
        let memory = self.shared.memory;
        memory.slice(&mut || {
            let shared = (self.memory.as_mut_ptr().cast::<u8>(), self.memory_bytes);
            let first = warp * LANES * kernel.local_bytes as usize;
            let local = (self.local.as_mut_ptr().cast::<u8>().wrapping_add(first), kernel.local_bytes);
            let params = self.shared.launch.params;
            let around = Surroundings { memory, params, image: &kernel.image, shared, local, warp };
            stop = Some(self.warps[warp].run(kernel, around, self.watch.as_mut()));
        });
        match stop.expect("`slice` runs its argument once") {
            Ok(Stop::Slice) => Ok(()),
            Ok(Stop::Done) => {
                self.states[warp] = State::Done;
                Ok(())
            }
            Ok(Stop::Barrier(pc)) => self.arrive(warp, pc),
            Err(failure) => Err(self.fault(*failure, warp)),
        }
    }

    /// All lanes of a warp are at a barrier.
    fn arrive(&mut self, warp: usize, pc: u32) -> Result<(), Fault> {
        let i = &self.shared.kernel.code[pc as usize];
        let state = &self.warps[warp];
        let first = state.alive.trailing_zeros() as usize;
        let register = |slot: Slot| state.registers[slot as usize * LANES + first];
        let count = (i.b != NONE).then(|| register(i.b));
        let predicate = if i.c == NONE { 0 } else { state.predicates[i.c as usize] };
        let arrival = Arrival { warp, pc, detail: i.detail, lanes: state.alive, predicate };
        let (number, lanes) = (register(i.a), (state.alive, state.started));
        let kernel = self.shared.kernel;
        let checks = self.watch.as_mut().and_then(|watch| watch.checks.as_mut());
        let arrived = match self.barriers.arrive(number, count, self.threads, arrival) {
            Ok(barrier) => match checks {
                Some(checks) => {
                    checks.clocks.arrive(warp, &mut barrier.knowledge);
                    check_arrival(number, barrier, lanes, |pc| kernel.origins[pc as usize].line)
                }
                None => Ok(()),
            },
            Err(kind) => Err(kind),
        };
        arrived.map_err(|kind| self.fault(Failure { kind, pc, lane: None }, warp))?;
        if i.detail != ARRIVE {
            self.states[warp] = State::AtBarrier;
        }
        Ok(())
    }

    fn checks(&mut self) -> Option<&mut Checks> {
        self.watch.as_mut()?.checks.as_mut()
    }

    /// Lets warps go on whose barriers are complete.
    fn release(&mut self) {
        let all = self.warps.len() as u32 * LANES as u32;
        // A GPU lets the others go on when threads have ended; that is an error of the kernel all the same.
        let expected = if self.checks().is_some() { all } else { self.live() };
        for complete in self.barriers.complete(expected) {
            if let Some(checks) = self.watch.as_mut().and_then(|watch| watch.checks.as_mut()) {
                let synced = complete.arrivals.iter().filter(|arrival| arrival.detail != ARRIVE);
                synced.for_each(|arrival| checks.clocks.leave(arrival.warp, &complete.knowledge));
                checks.clocks.full += u32::from(complete.arrivals.len() == self.warps.len());
            }
            for arrival in complete.arrivals.iter().filter(|arrival| arrival.detail != ARRIVE) {
                self.states[arrival.warp] = State::Ready;
                let i = &self.shared.kernel.code[arrival.pc as usize];
                if let Some(value) = complete.reduction(arrival.detail) {
                    self.put_reduction(arrival.warp, i.detail, i.d, value);
                }
            }
        }
    }

    /// Threads of warps that have not ended, in whole warps.
    fn live(&self) -> u32 {
        self.warps.iter().filter(|warp| warp.alive != 0).count() as u32 * LANES as u32
    }

    fn put_reduction(&mut self, warp: usize, detail: u32, d: Slot, value: u32) {
        let warp = &mut self.warps[warp];
        if detail & !NOT == COUNT {
            warp.registers[d as usize * LANES..][..LANES].fill(value);
        } else {
            warp.predicates[d as usize] = if value != 0 { u32::MAX } else { 0 };
        }
    }

    /// No warp can go on, and not all are done.
    fn unreached(&self) -> Fault {
        let all = self.warps.len() as u32 * LANES as u32;
        let (barrier, arrived, expected, first) = self.barriers.incomplete(all);
        let (pc, warp) = first.map_or((0, 0), |arrival| (arrival.pc, arrival.warp));
        self.fault(
            Failure { kind: FaultKind::BarrierNotReached { barrier, arrived, expected }, pc, lane: None },
            warp,
        )
    }

    fn fault(&self, failure: Failure, warp: usize) -> Fault {
        let kernel = self.shared.kernel;
        let origin = &kernel.origins[failure.pc as usize];
        let thread = failure.lane.map(|lane| self.thread(warp as u32, lane as u32));
        let place = Place {
            kernel: kernel.name.clone(),
            line: origin.line,
            text: origin.text.clone(),
            source_line: origin.source.line,
            block: self.cta,
            thread,
        };
        Fault { kind: failure.kind, place: Box::new(place) }
    }
}

/// What looks at the accesses of a block, as the options ask for.
fn watch(shared: &Shared, warps: usize, shared_bytes: u64) -> Option<Watch> {
    let checked = shared.options.mode == Mode::Checked;
    let (kernel, shadow) = (shared.kernel, &shared.shadow);
    let checks = || Checks::new(warps, shared_bytes, kernel.local_bytes, Arc::clone(shadow));
    let profile = shared.options.profile.then(|| Profile::new(kernel.code.len()));
    let watch = Watch { checks: checked.then(checks), profile };
    (watch.checks.is_some() || watch.profile.is_some()).then_some(watch)
}

/// Checks the last arrival at a barrier: whether all lanes of its warp are there, of those that began, and whether it is
/// at the same place as the others. Barriers with a count may be reached at several places.
fn check_arrival(
    number: u32,
    barrier: &Barrier,
    (alive, started): (u32, u32),
    line: impl Fn(u32) -> u32,
) -> Result<(), FaultKind> {
    if alive != started {
        let (arrived, expected) = (alive.count_ones(), started.count_ones());
        return Err(FaultKind::BarrierNotReached { barrier: number, arrived, expected });
    }
    let first = barrier.arrivals.first().map(|arrival| arrival.pc);
    if barrier.count.is_none() && barrier.arrivals.iter().any(|arrival| Some(arrival.pc) != first) {
        let mut lines: Vec<u32> = barrier.arrivals.iter().map(|arrival| line(arrival.pc)).collect();
        lines.sort_unstable();
        lines.dedup();
        return Err(FaultKind::DivergentBarrier { barrier: number, lines });
    }
    Ok(())
}

/// A value as two words in the order of the host.
fn bytes_of(value: u64) -> [u32; 2] {
    let bytes = value.to_ne_bytes();
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|k| bytes[at + k]));
    [word(0), word(4)]
}
