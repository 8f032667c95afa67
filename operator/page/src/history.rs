//! The last quarter of an hour of one GPU: memory by owner and speed of each tenant, and what moved. Its size is
//! bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::ser::SerializeSeq as _;
use serde::{Serialize, Serializer};

use crate::view::{GpuView, TenantView, states};

mod move_log;
pub mod span;

pub use move_log::LoggedMove;
use move_log::MoveLog;
use span::SPAN_MS;

/// Most samples of a page: one a second.
const SAMPLES: usize = 900;

/// A figure, where it is known. A leader keeps some hundred thousand of them: half as large as an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OptionalU32(u32);

impl OptionalU32 {
    const UNKNOWN: OptionalU32 = OptionalU32(u32::MAX);

    fn of(value: Option<u64>) -> OptionalU32 {
        value.map_or(OptionalU32::UNKNOWN, |value| {
            OptionalU32(u32::try_from(value).unwrap_or(u32::MAX).min(u32::MAX - 1))
        })
    }

    fn get(self) -> Option<u64> {
        (self != OptionalU32::UNKNOWN).then_some(u64::from(self.0))
    }
}

/// One tenant in one sample.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    /// Weights, KV and all else that is not free, KiB.
    memory_kib: [u32; 3],
    /// Tokens per second, rounded.
    tokens: OptionalU32,
    /// Time to the first token and between tokens, 99th percentiles, tenths of a millisecond.
    ttft: OptionalU32,
    tbt: OptionalU32,
    /// KV cache that requests use, permille.
    kv_permille: u16,
}

impl Point {
    fn metric(&self, figure: Metric) -> Option<u64> {
        match figure {
            Metric::Tokens => self.tokens.get(),
            Metric::Ttft => self.ttft.get(),
            Metric::Tbt => self.tbt.get(),
            Metric::KvUsed => Some(u64::from(self.kv_permille)),
        }
    }
}

#[derive(Clone, Debug)]
struct Sample {
    at_unix_ms: u64,
    /// The tenants, which samples share while the same are there.
    titles: Arc<[Arc<str>]>,
    /// A point for each of them.
    points: Box<[Point]>,
}

impl Sample {
    fn point(&self, title: &str) -> Option<&Point> {
        self.titles.iter().position(|one| **one == *title).map(|at| &self.points[at])
    }
}

/// A figure of a tenant that has a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Tokens per second.
    Tokens,
    /// Time to the first token, 99th percentile, tenths of a millisecond.
    Ttft,
    /// Time between tokens, 99th percentile, tenths of a millisecond.
    Tbt,
    /// KV cache that requests use, permille.
    KvUsed,
}

/// Up to where a viewer has a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    samples: u64,
    /// Changes of moves: new ones, and those that got another size.
    moves: u64,
}

/// The history of one GPU.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<Sample>,
    moves: MoveLog,
    /// Samples since the start.
    total_samples: u64,
    /// Most samples that are kept.
    max_samples: usize,
    /// When each tenant of a kept sample was there last, milliseconds since the Unix epoch.
    last_present: BTreeMap<Arc<str>, u64>,
}

impl History {
    /// An empty one that keeps `most_moves` moves.
    pub fn new(most_moves: usize) -> History {
        History::sized(SAMPLES, most_moves)
    }

    /// An empty one that keeps `most_samples` samples and `most_moves` moves.
    pub fn sized(most_samples: usize, most_moves: usize) -> History {
        History { max_samples: most_samples, moves: MoveLog::new(most_moves), ..History::default() }
    }

    /// Times of the samples, milliseconds since the Unix epoch, and a figure of a tenant then; `None` = not known.
    pub fn series(&self, title: &str, figure: Metric) -> impl Iterator<Item = (u64, Option<u64>)> {
        self.samples.iter().map(move |sample| {
            (sample.at_unix_ms, sample.point(title).and_then(|point| point.metric(figure)))
        })
    }

    /// The moves that are kept, oldest first.
    pub fn moves(&self) -> impl DoubleEndedIterator<Item = &LoggedMove> {
        self.moves.iter()
    }

    /// When the oldest sample was, milliseconds since the Unix epoch; `None` = there is none.
    pub fn start_unix_ms(&self) -> Option<u64> {
        self.samples.front().map(|sample| sample.at_unix_ms)
    }

    /// Adds what was read at `at_unix_ms`. A tenant that did not answer holds what it held, and its speed is not known.
    pub fn add(&mut self, at_unix_ms: u64, view: &GpuView, reports: &[sluice_wire::state::TenantReport]) {
        let points = view.tenants.iter().map(|tenant| self.point(tenant)).collect();
        let titles = self.titles_of(view);
        self.last_present.extend(titles.iter().map(|title| (title.clone(), at_unix_ms)));
        self.samples.push_back(Sample { at_unix_ms, titles, points });
        self.total_samples += 1;
        let oldest = at_unix_ms.saturating_sub(SPAN_MS);
        while self.samples.len() > self.max_samples
            || self.samples.front().is_some_and(|one| one.at_unix_ms < oldest)
        {
            self.samples.pop_front();
        }
        let start = self.start_unix_ms().unwrap_or(at_unix_ms);
        self.last_present.retain(|_, last| *last >= start);
        states(reports).for_each(|state| self.moves.add(state, oldest));
        self.moves.trim(oldest, |title| view.tenants.iter().any(|tenant| tenant.title == title));
    }

    /// Titles of the tenants that a sample has, also of those that have left the GPU since.
    pub fn titles(&self) -> impl Iterator<Item = &str> {
        self.last_present.keys().map(|title| &**title)
    }

    /// Those of the last sample where the same tenants are there.
    fn titles_of(&self, view: &GpuView) -> Arc<[Arc<str>]> {
        let now = || view.tenants.iter().map(|tenant| tenant.title.as_str());
        let before = self.samples.back().map(|sample| &sample.titles);
        let same = before.filter(|titles| titles.iter().map(|title| &**title).eq(now()));
        let named = |title: &str| self.last_present.get_key_value(title).map(|(title, _)| title.clone());
        same.map_or_else(
            || now().map(|title| named(title).unwrap_or_else(|| title.into())).collect(),
            Arc::clone,
        )
    }

    fn point(&self, tenant: &TenantView) -> Point {
        if !tenant.answers {
            let before = self.samples.back().and_then(|sample| sample.point(&tenant.title));
            let memory_kib = before.map_or([0; 3], |point| point.memory_kib);
            let unknown = OptionalU32::UNKNOWN;
            return Point { memory_kib, tokens: unknown, ttft: unknown, tbt: unknown, kv_permille: 0 };
        }
        let [global, layers, slots, kv, rest @ .., _free] = tenant.owners;
        let kib = |bytes: u64| u32::try_from(bytes / 1024).unwrap_or(u32::MAX);
        let tenths = |ns: Option<u64>| OptionalU32::of(ns.map(|ns| ns / 100_000));
        Point {
            memory_kib: [kib(global + layers + slots), kib(kv), kib(rest.iter().sum())],
            tokens: OptionalU32::of(tenant.tokens_per_s.map(|rate| rate.round() as u64)),
            ttft: tenths(tenant.ttft_ns),
            tbt: tenths(tenant.tbt_ns),
            kv_permille: tenant.kv_used_permille.and_then(|used| u16::try_from(used).ok()).unwrap_or(0),
        }
    }

    /// Returns all stored entries from `since` on, and the new cursor.
    pub fn since(&self, key: &str, since: Cursor) -> (HistoryDelta, Cursor) {
        // The cursor of an earlier GPU of this name is of no use.
        let from = if since.samples > self.total_samples { 0 } else { since.samples };
        let samples =
            usize::try_from(self.total_samples - from).unwrap_or(usize::MAX).min(self.samples.len());
        let samples: Vec<&Sample> = self.samples.range(self.samples.len() - samples..).collect();
        let (moves, changes) = self.moves.since(since.moves);
        (HistoryDelta::of(key, &samples, moves), Cursor { samples: self.total_samples, moves: changes })
    }
}

/// A part of a history as viewers read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HistoryDelta {
    /// Of which GPU.
    key: String,
    /// When the first sample was, milliseconds since the Unix epoch, and how long after the one before each was, as
    /// a
    /// column.
    start_unix_ms: u64,
    after_ms: RunLengthSeries,
    tenants: BTreeMap<Arc<str>, TenantSeries>,
    moves: Vec<LoggedMove>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct TenantSeries {
    /// KiB.
    weights: RunLengthSeries,
    kv: RunLengthSeries,
    other: RunLengthSeries,
    /// Per second.
    tokens: RunLengthSeries,
    /// Tenths of a millisecond.
    ttft: RunLengthSeries,
    tbt: RunLengthSeries,
    /// Permille.
    kv_used: RunLengthSeries,
}

/// Values one after another, `None` = not known. Written as a list in which a string is how often the value before
/// it
/// repeats.
#[derive(Clone, Debug, Default, PartialEq)]
struct RunLengthSeries(Vec<(Option<u64>, u32)>);

impl RunLengthSeries {
    fn push(&mut self, value: Option<u64>) {
        match self.0.last_mut() {
            Some((last, more)) if *last == value => *more += 1,
            _ => self.0.push((value, 0)),
        }
    }
}

impl Serialize for RunLengthSeries {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(None)?;
        for (value, more) in &self.0 {
            list.serialize_element(value)?;
            if *more > 0 {
                list.serialize_element(&more.to_string())?;
            }
        }
        list.end()
    }
}

impl HistoryDelta {
    fn of(key: &str, samples: &[&Sample], moves: Vec<LoggedMove>) -> HistoryDelta {
        let start_unix_ms = samples.first().map_or(0, |sample| sample.at_unix_ms);
        let mut part = HistoryDelta {
            key: key.to_owned(),
            start_unix_ms,
            after_ms: RunLengthSeries::default(),
            tenants: BTreeMap::new(),
            moves,
        };
        for title in samples.iter().flat_map(|sample| sample.titles.iter()) {
            part.tenants.entry(title.clone()).or_default();
        }
        let mut before = start_unix_ms;
        for sample in samples {
            part.after_ms.push(Some(sample.at_unix_ms.saturating_sub(before)));
            before = sample.at_unix_ms;
            for (title, columns) in &mut part.tenants {
                columns.push(sample.point(title));
            }
        }
        part
    }

    /// Whether it has no entries.
    pub fn is_empty(&self) -> bool {
        self.after_ms.0.is_empty() && self.moves.is_empty()
    }
}

impl TenantSeries {
    fn push(&mut self, point: Option<&Point>) {
        let memory = |at: usize| point.map(|point| u64::from(point.memory_kib[at]));
        self.weights.push(memory(0));
        self.kv.push(memory(1));
        self.other.push(memory(2));
        self.tokens.push(point.and_then(|point| point.tokens.get()));
        self.ttft.push(point.and_then(|point| point.ttft.get()));
        self.tbt.push(point.and_then(|point| point.tbt.get()));
        self.kv_used.push(point.map(|point| u64::from(point.kv_permille)));
    }
}

#[cfg(test)]
mod tests;
