//! Random tenants on a random GPU under random troubles, all from one seed, and checks that owe nothing to the policy.
//!
//! A seed has two phases. *Safety*: requests come while copies fail, engines and tenants die, letters get lost and clocks
//! jump; after every moment the simulated devices are counted. *Liveness*: troubles end; every request has to end too, with
//! the tokens that it gets when its tenant is alone, and every pool has to go back to what it was before the load.

mod check;
mod options;
mod troubles;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::rc::Rc;

use sluice_policy::ids::Nanos;
use sluice_policy::reason::Reason;
use sluice_scheduler::Request;

use crate::gpu::Gpu;
use crate::rng::Rng;
pub use options::Options;
pub use troubles::{Plant, Trouble};

const SECOND_NS: u64 = 1_000_000_000;

/// Time for tenants to load, and after the load for everything to go home, nanoseconds.
const CALM_NS: u64 = 600 * SECOND_NS;
/// More moments than any seed has that ends: where orders follow each other for ever, virtual time passes slowly.
const MOST_MOMENTS: u64 = 5_000_000;

/// A requirement that did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at_ns} ns: {what}")]
pub struct Broken {
    /// Of which seed.
    pub seed: u64,
    /// When, virtual time.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

/// What happened in a seed that held, or in many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Seeds.
    pub seeds: u64,
    /// Requests that ended with all their tokens.
    pub answered: u64,
    /// Requests that ended without: cancelled, or their tenant died.
    pub cut_short: u64,
    /// Requests that failed because a backend kept failing.
    pub failed: u64,
    /// Troubles that happened.
    pub troubles: u64,
    /// Loans that were seen.
    pub loans: u64,
    /// Layers that gave their memory away.
    pub remapped_layers: u64,
    /// Activations that became KV, each time.
    pub inflations: u64,
    /// Requests that lost their memory.
    pub preemptions: u64,
    /// Shares that fell below what was held.
    pub falls: u64,
    /// Requests that waited with their KV.
    pub pauses: u64,
    /// Plans that were carried out.
    pub plans: u64,
    /// Requests that a plan let in with part of their KV away.
    pub joins: u64,
    /// Layers of KV that were fetched for a step.
    pub fetches: u64,
    /// Orders of KV to the host tier, those behind a prompt included.
    pub write_backs: u64,
    /// Events whose journal was replayed.
    pub replayed: u64,
    /// Digest of the commands and notices of all journals that were recorded: equal where every decision is the same.
    pub decisions: u64,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Tally) -> Tally {
        Tally {
            seeds: self.seeds + other.seeds,
            answered: self.answered + other.answered,
            cut_short: self.cut_short + other.cut_short,
            failed: self.failed + other.failed,
            troubles: self.troubles + other.troubles,
            loans: self.loans + other.loans,
            remapped_layers: self.remapped_layers + other.remapped_layers,
            inflations: self.inflations + other.inflations,
            preemptions: self.preemptions + other.preemptions,
            falls: self.falls + other.falls,
            pauses: self.pauses + other.pauses,
            plans: self.plans + other.plans,
            joins: self.joins + other.joins,
            fetches: self.fetches + other.fetches,
            write_backs: self.write_backs + other.write_backs,
            replayed: self.replayed + other.replayed,
            decisions: self.decisions.wrapping_add(other.decisions),
        }
    }
}

/// Runs one seed, with a bug planted in the body if one is given.
///
/// # Errors
/// The first requirement that did not hold, a broken invariant of the production code included.
pub fn run(seed: u64, plant: Option<Plant>) -> Result<Tally, Broken> {
    run_with(seed, plant, false)
}

/// The same, with journals of all tenants, so that [`Tally::decisions`] is of all of them.
///
/// # Errors
/// As [`run`].
pub fn run_recorded(seed: u64, plant: Option<Plant>) -> Result<Tally, Broken> {
    run_with(seed, plant, true)
}

fn run_with(seed: u64, plant: Option<Plant>, recorded: bool) -> Result<Tally, Broken> {
    let at = Rc::new(Cell::new(Nanos(0)));
    let done = catch_unwind(AssertUnwindSafe(|| {
        let mut soak = Soak::new(seed, plant, recorded, at.clone())?;
        soak.run().map(|()| soak.tally)
    }));
    let told = match done {
        Ok(done) => done,
        Err(panic) => Err(words_of(&*panic)),
    };
    told.map_err(|what| Broken { seed, at_ns: at.get().0, what })
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("an invariant is broken: {}", text.unwrap_or("a panic without words"))
}

/// One seed under way.
struct Soak {
    gpu: Gpu,
    options: Options,
    plant: Option<Plant>,
    /// The requests of each tenant.
    loads: Vec<Vec<(u64, Request)>>,
    /// Chunks of each tenant before the load.
    baseline: Vec<u32>,
    borrowed_before: u32,
    tally: Tally,
    /// Where it is, for whoever catches a panic.
    at: Rc<Cell<Nanos>>,
    /// Moments so far.
    moments: u64,
}

impl Soak {
    fn new(seed: u64, plant: Option<Plant>, recorded: bool, at: Rc<Cell<Nanos>>) -> Result<Soak, String> {
        let mut rng = Rng::new(seed);
        let mut options = Options::draw(&mut rng);
        options.add_deals(seed);
        options.add_objectives(seed);
        options.add_crowds(seed);
        options.recorded |= recorded;
        let loads = options.loads(&mut rng);
        let gpu = options.gpu(rng.word()).map_err(|(name, why)| format!("{name} is refused: {why}"))?;
        let tally = Tally { seeds: 1, ..Tally::default() };
        Ok(Soak {
            gpu,
            options,
            plant,
            loads,
            baseline: Vec::new(),
            borrowed_before: 0,
            tally,
            at,
            moments: 0,
        })
    }

    fn run(&mut self) -> Result<(), String> {
        self.wait_for("tenants load", check::all_loaded)?;
        self.baseline = check::chunks(&self.gpu);
        self.suffer()?;
        self.calm_down();
        self.wait_for("every request ends", Gpu::is_done)?;
        self.wake_all();
        let baseline = self.baseline.clone();
        self.wait_for("pools go back to what they were", |gpu| check::is_home(gpu, &baseline))?;
        check::tokens(&self.gpu, &self.options, &self.loads, &mut self.tally)?;
        self.tally.falls = self.gpu.falls();
        let counted = |reason| check::counted(&self.gpu, reason);
        let tally = &mut self.tally;
        (tally.inflations, tally.plans) = (counted(Reason::Inflate), counted(Reason::Plan));
        (tally.pauses, tally.joins) = (counted(Reason::Pause), counted(Reason::Join));
        (tally.fetches, tally.write_backs) = (counted(Reason::Fetch), counted(Reason::WriteBack));
        (self.tally.replayed, self.tally.decisions) = check::journals(&self.gpu)?;
        for seat in &self.gpu.seats {
            self.tally.remapped_layers += seat.tally.remapped_layers;
            self.tally.preemptions += seat.tally.preemptions;
        }
        Ok(())
    }

    /// The load, and troubles beside it.
    fn suffer(&mut self) -> Result<(), String> {
        let begin = self.gpu.now();
        for (tenant, load) in self.loads.iter().enumerate() {
            load.iter().for_each(|(at, request)| self.gpu.arrives(tenant, begin.plus(*at), request.clone()));
        }
        troubles::begin(&mut self.gpu, &self.options, self.plant);
        for (after_ns, trouble) in self.options.troubles.clone() {
            self.run_until(begin.plus(after_ns))?;
            self.tally.troubles += 1;
            troubles::happen(&mut self.gpu, &trouble);
        }
        self.run_until(begin.plus(self.options.span_ns))
    }

    fn run_until(&mut self, limit: Nanos) -> Result<(), String> {
        while self.gpu.tick(limit) {
            self.look()?;
        }
        self.gpu.run_until(limit);
        Ok(())
    }

    /// After every moment.
    fn look(&mut self) -> Result<(), String> {
        self.at.set(self.gpu.now());
        self.moments += 1;
        if self.moments > MOST_MOMENTS {
            return Err(format!(
                "{MOST_MOMENTS} moments are not enough: {}; {:?}",
                check::state(&self.gpu),
                self.options
            ));
        }
        check::bytes(&self.gpu)?;
        let borrowed = check::borrowed(&self.gpu);
        self.tally.loans += u64::from(borrowed > self.borrowed_before);
        self.borrowed_before = borrowed;
        Ok(())
    }

    /// What began to go to the host while the way was slow is on its way until so long after, nanoseconds.
    fn slow_ns(&self) -> u64 {
        let slow = self.options.troubles.iter().any(|(_, trouble)| *trouble == Trouble::SlowOut);
        // One copy in many takes ten times as long besides.
        let bytes = self.options.host_kv_bytes * self.options.tenants as u64 * 10;
        if slow { bytes * SECOND_NS / troubles::SLOW_BYTES_PER_SECOND } else { 0 }
    }

    fn wait_for(&mut self, what: &str, so: impl Fn(&Gpu) -> bool) -> Result<(), String> {
        let limit = self.gpu.now().plus(CALM_NS + self.slow_ns());
        while !so(&self.gpu) {
            if !self.gpu.tick(limit) {
                let (state, baseline, options) = (check::state(&self.gpu), &self.baseline, &self.options);
                return Err(format!("it never comes that {what}: {state}; before {baseline:?}; {options:?}"));
            }
            self.look()?;
        }
        Ok(())
    }

    /// Nothing more goes wrong; who sleeps is woken, and whose backend failed for good starts anew.
    fn calm_down(&mut self) {
        troubles::end(&mut self.gpu, &self.options);
        self.wake_all();
    }

    fn wake_all(&mut self) {
        for at in 0..self.gpu.seats.len() {
            troubles::happen(&mut self.gpu, &Trouble::Sleep(at, sluice_scheduler::Sleep::WakeUp));
        }
    }
}
