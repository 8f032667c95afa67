//! What one rule did with the day: figures of each round, and what was seen during them. Pure.

use std::time::Duration;

use sluice_wire::State;

use super::setting::Promise;
use crate::bench::{Distribution, Record};

/// Layers of all tenants whose memory other tenants use.
pub fn absent_layers<'a>(states: impl Iterator<Item = &'a State>) -> u32 {
    states.map(|state| u32::from(state.activity.absent_layers)).sum()
}

/// Figures over some bursts. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Output tokens per second.
    pub tokens_per_s: f64,
    /// P99 of the time to the first token, as clients felt it.
    pub ttft_p99_ms: f64,
    /// P99 of the time between tokens, as clients got them.
    pub tbt_p99_ms: f64,
}

impl Figures {
    /// Of bursts that followed each other. Each lasts from its first request to its last answer.
    ///
    /// # Errors
    /// Why a request failed, or that none was answered with two tokens.
    pub fn of<'a>(bursts: impl Iterator<Item = &'a Burst> + Clone) -> Result<Figures, String> {
        let records = || bursts.clone().flat_map(|burst| &burst.records);
        if let Some(error) = records().find_map(|record| record.error.clone()) {
            return Err(format!("a request failed: {error}"));
        }
        let tokens: u64 = records().map(|record| record.output_tokens).sum();
        let seconds: f64 = bursts.clone().map(|burst| burst.time().as_secs_f64()).sum();
        let p99 = |distribution: Option<Distribution>| distribution.map(|figures| figures.p99);
        let ttft = p99(Distribution::of(records().filter_map(|record| record.ttft)));
        let tbt = p99(Distribution::of(records().flat_map(|record| record.gaps.iter().copied())));
        match (ttft, tbt) {
            (Some(ttft_p99_ms), Some(tbt_p99_ms)) if seconds > 0.0 => {
                Ok(Figures { tokens_per_s: tokens as f64 / seconds, ttft_p99_ms, tbt_p99_ms })
            }
            _ => Err("no request was answered with two tokens".into()),
        }
    }
}

/// Requests that were sent to one tenant together.
#[derive(Clone, Debug)]
pub struct Burst {
    /// What became of each.
    pub records: Vec<Record>,
}

impl Burst {
    /// From the first request to the last answer.
    pub fn time(&self) -> Duration {
        let sent = self.records.iter().map(|record| record.sent).min().unwrap_or_default();
        let ended = self.records.iter().map(|record| record.ended).max().unwrap_or_default();
        ended.saturating_sub(sent)
    }
}

/// One burst for each tenant.
pub type Round = Vec<Burst>;

/// A whole day under one rule.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Of each round.
    pub rounds: Vec<Figures>,
    /// Of all rounds together.
    pub all: Figures,
    /// First tokens that came within the promise, thousandths.
    pub first_in_time_permille: u32,
    /// The most [`absent_layers`] that were seen.
    pub absent_layers: u32,
    /// Times that a request was put out of memory, to be computed again; `None` = a tenant did not answer at the end.
    pub preempted: Option<u64>,
    /// Every answer, in the order of the requests.
    pub texts: Vec<String>,
    /// What other programs took of all cores on that day, thousandths; `None` = the kernel does not say.
    pub others_permille: Option<u32>,
}

impl Outcome {
    /// Of these rounds under `promise`. `states` are those of all tenants at the end; `None` = a tenant did not answer.
    ///
    /// # Errors
    /// As [`Figures::of`].
    pub fn new(
        rounds: &[Round],
        promise: Promise,
        states: &[Option<State>],
        absent_layers: u32,
        others_permille: Option<u32>,
    ) -> Result<Outcome, String> {
        let each = rounds.iter().map(|round| Figures::of(round.iter()));
        let records = || rounds.iter().flatten().flat_map(|burst| &burst.records);
        let in_time = |record: &&Record| record.ttft.is_some_and(|ttft| ttft <= promise.first_token());
        Ok(Outcome {
            rounds: each.collect::<Result<_, _>>()?,
            all: Figures::of(rounds.iter().flatten())?,
            first_in_time_permille: permille(records().filter(in_time).count(), records().count()),
            absent_layers,
            preempted: states.iter().map(|state| Some(state.as_ref()?.figures.preemptions_total)).sum(),
            texts: records().map(|record| record.text.clone()).collect(),
            others_permille,
        })
    }
}

fn permille(part: usize, all: usize) -> u32 {
    u32::try_from(part * 1000 / all.max(1)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sent_ms: u64, ttft_ms: u64, gap_ms: u64) -> Record {
        let ms = Duration::from_millis;
        Record {
            sent: ms(sent_ms),
            ttft: Some(ms(ttft_ms)),
            gaps: vec![ms(gap_ms)],
            ended: ms(sent_ms + ttft_ms + gap_ms),
            output_tokens: 2,
            text: format!("{sent_ms}"),
            ..Record::default()
        }
    }

    #[test]
    fn figures_are_over_all_bursts_and_each_lasts_as_long_as_its_longest_request() {
        // 4 tokens in 0.5 s, then 2 tokens in 0.5 s.
        let rounds = vec![
            vec![Burst { records: vec![record(0, 100, 20), record(100, 390, 10)] }],
            vec![Burst { records: vec![record(0, 450, 50)] }],
        ];
        let state = State {
            figures: sluice_wire::state::Figures { preemptions_total: 3, ..Default::default() },
            ..State::default()
        };
        let promise = Promise { ttft_ms: 390, tbt_ms: 50 };
        let of = |states: &[_]| Outcome::new(&rounds, promise, states, 5, Some(7)).unwrap();
        let outcome = of(&[Some(state.clone()), Some(state.clone())]);
        assert_eq!(outcome.all, Figures { tokens_per_s: 6.0, ttft_p99_ms: 450.0, tbt_p99_ms: 50.0 });
        let speeds: Vec<_> = outcome.rounds.iter().map(|round| round.tokens_per_s).collect();
        assert_eq!((speeds, outcome.preempted), (vec![8.0, 4.0], Some(6)));
        assert_eq!((outcome.first_in_time_permille, outcome.absent_layers), (666, 5));
        assert_eq!(of(&[Some(state), None]).preempted, None, "a tenant did not answer");
        assert_eq!(outcome.texts, ["0", "100", "0"]);
    }

    #[test]
    fn a_request_that_failed_has_no_figures() {
        let broken = Record { error: Some("503: no room".into()), ..Record::default() };
        let said = Figures::of([Burst { records: vec![record(0, 1, 1), broken] }].iter());
        assert_eq!(said, Err("a request failed: 503: no room".into()));
        assert!(Figures::of([Burst { records: vec![] }].iter()).is_err());
    }

    #[test]
    fn layers_that_are_lent_are_those_of_all_tenants_together() {
        let state = |absent_layers| {
            let mut state = State::default();
            state.activity.absent_layers = absent_layers;
            state
        };
        assert_eq!(absent_layers([state(3), state(4)].iter()), 7);
    }
}
