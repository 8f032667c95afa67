//! Runs random tenants on a random GPU with random faults, all from one seed, and checks them independently of the
//! policy.
//!
//! A seed has two phases. *Safety*: requests arrive while copies fail, engines and tenants exit, messages are lost and
//! clocks jump; after every tick the simulated devices are counted. *Liveness*: the faults end. Every request must end
//! with the tokens that it gets when its tenant is alone, and every pool must return to its state before the load.

mod check;
mod faults;
mod options;
mod policies;
mod stats;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::rc::Rc;

use sluice_common::random::Rng;
use sluice_policy::ids::Nanos;
use sluice_policy::reason::Reason;
use sluice_scheduler::Request;

use crate::gpu::Gpu;
pub use faults::{Fault, PlantedBug};
pub use options::Options;
pub use stats::SoakStats;

const SECOND_NS: u64 = 1_000_000_000;

/// Time for tenants to load, and after the load for all memory to return to its owner, nanoseconds.
const SETTLE_NS: u64 = 600 * SECOND_NS;
/// Limit on ticks, more than any seed needs that ends. In an endless sequence of operations, virtual time advances too
/// slowly to reach the time limit.
const MAX_TICKS: u64 = 5_000_000;

/// A requirement that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at_ns} ns: {what}")]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// Virtual time, nanoseconds.
    pub at_ns: u64,
    /// Description of the violation.
    pub what: String,
}

/// Runs one seed, with `plant` as a bug in the backend if given.
///
/// # Errors
/// The first requirement that did not hold, including broken invariants of the production code.
pub fn run(seed: u64, plant: Option<PlantedBug>) -> Result<SoakStats, SeedFailure> {
    run_with(seed, plant, false)
}

/// Runs one seed with the journals of all tenants, so that [`SoakStats::decisions`] covers all of them.
///
/// # Errors
/// As [`run`].
pub fn run_recorded(seed: u64, plant: Option<PlantedBug>) -> Result<SoakStats, SeedFailure> {
    run_with(seed, plant, true)
}

fn run_with(seed: u64, plant: Option<PlantedBug>, recorded: bool) -> Result<SoakStats, SeedFailure> {
    let at = Rc::new(Cell::new(Nanos(0)));
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut soak = Soak::new(seed, plant, recorded, at.clone())?;
        soak.run().map(|()| soak.stats)
    }));
    let result = match done {
        Ok(done) => done,
        Err(panic) => Err(panic_message(&*panic)),
    };
    result.map_err(|what| SeedFailure { seed, at_ns: at.get().0, what })
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("an invariant does not hold: {}", text.unwrap_or("a panic without a message"))
}

/// A running seed.
struct Soak {
    gpu: Gpu,
    options: Options,
    planted_bug: Option<PlantedBug>,
    /// Requests of each tenant, by time.
    loads: Vec<Vec<(u64, Request)>>,
    /// Chunks of each tenant before the load.
    baseline: Vec<u32>,
    borrowed_before: u32,
    stats: SoakStats,
    /// Virtual time, shared with the panic handler.
    at: Rc<Cell<Nanos>>,
    /// Number of ticks so far.
    ticks: u64,
}

impl Soak {
    fn new(
        seed: u64,
        plant: Option<PlantedBug>,
        recorded: bool,
        at: Rc<Cell<Nanos>>,
    ) -> Result<Soak, String> {
        let mut rng = Rng::new(seed);
        let mut options = Options::of_seed(seed, &mut rng);
        options.recorded |= recorded;
        let loads = options.loads(&mut rng);
        let gpu = options.gpu(rng.next_u64()).map_err(|(name, why)| format!("{name} is refused: {why}"))?;
        let tally = SoakStats { seeds: 1, ..SoakStats::default() };
        Ok(Soak {
            gpu,
            options,
            planted_bug: plant,
            loads,
            baseline: Vec::new(),
            borrowed_before: 0,
            stats: tally,
            at,
            ticks: 0,
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.wait_for("tenants load", check::all_loaded)?;
        self.baseline = check::chunks(&self.gpu);
        self.run_faults()?;
        self.end_faults();
        self.wait_for("every request ends", Gpu::is_done)?;
        self.wake_all();
        let baseline = self.baseline.clone();
        self.wait_for("pools go back to what they were", |gpu| check::is_at_baseline(gpu, &baseline))?;
        check::tokens(&self.gpu, &self.options, &self.loads, &mut self.stats)?;
        self.stats.share_reductions = self.gpu.share_reductions();
        let counted = |reason| check::counted(&self.gpu, reason);
        let tally = &mut self.stats;
        (tally.inflations, tally.plans) = (counted(Reason::Inflate), counted(Reason::Plan));
        (tally.pauses, tally.joins) = (counted(Reason::Pause), counted(Reason::Join));
        (tally.fetches, tally.write_backs) = (counted(Reason::Fetch), counted(Reason::WriteBack));
        (self.stats.replayed, self.stats.decisions) = check::journals(&self.gpu)?;
        for tenant in &self.gpu.tenants {
            self.stats.remapped_layers += tenant.stats.remapped_layers;
            self.stats.preemptions += tenant.stats.preemptions;
        }
        Ok(())
    }

    /// Runs the load with its faults.
    fn run_faults(&mut self) -> Result<(), String> {
        let begin = self.gpu.now();
        for (tenant, load) in self.loads.iter().enumerate() {
            load.iter()
                .for_each(|(at, request)| self.gpu.submit_at(tenant, begin.plus(*at), request.clone()));
        }
        faults::begin(&mut self.gpu, self.options.faults, self.planted_bug);
        for (after_ns, fault) in self.options.fault_schedule.clone() {
            self.run_until(begin.plus(after_ns))?;
            self.stats.faults += 1;
            faults::inject(&mut self.gpu, &fault);
        }
        self.run_until(begin.plus(self.options.span_ns))
    }

    fn run_until(&mut self, limit: Nanos) -> Result<(), String> {
        while self.gpu.tick(limit) {
            self.check_tick()?;
        }
        self.gpu.run_until(limit);
        Ok(())
    }

    /// Checks the devices after a tick.
    fn check_tick(&mut self) -> Result<(), String> {
        self.at.set(self.gpu.now());
        self.ticks += 1;
        if self.ticks > MAX_TICKS {
            return Err(format!(
                "not finished after {MAX_TICKS} moments: {}; {:?}",
                check::state(&self.gpu),
                self.options
            ));
        }
        check::bytes(&self.gpu)?;
        let borrowed = check::borrowed(&self.gpu);
        self.stats.loans += u64::from(borrowed > self.borrowed_before);
        self.borrowed_before = borrowed;
        Ok(())
    }

    /// Returns how long copies to the host that started on the slow link may take, nanoseconds.
    fn slow_ns(&self) -> u64 {
        let slow = self.options.fault_schedule.iter().any(|(_, fault)| *fault == Fault::SlowHostLink);
        // A slow-copy fault makes a copy ten times slower.
        let bytes = self.options.host_kv_bytes * self.options.tenants as u64 * 10;
        if slow { bytes * SECOND_NS / faults::SLOW_BYTES_PER_SECOND } else { 0 }
    }

    fn wait_for(&mut self, what: &str, so: impl Fn(&Gpu) -> bool) -> Result<(), String> {
        let limit = self.gpu.now().plus(SETTLE_NS + self.slow_ns());
        while !so(&self.gpu) {
            if !self.gpu.tick(limit) {
                let (state, baseline, options) = (check::state(&self.gpu), &self.baseline, &self.options);
                return Err(format!("never reached: {what}: {state}; before {baseline:?}; {options:?}"));
            }
            self.check_tick()?;
        }
        Ok(())
    }

    /// Ends the faults: wakes sleeping tenants, and restarts tenants whose backend failed permanently.
    fn end_faults(&mut self) {
        faults::end(&mut self.gpu, self.options.link_delays);
        self.wake_all();
    }

    fn wake_all(&mut self) {
        for at in 0..self.gpu.tenants.len() {
            faults::inject(&mut self.gpu, &Fault::Sleep(at, sluice_scheduler::Sleep::WakeUp));
        }
    }
}
