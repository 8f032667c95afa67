//! What elasticity costs while it is switched on and has nothing to do: `Oneiros` beside `Recompute`, both with ample KV.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::tenant::{complete, start};
use super::verdict::Verdict;
use crate::bench::statistics::{Interval, median};
use crate::tenant::{Tenant, World, metric};

/// Most of a step's time, percent.
const LIMIT_PERCENT: f64 = 1.0;
/// Of each completion; equal for all.
const PROMPT_TOKENS: u32 = 32;
const TOKENS: u32 = 160;
/// Pairs of a round before anything is counted: caches, and the prompt's place in the prefix cache.
const WARM_UP: usize = 2;
/// Times that both tenants are started anew. Where the kernel happens to put a process's pages and threads makes it
/// faster or slower for all its life, by more than the limit: pairs of one life say nothing about that.
const ROUNDS: usize = 10;

/// Milliseconds a step, under `Recompute` and under `Oneiros`.
type Sample = (f64, f64);

/// Two tenants at the same time, at least `pairs` pairs of the same completion.
pub fn measure(world: &World, pairs: usize) -> Result<Vec<Verdict>> {
    let (mut rounds, mut fixed, mut elastic) = (Vec::new(), Counts::default(), Counts::default());
    for index in 0..ROUNDS {
        let round = round(world, index, pairs.div_ceil(ROUNDS))?;
        let told: Vec<_> = round.samples.iter().map(|(a, b)| format!("{a:.3} {b:.3}")).collect();
        eprintln!("round {:>2} of {ROUNDS}, ms a step: {}", index + 1, told.join("  "));
        rounds.push(round.samples);
        (fixed, elastic) = (fixed.plus(&round.fixed), elastic.plus(&round.elastic));
    }
    Ok([vec![overhead(&rounds)?], extra(&fixed, &elastic)].concat())
}

/// What one life of both tenants showed.
struct Round {
    samples: Vec<Sample>,
    fixed: Counts,
    elastic: Counts,
}

/// Who is started first alternates.
fn round(world: &World, index: usize, pairs: usize) -> Result<Round> {
    let (first, second) =
        if index.is_multiple_of(2) { ("Recompute", "Oneiros") } else { ("Oneiros", "Recompute") };
    let (first, second) = (start(world, first)?, start(world, second)?);
    let (fixed, elastic) = if index.is_multiple_of(2) { (&first, &second) } else { (&second, &first) };
    (0..WARM_UP).try_for_each(|index| pair(world, fixed, elastic, index).map(drop))?;
    let before = (Counts::of(fixed)?, Counts::of(elastic)?);
    let samples = (0..pairs).map(|at| pair(world, fixed, elastic, index + at)).collect::<Result<_>>()?;
    let after = (Counts::of(fixed)?, Counts::of(elastic)?);
    Ok(Round { samples, fixed: after.0.since(&before.0), elastic: after.1.since(&before.1) })
}

/// Milliseconds a step under `Recompute` and under `Oneiros`. Who begins alternates, so that a drift of the machine
/// favours nobody.
fn pair(world: &World, fixed: &Tenant, elastic: &Tenant, index: usize) -> Result<Sample> {
    let ((a, b), (text, other)) = if index.is_multiple_of(2) {
        let (a, b) = (one(world, fixed)?, one(world, elastic)?);
        ((a.0, b.0), (a.1, b.1))
    } else {
        let (b, a) = (one(world, elastic)?, one(world, fixed)?);
        ((a.0, b.0), (a.1, b.1))
    };
    ensure!(text == other, "the two policies gave different tokens");
    Ok((a, b))
}

/// One completion: mean milliseconds between its tokens as the scheduler hands them out (step, decisions and link), and
/// its text.
fn one(world: &World, tenant: &Tenant) -> Result<(f64, String)> {
    let before = Gaps::read(&tenant.metrics()?)?;
    let text = complete(world, tenant, PROMPT_TOKENS, TOKENS)?;
    let gaps = Gaps::read(&tenant.metrics()?)?.since(&before);
    ensure!(gaps.count == f64::from(TOKENS - 1), "{} gaps between {TOKENS} tokens", gaps.count);
    Ok((gaps.seconds / gaps.count * 1e3, text))
}

/// Times between tokens so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gaps {
    seconds: f64,
    count: f64,
}

impl Gaps {
    fn read(metrics: &str) -> Result<Gaps> {
        let read = |end| metric(metrics, &format!("vllm:inter_token_latency_seconds_{end}"));
        Ok(Gaps { seconds: read("sum")?, count: read("count")? })
    }

    fn since(&self, before: &Gaps) -> Gaps {
        Gaps { seconds: self.seconds - before.seconds, count: self.count - before.count }
    }
}

/// The lower bound of the overhead is held to the limit; how wide the interval is tells how quiet the machine was. Pairs
/// of a round are not independent, so the interval is that of the rounds' means.
fn overhead(rounds: &[Vec<Sample>]) -> Result<Verdict> {
    let samples = rounds.concat();
    let of = |get: fn(&Sample) -> f64, samples: &[Sample]| samples.iter().map(get).collect::<Vec<_>>();
    let difference: fn(&Sample) -> f64 = |(fixed, elastic)| elastic - fixed;
    let step = median(&of(|sample| sample.0, &samples)).context("no pair")?;
    let ratio = median(&of(|(fixed, elastic)| elastic / fixed, &samples)).context("no pair")?;
    let means: Vec<_> = rounds.iter().map(|round| mean(&of(difference, round))).collect();
    let percent =
        |differences: &[f64]| Interval::of_mean(differences).map(|found| found.scaled(100.0 / step));
    let by_round = percent(&means).context("too few rounds")?;
    let by_pair = percent(&of(difference, &samples)).context("too few pairs")?;
    let told =
        |found: Interval| format!("{:.3} % (95 % from {:.3} to {:.3})", found.mean, found.low, found.high);
    eprintln!(
        "step {step:.4} ms, median ratio {ratio:.5}, overhead {} by rounds, {} by pairs, {} pairs",
        told(by_round),
        told(by_pair),
        samples.len()
    );
    let name = format!("step time, lower bound (median ratio {ratio:.4})");
    let interval = |found: Interval| json!({"mean": found.mean, "low": found.low, "high": found.high});
    let verdict = Verdict::at_most(&name, by_round.low, "%", LIMIT_PERCENT).of_interval(by_round.high);
    Ok(verdict.with(json!({
        "pairs": samples.len(), "step_ms_median": step, "ratio_median": ratio,
        "overhead_percent_by_rounds": interval(by_round), "overhead_percent_by_pairs": interval(by_pair),
        "step_ms_recompute_oneiros_by_round": rounds,
    })))
}

fn mean(samples: &[f64]) -> f64 {
    samples.iter().sum::<f64>() / samples.len() as f64
}

/// What a sidecar counts, from its state message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    copied_bytes: u64,
    /// Orders to memory (create, release, map and unmap, fill, move blocks) and refusals of one, for all reasons.
    memory_events: u64,
    /// Between sidecar and engine, both ways.
    messages: u64,
    /// Layers given away at the end: with any, elasticity is not idle.
    remapped: u64,
}

impl Counts {
    fn of(tenant: &Tenant) -> Result<Counts> {
        Counts::read(&tenant.state()?)
    }

    fn read(state: &Value) -> Result<Counts> {
        let number = |path: &str| {
            state.pointer(path).and_then(Value::as_u64).with_context(|| format!("the state has no {path}"))
        };
        let reasons =
            state["figures"]["remap_events_total"].as_array().context("the state has no reasons")?;
        let counts =
            reasons.iter().map(|reason| reason["count"].as_u64().context("a reason without a count"));
        let memory_events = counts.sum::<Result<u64>>()?;
        Ok(Counts {
            copied_bytes: number("/figures/copied_bytes_total")?,
            memory_events,
            messages: number("/figures/link_messages_total")?,
            remapped: number("/remap/alpha")?,
        })
    }

    fn since(&self, before: &Counts) -> Counts {
        Counts {
            copied_bytes: self.copied_bytes - before.copied_bytes,
            memory_events: self.memory_events - before.memory_events,
            messages: self.messages - before.messages,
            remapped: self.remapped,
        }
    }

    fn plus(&self, other: &Counts) -> Counts {
        Counts {
            copied_bytes: self.copied_bytes + other.copied_bytes,
            memory_events: self.memory_events + other.memory_events,
            messages: self.messages + other.messages,
            remapped: self.remapped + other.remapped,
        }
    }
}

/// Beyond what `Recompute` did for the same tokens.
fn extra(fixed: &Counts, elastic: &Counts) -> Vec<Verdict> {
    let detail = |get: fn(&Counts) -> u64| json!({"recompute": get(fixed), "oneiros": get(elastic)});
    let verdict = |name: &str, unit: &str, get: fn(&Counts) -> u64| {
        let more = get(elastic) as f64 - get(fixed) as f64;
        Verdict::at_most(name, more, unit, 0.0).with(detail(get))
    };
    vec![
        verdict("maps and other memory orders, extra", "orders", |counts| counts.memory_events),
        verdict("copies, extra", "bytes", |counts| counts.copied_bytes),
        verdict("messages on the link, extra", "messages", |counts| counts.messages),
        verdict("layers given away: must be idle", "layers", |counts| counts.remapped),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Value {
        json!({
            "figures": {
                "copied_bytes_total": 100, "link_messages_total": 7,
                "remap_events_total": [{"reason": "load", "count": 27}, {"reason": "remap_own", "count": 2}],
            },
            "remap": {"alpha": 1},
        })
    }

    #[test]
    fn counts_come_from_the_state_and_a_missing_one_is_an_error() {
        let expected = Counts { copied_bytes: 100, memory_events: 29, messages: 7, remapped: 1 };
        assert_eq!(Counts::read(&state()).unwrap(), expected);
        for (group, field) in
            [("figures", "link_messages_total"), ("figures", "remap_events_total"), ("remap", "alpha")]
        {
            let mut state = state();
            state[group].as_object_mut().unwrap().remove(field);
            assert!(Counts::read(&state).is_err(), "{field}");
        }
    }

    #[test]
    fn a_single_extra_map_copy_or_message_fails() {
        let none = Counts { copied_bytes: 0, memory_events: 0, messages: 160, remapped: 0 };
        assert!(extra(&none, &none).iter().all(|verdict| verdict.passed));
        for more in [
            Counts { copied_bytes: 1, ..none },
            Counts { memory_events: 1, ..none },
            Counts { messages: 161, ..none },
            Counts { remapped: 1, ..none },
        ] {
            assert_eq!(extra(&none, &more).iter().filter(|verdict| !verdict.passed).count(), 1, "{more:?}");
        }
    }

    #[test]
    fn what_both_do_is_not_extra() {
        let both = Counts { copied_bytes: 9, memory_events: 3, messages: 160, remapped: 0 };
        assert!(extra(&both, &both).iter().all(|verdict| verdict.passed));
    }

    /// Ten rounds of three pairs, `Oneiros` slower by `percent`; the machine drifts, pairs are noisy, and in each round
    /// one of the two is slower by `bias` ms for no reason.
    fn rounds(percent: f64, bias: f64) -> Vec<Vec<Sample>> {
        let sample = |index: i32| {
            let (drift, noise) = (f64::from(index) * 0.05, f64::from(index % 5 - 2) * 0.001);
            let bias = if (index / 3) % 2 == 0 { bias } else { -bias };
            (4.0 + drift, 4.0 + drift + 4.0 * percent / 100.0 + noise + bias)
        };
        (0..30).map(sample).collect::<Vec<_>>().chunks(3).map(<[_]>::to_vec).collect()
    }

    #[test]
    fn an_overhead_beyond_the_limit_is_seen_through_drift_and_noise() {
        assert!(overhead(&rounds(0.2, 0.0)).unwrap().passed);
        assert!(!overhead(&rounds(3.0, 0.0)).unwrap().passed);
        assert!(overhead(&rounds(-3.0, 0.0)).unwrap().passed);
    }

    #[test]
    fn luck_that_lasts_for_a_round_widens_the_interval() {
        let width = |bias| {
            let detail = overhead(&rounds(0.0, bias)).unwrap().detail;
            let bound = |name: &str| detail["overhead_percent_by_rounds"][name].as_f64().unwrap();
            (bound("low"), bound("high"))
        };
        let ((low, high), (quiet_low, quiet_high)) = (width(0.4), width(0.0));
        let not_shown = |bias| overhead(&rounds(0.0, bias)).unwrap().not_shown;
        assert_eq!((not_shown(0.4), not_shown(0.0)), (Some(high), None));
        assert!(low < -1.0 && high > 1.0, "{low} to {high}");
        assert!(quiet_low > -1.0 && quiet_high < 1.0, "{quiet_low} to {quiet_high}");
    }

    #[test]
    fn the_overhead_is_told_in_percent_of_the_median_step() {
        let verdict = overhead(&vec![vec![(4.0, 4.04); 2]; 2]).unwrap();
        assert!((verdict.value.unwrap() - 1.0).abs() < 1e-9, "{verdict:?}");
        assert!((verdict.detail["ratio_median"].as_f64().unwrap() - 1.01).abs() < 1e-9);
    }

    #[test]
    fn gaps_are_counted_by_difference() {
        let text = |sum: f64, count: u32| {
            let name = "vllm:inter_token_latency_seconds";
            format!("{name}_sum{{model_name=\"m\"}} {sum}\n{name}_count{{model_name=\"m\"}} {count}\n")
        };
        let (before, after) = (Gaps::read(&text(1.5, 10)).unwrap(), Gaps::read(&text(2.5, 15)).unwrap());
        assert_eq!(after.since(&before), Gaps { seconds: 1.0, count: 5.0 });
        assert!(Gaps::read("").is_err());
    }
}
