//! Statistics of a day under one rule: figures of each round, and observations during them. Pure.

use std::time::Duration;

use sluice_wire::State;
use sluice_wire::state::Phase;

use super::config::LatencySlo;
use crate::bench::{Distribution, RequestRecord};

/// Counts the layers whose memory tenants lent. A tenant that sleeps, or has not woken completely, has layers in host
/// memory that it did not lend.
pub fn absent_layers<'a>(states: impl Iterator<Item = &'a State>) -> u32 {
    let awake = states.filter(|state| !matches!(state.phase, Phase::Hibernated | Phase::Waking));
    awake.map(|state| u32::from(state.activity.lent_layers)).sum()
}

/// Figures over some bursts. Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Output tokens per second.
    pub tokens_per_s: f64,
    /// P99 of the time to the first token, measured by clients.
    pub ttft_p99_ms: f64,
    /// P99 of the time between tokens, measured by clients.
    pub tbt_p99_ms: f64,
}

impl Figures {
    /// Summarizes consecutive bursts. Each lasts from its first request to its last answer.
    ///
    /// # Errors
    /// A request failed, or no answer had two tokens.
    pub fn from_bursts<'a>(bursts: impl Iterator<Item = &'a Burst> + Clone) -> Result<Figures, String> {
        let records = || bursts.clone().flat_map(|burst| &burst.records);
        if let Some(error) = records().find_map(|record| record.error.clone()) {
            return Err(format!("a request failed: {error}"));
        }
        let tokens: u64 = records().map(|record| record.output_tokens).sum();
        let seconds: f64 = bursts.clone().map(|burst| burst.duration().as_secs_f64()).sum();
        let p99 = |distribution: Option<Distribution>| distribution.map(|figures| figures.p99);
        let ttft = p99(Distribution::of(records().filter_map(|record| record.ttft)));
        let tbt = p99(Distribution::of(records().flat_map(|record| record.inter_chunk_gaps.iter().copied())));
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
    /// The result of each request.
    pub records: Vec<RequestRecord>,
}

impl Burst {
    /// From the first request to the last answer.
    pub fn duration(&self) -> Duration {
        let sent = self.records.iter().map(|record| record.sent_at).min().unwrap_or_default();
        let ended = self.records.iter().map(|record| record.ended_at).max().unwrap_or_default();
        ended.saturating_sub(sent)
    }
}

/// One burst for each tenant.
pub type Round = Vec<Burst>;

/// The statistics of a day under one rule.
#[derive(Clone, Debug)]
pub struct RunStats {
    /// Figures of each round.
    pub rounds: Vec<Figures>,
    /// Figures of all rounds together.
    pub overall: Figures,
    /// Share of first tokens within the target, permille.
    pub ttft_attained_permille: u32,
    /// The highest [`absent_layers`] that was observed.
    pub max_absent_layers: u32,
    /// Number of preemptions with recomputation; `None` = a tenant did not answer at the end.
    pub preemptions: Option<u64>,
    /// Every answer, in the order of the requests.
    pub texts: Vec<String>,
    /// Share of all cores that other programs used on that day, permille; `None` = the kernel does not report it.
    pub other_cpu_permille: Option<u32>,
}

impl RunStats {
    /// Computes the statistics of these rounds under `promise`. `states` are those of all tenants at the end; `None` =
    /// a tenant did not answer.
    ///
    /// # Errors
    /// See [`Figures::from_bursts`].
    pub fn new(
        rounds: &[Round],
        promise: LatencySlo,
        states: &[Option<State>],
        absent_layers: u32,
        others_permille: Option<u32>,
    ) -> Result<RunStats, String> {
        let each = rounds.iter().map(|round| Figures::from_bursts(round.iter()));
        let records = || rounds.iter().flatten().flat_map(|burst| &burst.records);
        let in_time = |record: &&RequestRecord| record.ttft.is_some_and(|ttft| ttft <= promise.ttft());
        Ok(RunStats {
            rounds: each.collect::<Result<_, _>>()?,
            overall: Figures::from_bursts(rounds.iter().flatten())?,
            ttft_attained_permille: permille(records().filter(in_time).count(), records().count()),
            max_absent_layers: absent_layers,
            preemptions: states.iter().map(|state| Some(state.as_ref()?.figures.preemptions_total)).sum(),
            texts: records().map(|record| record.text.clone()).collect(),
            other_cpu_permille: others_permille,
        })
    }
}

fn permille(part: usize, all: usize) -> u32 {
    u32::try_from(part * 1000 / all.max(1)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sent_ms: u64, ttft_ms: u64, gap_ms: u64) -> RequestRecord {
        let ms = Duration::from_millis;
        RequestRecord {
            sent_at: ms(sent_ms),
            ttft: Some(ms(ttft_ms)),
            inter_chunk_gaps: vec![ms(gap_ms)],
            ended_at: ms(sent_ms + ttft_ms + gap_ms),
            output_tokens: 2,
            text: format!("{sent_ms}"),
            ..RequestRecord::default()
        }
    }

    #[test]
    fn burst_lasts_as_long_as_its_longest_request() {
        // 4 tokens in 0.5 s, then 2 tokens in 0.5 s.
        let rounds = vec![
            vec![Burst { records: vec![record(0, 100, 20), record(100, 390, 10)] }],
            vec![Burst { records: vec![record(0, 450, 50)] }],
        ];
        let state = State {
            figures: sluice_wire::state::Figures { preemptions_total: 3, ..Default::default() },
            ..State::default()
        };
        let promise = LatencySlo { ttft_ms: 390, tbt_ms: 50 };
        let of = |states: &[_]| RunStats::new(&rounds, promise, states, 5, Some(7)).unwrap();
        let outcome = of(&[Some(state.clone()), Some(state.clone())]);
        assert_eq!(outcome.overall, Figures { tokens_per_s: 6.0, ttft_p99_ms: 450.0, tbt_p99_ms: 50.0 });
        let speeds: Vec<_> = outcome.rounds.iter().map(|round| round.tokens_per_s).collect();
        assert_eq!((speeds, outcome.preemptions), (vec![8.0, 4.0], Some(6)));
        assert_eq!((outcome.ttft_attained_permille, outcome.max_absent_layers), (666, 5));
        assert_eq!(of(&[Some(state), None]).preemptions, None, "a tenant did not answer");
        assert_eq!(outcome.texts, ["0", "100", "0"]);
    }

    #[test]
    fn a_request_that_failed_has_no_figures() {
        let broken = RequestRecord { error: Some("503: no room".into()), ..RequestRecord::default() };
        let said = Figures::from_bursts([Burst { records: vec![record(0, 1, 1), broken] }].iter());
        assert_eq!(said, Err("a request failed: 503: no room".into()));
        assert!(Figures::from_bursts([Burst { records: vec![] }].iter()).is_err());
    }

    #[test]
    fn lent_layers_are_summed_over_tenants_that_are_awake() {
        let state = |absent_layers, phase| {
            let mut state = State { phase, ..State::default() };
            state.activity.lent_layers = absent_layers;
            state
        };
        let awake = [state(3, Phase::Active), state(4, Phase::Idle)];
        let asleep = [state(12, Phase::Hibernated), state(9, Phase::Waking)];
        assert_eq!(absent_layers(awake.iter().chain(&asleep)), 7);
    }
}
