//! How often the KV of each tenant ran short in the window of a page, from the counters that its sidecar keeps
//! since
//! its start.

use std::collections::{BTreeMap, VecDeque};

use sluice_wire::State;

use crate::history::span::SPAN_MS;

/// Time between two readings that are kept, milliseconds.
const STEP_MS: u64 = 60_000;
/// Minimum window for a figure, milliseconds.
const MIN_WINDOW_MS: u64 = 60_000;

/// How often KV ran short in a window that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Length of the window, milliseconds.
    pub window_ms: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens that were computed again.
    pub recomputed_tokens: u64,
}

/// Counters of a tenant at one time.
#[derive(Clone, Copy, Debug)]
struct Counters {
    at_unix_ms: u64,
    preemptions: u64,
    recomputed_tokens: u64,
}

/// Counters of all tenants of one GPU. Their number is bounded.
#[derive(Clone, Debug, Default)]
pub struct Shortages {
    samples: BTreeMap<String, VecDeque<Counters>>,
    recent: BTreeMap<String, Shortage>,
}

impl Shortages {
    /// Takes a reading: the tenants that answered, by title.
    pub fn read<'a>(&mut self, at_unix_ms: u64, states: impl Iterator<Item = (String, &'a State)>) {
        self.recent.clear();
        self.samples.retain(|_, kept| kept.back().is_some_and(|one| at_unix_ms <= one.at_unix_ms + SPAN_MS));
        for (title, state) in states {
            let now = Counters {
                at_unix_ms,
                preemptions: state.figures.preemptions_total,
                recomputed_tokens: state.figures.recomputed_tokens_total,
            };
            let kept = self.samples.entry(title.clone()).or_default();
            if let Some(shortage) = add(kept, now) {
                self.recent.insert(title, shortage);
            }
        }
    }

    /// Returns the last reading of a tenant; `None` = it did not answer, or is known for less than a minute.
    pub fn get(&self, title: &str) -> Option<Shortage> {
        self.recent.get(title).copied()
    }
}

fn add(kept: &mut VecDeque<Counters>, now: Counters) -> Option<Shortage> {
    // A sidecar that started again counts from zero.
    if kept.back().is_some_and(|last| last.preemptions > now.preemptions) {
        kept.clear();
        kept.push_back(Counters { preemptions: 0, recomputed_tokens: 0, ..now });
    }
    if kept.back().is_none_or(|last| now.at_unix_ms >= last.at_unix_ms + STEP_MS) {
        kept.push_back(now);
    }
    while kept.front().is_some_and(|first| first.at_unix_ms + SPAN_MS < now.at_unix_ms) {
        kept.pop_front();
    }
    let first = kept.front()?;
    let window_ms = now.at_unix_ms.saturating_sub(first.at_unix_ms);
    (window_ms >= MIN_WINDOW_MS).then(|| Shortage {
        window_ms,
        preemptions: now.preemptions.saturating_sub(first.preemptions),
        recomputed_tokens: now.recomputed_tokens.saturating_sub(first.recomputed_tokens),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_000_000;

    /// One tenant whose counters at each second are those that `count` gives.
    fn after(seconds: u64, count: impl Fn(u64) -> (u64, u64)) -> (Shortages, Option<Shortage>) {
        let mut shortages = Shortages::default();
        for second in 0..=seconds {
            let mut state = State::default();
            (state.figures.preemptions_total, state.figures.recomputed_tokens_total) = count(second);
            shortages.read(START + second * 1000, std::iter::once(("team/chat".to_owned(), &state)));
        }
        let recent = shortages.get("team/chat");
        (shortages, recent)
    }

    #[test]
    fn shortage_before_window_is_not_counted() {
        let counted = |seconds| after(seconds, |second| (500 + second.min(100), 4 * second.min(100))).1;
        assert_eq!(counted(59), None, "too short a window");
        let first = Shortage { window_ms: 90_000, preemptions: 90, recomputed_tokens: 360 };
        assert_eq!(counted(90), Some(first));
        let later = Shortage { window_ms: SPAN_MS, preemptions: 100 - 60, recomputed_tokens: 4 * (100 - 60) };
        assert_eq!(counted(960), Some(later));
        assert_eq!(counted(1100).map(|one| one.preemptions), Some(0));
    }

    #[test]
    fn a_sidecar_that_started_again_counts_from_zero() {
        let counts = |second| if second < 50 { (9, 90) } else { (second - 49, second) };
        let expected = Shortage { window_ms: 70_000, preemptions: 71, recomputed_tokens: 120 };
        assert_eq!(after(120, counts).1, Some(expected));
    }

    #[test]
    fn samples_are_bounded_and_removed_tenant_is_dropped() {
        let (mut shortages, _) = after(3000, |second| (second, second));
        assert!(shortages.samples["team/chat"].len() <= 16);
        shortages.read(START + 3_100_000, std::iter::empty());
        assert_eq!((shortages.get("team/chat"), shortages.samples.len()), (None, 1), "silent for a moment");
        shortages.read(START + 4_000_000, std::iter::empty());
        assert!(shortages.samples.is_empty());
    }
}
