//! Cost of elasticity that is enabled and idle: `Oneiros` compared with `Recompute`, both with ample KV.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sluice_common::metrics_text::sum;
use sluice_common::statistics::{median, percentile_of_sorted};

use super::tenant::{Burst, start};
use super::verdict::BudgetCheck;
use crate::statistics::Interval;
use crate::tenant::{BenchEnv, Tenant};

/// Most of a step's time, percent.
const LIMIT_PERCENT: f64 = 1.0;
/// The timed batch. Its steps wait for arithmetic more than for memory: the placement of a process's pages by the
/// kernel makes a step that reads all its weights for a single token faster or slower for the whole run, by ten
/// times the limit.
const TIMED: Burst = Burst { requests: 8, prompt_tokens: 16, tokens: 64 };
/// What is counted: one sequence, so that its steps are as many on both sides, whenever a request happens to arrive.
const COUNTED: Burst = Burst { requests: 1, prompt_tokens: 32, tokens: 96 };
/// Pairs of a round before anything is timed: caches, and the prompts' places in the prefix cache.
const WARM_UP: usize = 2;
/// Times that both tenants are started anew, two in each block. What luck remains lasts for a life of a process:
/// pairs of one life say nothing about it.
pub const ROUNDS: usize = 24;
/// Rounds of a block: one for each start order, since the tenant that starts last tends to be faster.
const BLOCK: usize = 2;

/// 24 layers of 1.5 MiB: a step of the batch takes milliseconds.
#[rustfmt::skip]
pub const MODEL: &[&str] = &[
    "--layers", "24", "--hidden", "192", "--heads", "6", "--kv-heads", "3", "--intermediate", "512",
    "--vocab", "512", "--max-positions", "512",
];

/// What a step cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    /// Mean time between tokens as the scheduler hands them out: step, decisions and link; milliseconds.
    step_ms: f64,
    /// Processor time of the sidecar, all threads, by token of a stream; milliseconds.
    sidecar_ms: f64,
}

/// Under `Recompute` and under `Oneiros`.
type Sample = (Cost, Cost);

/// Two tenants at the same time, at least `pairs` pairs of the same batch.
pub fn measure(world: &BenchEnv, pairs: usize) -> Result<Vec<BudgetCheck>> {
    let (mut rounds, mut fixed, mut elastic) = (Vec::new(), Counts::default(), Counts::default());
    for index in 0..ROUNDS {
        let round = round(world, index, pairs.div_ceil(ROUNDS))?;
        let times: Vec<_> =
            round.samples.iter().map(|(a, b)| format!("{:.3} {:.3}", a.step_ms, b.step_ms)).collect();
        eprintln!("round {:>2} of {ROUNDS}, ms a step: {}", index + 1, times.join("  "));
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

/// Whether `Recompute` is first: in the order ABBA, so that neither a drift nor a period of two favours one tenant.
fn fixed_first(index: usize) -> bool {
    matches!(index % 4, 0 | 3)
}

/// Starts both tenants, measures them alternately, and ends them.
fn round(world: &BenchEnv, index: usize, pairs: usize) -> Result<Round> {
    let fixed_first = fixed_first(index);
    let (first, second) = if fixed_first { ("Recompute", "Oneiros") } else { ("Oneiros", "Recompute") };
    let (first, second) = (start(world, first)?, start(world, second)?);
    let (fixed, elastic) = if fixed_first { (&first, &second) } else { (&second, &first) };
    (0..WARM_UP).try_for_each(|at| pair(world, fixed, elastic, TIMED, index + at).map(drop))?;
    let samples = (0..pairs).map(|at| pair(world, fixed, elastic, TIMED, index + at));
    let samples = samples.collect::<Result<_>>()?;
    pair(world, fixed, elastic, COUNTED, index)?;
    let before = (Counts::of(fixed)?, Counts::of(elastic)?);
    pair(world, fixed, elastic, COUNTED, index)?;
    let after = (Counts::of(fixed)?, Counts::of(elastic)?);
    Ok(Round { samples, fixed: after.0.since(&before.0), elastic: after.1.since(&before.1) })
}

/// The same batch on both.
fn pair(world: &BenchEnv, fixed: &Tenant, elastic: &Tenant, burst: Burst, index: usize) -> Result<Sample> {
    let ((a, b), (texts, others)) = if fixed_first(index) {
        let (a, b) = (one(world, fixed, burst)?, one(world, elastic, burst)?);
        ((a.0, b.0), (a.1, b.1))
    } else {
        let (b, a) = (one(world, elastic, burst)?, one(world, fixed, burst)?);
        ((a.0, b.0), (a.1, b.1))
    };
    ensure!(texts == others, "the two policies produced different tokens");
    Ok((a, b))
}

/// One batch: what its steps cost, and its texts.
fn one(world: &BenchEnv, tenant: &Tenant, burst: Burst) -> Result<(Cost, Vec<String>)> {
    let (before, processor) = (Gaps::read(&tenant.metrics()?)?, tenant.processor_ns()?);
    let texts = burst.send(world, tenant)?;
    let (gaps, processor) =
        (Gaps::read(&tenant.metrics()?)?, tenant.processor_ns()?.saturating_sub(processor));
    let gaps = gaps.since(&before);
    let steps = f64::from(burst.tokens - 1);
    let expected = steps * f64::from(burst.requests);
    ensure!(gaps.count == expected, "{} gaps between tokens, not {expected}", gaps.count);
    let cost = Cost { step_ms: gaps.seconds / gaps.count * 1e3, sidecar_ms: processor as f64 / 1e6 / steps };
    Ok((cost, texts))
}

/// Times between tokens so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Gaps {
    seconds: f64,
    count: f64,
}

impl Gaps {
    fn read(metrics: &str) -> Result<Gaps> {
        let read = |end| {
            let name = format!("vllm:inter_token_latency_seconds_{end}");
            sum(metrics, &name, &[]).with_context(|| format!("no metric {name}"))
        };
        Ok(Gaps { seconds: read("sum")?, count: read("count")? })
    }

    fn since(&self, before: &Gaps) -> Gaps {
        Gaps { seconds: self.seconds - before.seconds, count: self.count - before.count }
    }
}

/// Compares the lower bound of the overhead with the limit; the width of the interval shows how quiet the machine
/// was. Pairs of a round share their page placement, and both rounds of a block the start order, so the interval is
/// over blocks.
fn overhead(rounds: &[Vec<Sample>]) -> Result<BudgetCheck> {
    let samples = rounds.concat();
    let fixed_ms = |(fixed, _): &Sample| fixed.step_ms;
    let step_ms = median(&samples.iter().map(fixed_ms).collect::<Vec<_>>()).context("no pair")?;
    let percent = |of: fn(&Cost) -> f64| {
        let round = |round: &Vec<Sample>| {
            let fixed = lower_quartile(round.iter().map(|sample| of(&sample.0)))?;
            let elastic = lower_quartile(round.iter().map(|sample| of(&sample.1)))?;
            Some((elastic - fixed) / lower_quartile(round.iter().map(fixed_ms))? * 100.0)
        };
        let rounds: Vec<_> = rounds.iter().map(round).collect::<Option<_>>()?;
        Interval::of_mean(&rounds.chunks(BLOCK).map(mean).collect::<Vec<_>>())
    };
    let step = percent(|cost| cost.step_ms).context("too few rounds")?;
    let sidecar = percent(|cost| cost.sidecar_ms).context("too few rounds")?;
    let text = |of: Interval| format!("{:.2} % (95 % from {:.2} to {:.2})", of.mean, of.low, of.high);
    eprintln!(
        "step {step_ms:.4} ms, overhead {}; processor time of the sidecar, in percent of the \
         step: {} more; {} pairs",
        text(step),
        text(sidecar),
        samples.len()
    );
    let name = format!("step time, lower bound (mean {:.2} %)", step.mean);
    let interval = |of: Interval| json!({"mean": of.mean, "low": of.low, "high": of.high});
    let both = |get: fn(&Cost) -> f64| -> Vec<Vec<[f64; 2]>> {
        rounds.iter().map(|round| round.iter().map(|(a, b)| [get(a), get(b)]).collect()).collect()
    };
    Ok(BudgetCheck::at_most(&name, step.low, "%", LIMIT_PERCENT).of_interval(step.high).with(json!({
        "pairs": samples.len(), "step_ms_median": step_ms,
        "overhead_percent_by_blocks": interval(step),
        "sidecar_processor_percent_of_step_by_blocks": interval(sidecar),
        "step_ms_recompute_oneiros_by_round": both(|cost| cost.step_ms),
        "sidecar_processor_ms_recompute_oneiros_by_round": both(|cost| cost.sidecar_ms),
    })))
}

/// Disturbances only add time, and elasticity has its cost in every step: the faster samples show it best.
fn lower_quartile(samples: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<_> = samples.collect();
    sorted.sort_by(f64::total_cmp);
    percentile_of_sorted(&sorted, 250)
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
        let reasons = state["figures"]["moves_total"].as_array().context("the state has no reasons")?;
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
fn extra(fixed: &Counts, elastic: &Counts) -> Vec<BudgetCheck> {
    let detail = |get: fn(&Counts) -> u64| json!({"recompute": get(fixed), "oneiros": get(elastic)});
    let verdict = |name: &str, unit: &str, get: fn(&Counts) -> u64| {
        let more = get(elastic) as f64 - get(fixed) as f64;
        BudgetCheck::at_most(name, more, unit, 0.0).with(detail(get))
    };
    vec![
        verdict("maps and other memory orders, extra", "orders", |counts| counts.memory_events),
        verdict("copies, extra", "bytes", |counts| counts.copied_bytes),
        verdict("messages on the link, extra", "messages", |counts| counts.messages),
        verdict("layers whose memory holds KV: must be 0", "layers", |counts| counts.remapped),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Value {
        json!({
            "figures": {
                "copied_bytes_total": 100, "link_messages_total": 7,
                "moves_total": [{"reason": "load", "count": 27}, {"reason": "remap_own", "count": 2}],
            },
            "remap": {"alpha": 1},
        })
    }

    #[test]
    fn counts_come_from_the_state_and_a_missing_one_is_an_error() {
        let expected = Counts { copied_bytes: 100, memory_events: 29, messages: 7, remapped: 1 };
        assert_eq!(Counts::read(&state()).unwrap(), expected);
        for (group, field) in
            [("figures", "link_messages_total"), ("figures", "moves_total"), ("remap", "alpha")]
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

    fn sample(fixed_ms: f64, elastic_ms: f64) -> Sample {
        let cost = |step_ms| Cost { step_ms, sidecar_ms: step_ms / 10.0 };
        (cost(fixed_ms), cost(elastic_ms))
    }

    /// Returns 24 rounds of three pairs, `Oneiros` slower by `percent`. The machine drifts, pairs are noisy, the
    /// tenant that was started last is faster by `last` ms, and in every other block one of the two is slower by
    /// `luck` ms.
    fn rounds(percent: f64, last: f64, luck: f64) -> Vec<Vec<Sample>> {
        let at = |round: usize, pair: usize| {
            let (drift, noise) =
                ((round * 3 + pair) as f64 * 0.05, ((round + pair) % 5) as f64 * 0.002 - 0.004);
            let luck = if (round / 2).is_multiple_of(2) { luck } else { -luck };
            let last = if fixed_first(round) { -last } else { last };
            sample(4.0 + drift, 4.0 + drift + 4.0 * percent / 100.0 + noise + last + luck)
        };
        (0..24).map(|round| (0..3).map(|pair| at(round, pair)).collect()).collect()
    }

    fn bounds(rounds: &[Vec<Sample>]) -> (f64, f64) {
        let detail = overhead(rounds).unwrap().detail;
        let bound = |name: &str| detail["overhead_percent_by_blocks"][name].as_f64().unwrap();
        (bound("low"), bound("high"))
    }

    #[test]
    fn an_overhead_beyond_the_limit_is_seen_through_drift_and_noise() {
        assert!(overhead(&rounds(0.2, 0.0, 0.0)).unwrap().passed);
        assert!(!overhead(&rounds(3.0, 0.0, 0.0)).unwrap().passed);
        assert!(overhead(&rounds(-3.0, 0.0, 0.0)).unwrap().passed);
    }

    #[test]
    fn per_run_bias_widens_the_interval() {
        let ((low, high), (quiet_low, quiet_high)) =
            (bounds(&rounds(0.0, 0.0, 0.4)), bounds(&rounds(0.0, 0.0, 0.0)));
        let not_shown = |luck| overhead(&rounds(0.0, 0.0, luck)).unwrap().not_shown;
        assert_eq!((not_shown(0.4), not_shown(0.0)), (Some(high), None));
        assert!(low < -1.0 && high > 1.0, "{low} to {high}");
        assert!(quiet_low > -1.0 && quiet_high < 1.0, "{quiet_low} to {quiet_high}");
    }

    #[test]
    fn start_order_makes_no_difference() {
        let (low, high) = bounds(&rounds(0.0, 0.4, 0.0));
        assert!(low > -1.0 && high < 1.0, "{low} to {high}");
    }

    #[test]
    fn a_batch_that_was_disturbed_makes_no_difference() {
        let mut rounds = rounds(0.0, 0.0, 0.0);
        let before = bounds(&rounds);
        rounds[5][1].1 = sample(400.0, 400.0).1;
        let (low, high) = bounds(&rounds);
        assert!((low - before.0).abs() < 0.2 && (high - before.1).abs() < 0.2, "{low} to {high}");
    }

    #[test]
    fn both_come_first_equally_often_in_pairs_and_in_rounds() {
        assert!((0..4).step_by(BLOCK).all(|at| fixed_first(at) != fixed_first(at + 1)));
        assert!(ROUNDS.is_multiple_of(2 * BLOCK));
    }

    #[test]
    fn overhead_is_percent_of_step() {
        let verdict = overhead(&vec![vec![sample(4.0, 4.04); 2]; 4]).unwrap();
        assert!((verdict.value.unwrap() - 1.0).abs() < 1e-9, "{verdict:?}");
        let sidecar = &verdict.detail["sidecar_processor_percent_of_step_by_blocks"]["mean"];
        assert!((sidecar.as_f64().unwrap() - 0.1).abs() < 1e-9, "{verdict:?}");
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
