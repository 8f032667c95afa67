//! Workloads: arrival time, lengths and tenant of each request, from trace files or drawn from a seed.

pub mod arrivals;
mod lengths;
pub mod table;

use std::sync::Arc;

use sluice_common::random::Rng;
use sluice_policy::ids::RequestId;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::Request;

use arrivals::ArrivalProcess;
pub use lengths::Lengths;
use table::{Table, TraceRow};
pub use table::{TraceSplit, split_rows};

/// Lengths if neither a trace nor a length source gives them.
const DEFAULT_LENGTHS: Lengths = Lengths { prompt: 512, output: 128 };

/// A future request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds after the start of the load.
    pub at_ns: u64,
    /// Index of the tenant.
    pub tenant: usize,
    /// Lengths of the request.
    pub lengths: Lengths,
}

/// Limits of a workload.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Context limit of each tenant's model: prompt and output tokens.
    pub model_tokens: Vec<u32>,
    /// Largest prompt, tokens; longer prompts are cut.
    pub prompt_tokens: u32,
    /// Largest number of requests.
    pub requests: usize,
}

/// Lengths of a file's rows, sampled with a seed.
#[derive(Clone, Debug)]
pub struct LengthSource {
    lengths: Vec<Lengths>,
}

impl LengthSource {
    /// Takes the lengths of a table's rows.
    pub fn new(table: &Table) -> LengthSource {
        LengthSource { lengths: table.rows.iter().map(|row| row.lengths).collect() }
    }

    /// Multiplies all lengths by `factor`.
    #[must_use]
    pub fn times(self, factor: u32) -> LengthSource {
        let longer = |one: Lengths| Lengths { prompt: one.prompt * factor, output: one.output * factor };
        LengthSource { lengths: self.lengths.into_iter().map(longer).collect() }
    }

    /// Creates a source that always returns these lengths.
    pub fn fixed(lengths: Lengths) -> LengthSource {
        LengthSource { lengths: vec![lengths] }
    }

    /// Returns an endless sequence of sampled lengths.
    pub fn samples(&self, seed: u64) -> impl Iterator<Item = Lengths> + '_ {
        let mut rng = Rng::new(seed ^ 0x1e95);
        std::iter::from_fn(move || Some(self.sample(&mut rng)))
    }

    fn sample(&self, rng: &mut Rng) -> Lengths {
        self.lengths[rng.below(self.lengths.len() as u64) as usize]
    }
}

/// Assignment of requests to tenants if the trace does not give it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantAssignment {
    /// Each request to a random tenant: all tenants have their bursts at the same time.
    #[default]
    Random,
    /// Each tenant has its own segment of the trace; all segments start together, so bursts differ.
    Segments,
}

/// Returns a load of `limits.model_tokens.len()` tenants, in time order.
///
/// Rows with a model belong to the tenant with the index of that model's rank by request count, modulo the number of
/// tenants. Other rows are assigned by `deal`. Lengths are sampled from the tenant's source in `lengths`, modulo the
/// number of sources; if there is none, they are the row's own.
pub fn load(
    arrivals: &ArrivalProcess,
    lengths: &[LengthSource],
    limits: &Limits,
    deal: TenantAssignment,
    seed: u64,
) -> Vec<Arrival> {
    let tenants = limits.model_tokens.len();
    let mut rng = Rng::new(seed ^ 0x10ad);
    let mut coming = Vec::new();
    let mut come = |at_ns, row: Option<TraceRow>, tenant: usize, rng: &mut Rng| {
        let own = row.map(|row| row.lengths);
        let drawn = (!lengths.is_empty()).then(|| lengths[tenant % lengths.len()].sample(rng));
        let lengths = clamp_lengths(drawn.or(own).unwrap_or(DEFAULT_LENGTHS), limits, tenant);
        coming.push(Arrival { at_ns, tenant, lengths });
    };
    match deal {
        TenantAssignment::Random => {
            for (at_ns, row) in arrivals.times(limits.requests, seed) {
                let dealt = rng.below(tenants as u64) as usize;
                let tenant = row.and_then(|row| row.model).map_or(dealt, |rank| rank % tenants);
                come(at_ns, row, tenant, &mut rng);
            }
        }
        TenantAssignment::Segments => {
            for tenant in 0..tenants {
                let times = arrivals.segment(limits.requests / tenants, (tenant, tenants), seed);
                times.into_iter().for_each(|(at_ns, row)| come(at_ns, row, tenant, &mut rng));
            }
        }
    }
    coming.sort_by_key(|coming| coming.at_ns);
    coming
}

/// Limits lengths to the model's context: outputs are cut last, prompts get the remaining tokens.
pub(crate) fn clamp_lengths(lengths: Lengths, limits: &Limits, tenant: usize) -> Lengths {
    let most = limits.model_tokens[tenant];
    let output = lengths.output.clamp(1, most - 1);
    Lengths { prompt: lengths.prompt.clamp(1, limits.prompt_tokens.min(most - output)), output }
}

/// Returns the request as a client sends it. Its tokens are random, so that no two prompts share a prefix.
pub fn request(id: u64, lengths: Lengths, vocab: u32, seed: u64, paced: bool) -> Request {
    let mut rng = Rng::new(seed ^ id.wrapping_mul(0x9e37_79b9));
    let prompt = (0..lengths.prompt).map(|_| rng.below(u64::from(vocab)) as u32).collect();
    let sampling = Arc::new(Sampling::default());
    let (id, max_tokens) = (RequestId(id), lengths.output);
    Request { id, prompt, max_tokens, sampling, priority: 0, salt: 0, paced }
}
