//! What one rule did with the day: figures of each round, and what was seen during them. Pure.

use std::time::Duration;

use sluice_wire::State;

use crate::bench::{Distribution, Record};

/// The most that was seen of all tenants while the load ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests in a tenant's batch.
    pub running: u32,
    /// Layers of all tenants whose memory others used.
    pub absent_layers: u32,
}

impl Seen {
    /// Takes in the states of the tenants that answer.
    pub fn look<'a>(&mut self, states: impl Iterator<Item = &'a State> + Clone) {
        let absent = states.clone().map(|state| u32::from(state.activity.absent_layers)).sum();
        let running = states.map(|state| state.queue.running).max().unwrap_or(0);
        self.absent_layers = self.absent_layers.max(absent);
        self.running = self.running.max(running);
    }
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
    /// The most that was seen.
    pub seen: Seen,
    /// Times that a request was put out of memory, to be computed again; `None` = a tenant did not answer at the end.
    pub preempted: Option<u64>,
    /// Every answer, in the order of the requests.
    pub texts: Vec<String>,
    /// What other programs took of all cores on that day, thousandths; `None` = the kernel does not say.
    pub others_permille: Option<u32>,
}

impl Outcome {
    /// Of these rounds. `states` are those of all tenants at the end; `None` = a tenant did not answer.
    ///
    /// # Errors
    /// As [`Figures::of`].
    pub fn new(
        rounds: &[Round],
        states: &[Option<State>],
        seen: Seen,
        others_permille: Option<u32>,
    ) -> Result<Outcome, String> {
        let each = rounds.iter().map(|round| Figures::of(round.iter()));
        let records = rounds.iter().flatten().flat_map(|burst| &burst.records);
        Ok(Outcome {
            rounds: each.collect::<Result<_, _>>()?,
            all: Figures::of(rounds.iter().flatten())?,
            seen,
            preempted: states.iter().map(|state| Some(state.as_ref()?.figures.preemptions_total)).sum(),
            texts: records.map(|record| record.text.clone()).collect(),
            others_permille,
        })
    }
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
        let of = |states: &[_]| Outcome::new(&rounds, states, Seen::default(), Some(7)).unwrap();
        let outcome = of(&[Some(state.clone()), Some(state.clone())]);
        assert_eq!(outcome.all, Figures { tokens_per_s: 6.0, ttft_p99_ms: 450.0, tbt_p99_ms: 50.0 });
        let speeds: Vec<_> = outcome.rounds.iter().map(|round| round.tokens_per_s).collect();
        assert_eq!((speeds, outcome.preempted), (vec![8.0, 4.0], Some(6)));
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
    fn what_was_seen_is_the_most_of_one_batch_and_of_all_layers_together() {
        let state = |running, absent_layers| {
            let mut state = State::default();
            (state.queue.running, state.activity.absent_layers) = (running, absent_layers);
            state
        };
        let mut seen = Seen::default();
        seen.look([state(2, 3), state(0, 4)].iter());
        seen.look([state(1, 0), state(1, 1)].iter());
        assert_eq!(seen, Seen { running: 2, absent_layers: 7 });
    }
}
