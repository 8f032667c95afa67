//! Loads: when requests come, how long they are, and whose they are. From trace files, or drawn from a seed.

pub mod arrivals;
pub mod table;

use std::sync::Arc;

use sluice_policy::ids::RequestId;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::Request;

use crate::rng::Rng;
use arrivals::ArrivalProcess;
use table::{Table, TraceRow};

/// Lengths of one request, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the prompt, at least 1.
    pub prompt: u32,
    /// Of the answer, at least 1.
    pub output: u32,
}

/// Where nothing else says it.
const DEFAULT_LENGTHS: Lengths = Lengths { prompt: 512, output: 128 };

/// One request to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// After the beginning of the load, nanoseconds.
    pub at_ns: u64,
    /// To which tenant.
    pub tenant: usize,
    /// How long.
    pub lengths: Lengths,
}

/// Limits of what is drawn.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Tokens of prompt and answer that each tenant takes; one for each tenant.
    pub model_tokens: Vec<u32>,
    /// Longer prompts are cut to so many tokens.
    pub prompt_tokens: u32,
    /// Requests at most.
    pub requests: usize,
}

/// Lengths in the order of a file, drawn by a seed.
#[derive(Clone, Debug)]
pub struct LengthSource {
    lengths: Vec<Lengths>,
}

impl LengthSource {
    /// The lengths of a table's rows.
    pub fn new(table: &Table) -> LengthSource {
        LengthSource { lengths: table.rows.iter().map(|row| row.lengths).collect() }
    }

    /// The same, each as many times as long.
    #[must_use]
    pub fn times(self, factor: u32) -> LengthSource {
        let longer = |one: Lengths| Lengths { prompt: one.prompt * factor, output: one.output * factor };
        LengthSource { lengths: self.lengths.into_iter().map(longer).collect() }
    }

    /// Always the same.
    pub fn fixed(lengths: Lengths) -> LengthSource {
        LengthSource { lengths: vec![lengths] }
    }

    /// Lengths without end, drawn by a seed.
    pub fn samples(&self, seed: u64) -> impl Iterator<Item = Lengths> + '_ {
        let mut rng = Rng::new(seed ^ 0x1e95);
        std::iter::from_fn(move || Some(self.sample(&mut rng)))
    }

    fn sample(&self, rng: &mut Rng) -> Lengths {
        self.lengths[rng.below(self.lengths.len() as u64) as usize]
    }
}

/// Whose requests are whose, where a trace does not say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TenantAssignment {
    /// Each request by lot: all tenants have their bursts at once.
    #[default]
    Random,
    /// Each tenant has its own stretch of the trace, all of them beginning at once: bursts come apart.
    Segments,
}

/// A load of `limits.model_tokens.len()` tenants: who comes when, in order of time.
///
/// Rows that name a model belong to the tenant of that model's rank by number of requests, modulo the number of tenants; the
/// others are dealt. Lengths are the rows' own, or drawn from `lengths`: of the tenant's number, modulo their number.
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

/// Answers keep their length as far as the model allows, prompts get what is left.
pub(crate) fn clamp_lengths(lengths: Lengths, limits: &Limits, tenant: usize) -> Lengths {
    let most = limits.model_tokens[tenant];
    let output = lengths.output.clamp(1, most - 1);
    Lengths { prompt: lengths.prompt.clamp(1, limits.prompt_tokens.min(most - output)), output }
}

/// The request as a client sends it: its tokens are drawn, so that no two prompts begin alike.
pub fn request(id: u64, lengths: Lengths, vocab: u32, seed: u64, paced: bool) -> Request {
    let mut rng = Rng::new(seed ^ id.wrapping_mul(0x9e37_79b9));
    let prompt = (0..lengths.prompt).map(|_| rng.below(u64::from(vocab)) as u32).collect();
    let sampling = Arc::new(Sampling::default());
    let (id, max_tokens) = (RequestId(id), lengths.output);
    Request { id, prompt, max_tokens, sampling, priority: 0, salt: 0, paced }
}

/// What is read of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceSplit {
    /// All rows.
    All,
    /// All but the last third, which is held back.
    Shown,
    /// The last third.
    HeldBack,
}

/// These rows of a file's.
pub fn split_rows(rows: Vec<TraceRow>, which: TraceSplit) -> Vec<TraceRow> {
    if which == TraceSplit::All {
        return rows;
    }
    let held_back = which == TraceSplit::HeldBack;
    let timed = rows.iter().all(|row| row.at_ns.is_some());
    let (first, last) = (rows.first().and_then(|row| row.at_ns), rows.last().and_then(|row| row.at_ns));
    let (len, span_ns) = (rows.len(), last.unwrap_or(0) - first.unwrap_or(0));
    let is_late = |index: usize, row: &TraceRow| {
        if timed {
            (row.at_ns.unwrap_or(0) - first.unwrap_or(0)) * 3 >= span_ns * 2
        } else {
            index * 3 >= len * 2
        }
    };
    let rows = rows.into_iter().enumerate();
    rows.filter(|(index, row)| is_late(*index, row) == held_back).map(|(_, row)| row).collect()
}
