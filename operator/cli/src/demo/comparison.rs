//! Compares the two runs. A difference counts only if it exceeds the measured noise. Pure.

use std::fmt::Write;

use sluice_common::statistics::median;

use super::config::{DemoConfig, SharingPolicy};
use super::run_stats::{Figures, RunStats};

/// Differences below this do not count, percent: users do not notice them.
const MIN_DIFFERENCE_PERCENT: f64 = 5.0;
/// A run counts as disturbed if other programs used more than this share of all cores, permille.
pub const MAX_OTHER_CPU_PERMILLE: u32 = 100;
/// A run also counts as disturbed if the speeds of its halves differ by more than this, percent.
const MAX_SPREAD_PERCENT: f64 = 25.0;
/// Width of the titles of the table, columns.
const TITLE_COLUMNS: usize = 42;
const VALUE_COLUMNS: usize = 30;

/// Returns why a run is repeated; `None` = it was not disturbed.
pub fn disturbance(outcome: &RunStats) -> Option<String> {
    if let Some(others) = outcome.other_cpu_permille.filter(|permille| *permille > MAX_OTHER_CPU_PERMILLE) {
        return Some(format!("other programs took {} % of this machine's processor", others.div_ceil(10)));
    }
    let halves = half_spread_percent(outcome, |figures| figures.tokens_per_s);
    (halves > MAX_SPREAD_PERCENT).then(|| format!("the speeds of its two halves differ by {halves:.0} %"))
}

/// By how much a run may be off, percent: what other programs took of it may slow one run and not the other, and
/// its two halves had the same load.
pub fn noise_percent(outcome: &RunStats, figure: fn(&Figures) -> f64) -> f64 {
    let others = f64::from(outcome.other_cpu_permille.unwrap_or(0).min(999));
    half_spread_percent(outcome, figure).max(others / (1000.0 - others) * 100.0)
}

/// Returns the disturbed run whose speed has the most noise, to repeat it. `None` = no run was disturbed.
pub fn most_disturbed(runs: &[RunStats]) -> Option<usize> {
    let disturbed = runs.iter().enumerate().filter(|(_, run)| disturbance(run).is_some());
    disturbed
        .max_by(|(_, one), (_, other)| {
            throughput_noise_percent(one).total_cmp(&throughput_noise_percent(other))
        })
        .map(|(at, _)| at)
}

/// Whether a repeated run replaces the first one: its speed has less noise.
pub fn is_less_noisy(repeated: &RunStats, first: &RunStats) -> bool {
    throughput_noise_percent(repeated) < throughput_noise_percent(first)
}

fn throughput_noise_percent(run: &RunStats) -> f64 {
    noise_percent(run, |figures| figures.tokens_per_s)
}

/// Returns the difference of the two halves of a run, percent.
fn half_spread_percent(outcome: &RunStats, figure: fn(&Figures) -> f64) -> f64 {
    let (first, second) = outcome.rounds.split_at(outcome.rounds.len() / 2);
    let median_of = |rounds: &[Figures]| median(&rounds.iter().map(figure).collect::<Vec<_>>());
    match (median_of(first), median_of(second)) {
        (Some(first), Some(second)) => relative_difference_percent(first, second),
        _ => f64::INFINITY,
    }
}

/// Returns the difference relative to the smaller value, percent, so that half and twice differ equally.
fn relative_difference_percent(one: f64, other: f64) -> f64 {
    (one.max(other) / one.min(other) - 1.0) * 100.0
}

/// One figure under both rules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Under lending.
    pub lending: f64,
    /// Under fixed partitions.
    pub fixed: f64,
    /// Uncertainty of each value, percent.
    pub noise_percent: f64,
}

impl Comparison {
    /// Compares a figure of both runs.
    pub fn new(lending: &RunStats, fixed: &RunStats, figure: fn(&Figures) -> f64) -> Comparison {
        let noise_percent =
            noise_percent(lending, figure).max(noise_percent(fixed, figure)).max(MIN_DIFFERENCE_PERCENT);
        Comparison { lending: figure(&lending.overall), fixed: figure(&fixed.overall), noise_percent }
    }

    /// Whether the values differ by more than noise.
    pub fn is_significant(&self) -> bool {
        relative_difference_percent(self.lending, self.fixed) > self.noise_percent
    }
}

/// Whether both runs gave the same answers.
pub fn has_identical_outputs(lending: &RunStats, fixed: &RunStats) -> bool {
    lending.texts == fixed.texts
}

/// Returns a table with both runs.
pub fn table(lending: &RunStats, fixed: &RunStats) -> String {
    let mut text = format!(
        "{:TITLE_COLUMNS$}{:>VALUE_COLUMNS$}{:>VALUE_COLUMNS$}\n",
        "",
        SharingPolicy::Fixed.title(),
        SharingPolicy::Lending.title()
    );
    let mut row = |title: &str, value: &dyn Fn(&RunStats) -> String| {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{title:TITLE_COLUMNS$}{:>VALUE_COLUMNS$}{:>VALUE_COLUMNS$}",
            value(fixed),
            value(lending)
        );
    };
    row("output tokens per second", &|one| format!("{:.0}", one.overall.tokens_per_s));
    row("P99 time to the first token, ms", &|one| format!("{:.0}", one.overall.ttft_p99_ms));
    row("P99 time between tokens as delivered, ms", &|one| format!("{:.1}", one.overall.tbt_p99_ms));
    row("first tokens within the promise", &|one| {
        format!("{}.{} %", one.ttft_attained_permille / 10, one.ttft_attained_permille % 10)
    });
    row("requests computed again", &|one| {
        one.preemptions.map_or_else(|| "not known".to_owned(), |count| count.to_string())
    });
    row("most layers lent at once", &|one| one.max_absent_layers.to_string());
    let same = if has_identical_outputs(lending, fixed) { "yes" } else { "NO" };
    // Writing to a String cannot fail.
    let _ = write!(text, "{:TITLE_COLUMNS$}{same:>width$}", "tokens identical", width = 2 * VALUE_COLUMNS);
    text
}

/// Summarizes the table in three lines.
pub fn summary(lending: &RunStats, fixed: &RunStats, setting: &DemoConfig) -> String {
    [
        memory_sentence(lending, fixed, setting),
        latency_sentence(lending, fixed),
        output_sentence(lending, fixed),
    ]
    .join("\n")
}

/// Describes how lending moved memory.
fn memory_sentence(lending: &RunStats, fixed: &RunStats, setting: &DemoConfig) -> String {
    let (layers, burst) = (lending.max_absent_layers, setting.requests);
    if layers == 0 {
        return format!(
            "Idle tenants lent no memory: a burst of {burst} requests fitted into the memory of its own \
             tenant, or no tenant had layers to lend."
        );
    }
    let times = |count: u64| if count == 1 { "once".to_owned() } else { format!("{count} times") };
    let effect = match (lending.preemptions, fixed.preemptions) {
        (Some(lent), Some(partitioned)) if lent < partitioned => {
            format!(
                ", so requests lost their memory and were computed again {} instead of {}",
                times(lent),
                times(partitioned)
            )
        }
        (Some(lent), Some(partitioned)) => {
            format!(
                "; requests were computed again {} under lending and {} under fixed partitions",
                times(lent),
                times(partitioned)
            )
        }
        _ => "; how often requests were computed again is not known: a tenant did not answer at the end"
            .to_owned(),
    };
    format!("Idle tenants lent the memory of up to {layers} layers to the busy one{effect}.")
}

/// Describes the latency that clients measured.
fn latency_sentence(lending: &RunStats, fixed: &RunStats) -> String {
    let of = |figure| Comparison::new(lending, fixed, figure);
    let (speed, first, pause) = (
        of(|figures| figures.tokens_per_s),
        of(|figures| figures.ttft_p99_ms),
        of(|figures| figures.tbt_p99_ms),
    );
    let times = speed.lending / speed.fixed;
    let wait = |one: &Comparison| format!("{:.0} ms instead of {:.0} ms", one.lending, one.fixed);
    let both = |one: &Comparison, unit| format!("{:.0} and {:.0} {unit}", one.lending, one.fixed);
    let all = [
        (
            speed,
            both(&speed, "tokens per second"),
            format!("the tenants wrote {times:.2} times the tokens per second"),
        ),
        (
            first,
            both(&first, "ms until the slowest first tokens (P99)"),
            format!("the slowest first tokens (P99) came after {}", wait(&first)),
        ),
        (
            pause,
            both(&pause, "ms for the longest pauses between tokens (P99)"),
            format!("the longest pauses between tokens (P99) took {}", wait(&pause)),
        ),
    ];
    let differing: Vec<_> =
        all.iter().filter(|(one, ..)| one.is_significant()).map(|(.., words)| words.as_str()).collect();
    let alike: Vec<_> =
        all.iter().filter(|(one, ..)| !one.is_significant()).map(|(_, words, _)| words.as_str()).collect();
    let why = |noise: f64| match [lending, fixed].iter().filter_map(|run| run.other_cpu_permille).max() {
        Some(others) if others > MAX_OTHER_CPU_PERMILLE => {
            format!("other programs took up to {} % of this machine's processor", others.div_ceil(10))
        }
        _ => format!("two halves of a run under the same rule may differ by {noise:.0} %"),
    };
    let noise = all
        .iter()
        .filter(|(one, ..)| !one.is_significant())
        .map(|(one, ..)| one.noise_percent)
        .fold(0.0, f64::max);
    let mut said = Vec::new();
    if !differing.is_empty() {
        said.push(format!("Under lending {}.", differing.join(", ")));
    }
    if !alike.is_empty() {
        said.push(format!(
            "This run measured, under lending and under fixed partitions: {}.",
            alike.join(", ")
        ));
        let (these, do_not) = if alike.len() == 1 {
            ("This difference is", "does not")
        } else {
            ("These differences are", "do not")
        };
        said.push(format!("{these} within the noise and {do_not} count: {}.", why(noise)));
    }
    said.join(" ")
}

fn output_sentence(lending: &RunStats, fixed: &RunStats) -> String {
    let answers = fixed.texts.len();
    let differ = lending.texts.iter().zip(&fixed.texts).filter(|(one, other)| one != other).count();
    match differ {
        0 if has_identical_outputs(lending, fixed) => {
            format!("All {answers} answers were the same under both rules: lending changed no token.")
        }
        _ => format!(
            "{differ} of {answers} answers differed between the rules. This is a bug: please report it."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a run whose rounds have these speeds; the other figures are constant.
    fn run(speeds: &[f64], others_permille: u32) -> RunStats {
        let figures = |tokens_per_s| Figures { tokens_per_s, ttft_p99_ms: 100.0, tbt_p99_ms: 50.0 };
        RunStats {
            rounds: speeds.iter().copied().map(figures).collect(),
            overall: figures(speeds.iter().sum::<f64>() / speeds.len() as f64),
            ttft_attained_permille: 968,
            max_absent_layers: 0,
            preemptions: Some(0),
            texts: vec!["a".into(), "b".into()],
            other_cpu_permille: Some(others_permille),
        }
    }

    fn speeds(lending: &RunStats, fixed: &RunStats) -> Comparison {
        Comparison::new(lending, fixed, |figures| figures.tokens_per_s)
    }

    #[test]
    fn difference_is_significant_beyond_noise() {
        let (calm, steady) = (run(&[100.0, 100.0], 0), run(&[150.0, 150.0], 0));
        assert!(speeds(&steady, &calm).is_significant() && speeds(&calm, &steady).is_significant());
        // The same mean, but its halves differ by 100 %.
        let wild = run(&[100.0, 200.0], 0);
        assert_eq!(speeds(&wild, &calm), Comparison { lending: 150.0, fixed: 100.0, noise_percent: 100.0 });
        assert!(!speeds(&wild, &calm).is_significant() && !speeds(&calm, &wild).is_significant());
        assert_eq!(disturbance(&wild).unwrap(), "the speeds of its two halves differ by 100 %");
    }

    #[test]
    fn one_round_or_small_difference_is_not_significant() {
        assert!(!speeds(&run(&[300.0], 0), &run(&[100.0], 0)).is_significant());
        let (calm, close) = (run(&[100.0, 100.0], 0), run(&[104.0, 104.0], 0));
        assert_eq!(
            (speeds(&close, &calm).noise_percent, speeds(&close, &calm).is_significant()),
            (5.0, false)
        );
    }

    #[test]
    fn other_cpu_usage_counts_as_noise() {
        let (fixed, lending) = (run(&[100.0, 100.0], 0), run(&[150.0, 150.0], 400));
        assert_eq!(disturbance(&fixed), None);
        assert_eq!(disturbance(&lending).unwrap(), "other programs took 40 % of this machine's processor");
        // With 60 % of the cores used by others, a run may be slower by two thirds.
        assert!((speeds(&lending, &fixed).noise_percent - 66.7).abs() < 0.1);
        let expected = "This run measured, under lending and under fixed partitions: 150 and 100 tokens per second, \
                        100 and 100 ms until the slowest first tokens (P99), 50 and 50 ms for the longest pauses between tokens (P99). \
                        These differences are within the noise and do not count: other programs took up to 40 % of this machine's processor.";
        assert_eq!(latency_sentence(&lending, &fixed), expected);
        assert!(speeds(&run(&[200.0, 200.0], 400), &fixed).is_significant());
    }

    #[test]
    fn noisiest_run_is_repeated_and_less_noisy_one_counts() {
        let (calm, uneven, busy) =
            (run(&[400.0, 400.0], 0), run(&[400.0, 600.0], 0), run(&[400.0, 400.0], 200));
        // The halves of the second run differ by 50 %; with 20 % of the cores used by others, the third may be slower
        // by 25 %.
        let repeated =
            |lending: &RunStats, fixed: &RunStats| most_disturbed(&[lending.clone(), fixed.clone()]);
        assert_eq!(repeated(&calm, &calm), None);
        assert_eq!((repeated(&busy, &calm), repeated(&calm, &uneven)), (Some(0), Some(1)));
        assert_eq!((repeated(&uneven, &busy), repeated(&busy, &uneven)), (Some(0), Some(1)));
        // Noise alone is no reason to repeat: 6 % between the halves is normal.
        assert_eq!(repeated(&run(&[400.0, 424.0], 0), &calm), None);
        assert!(is_less_noisy(&busy, &uneven) && !is_less_noisy(&uneven, &busy));
        assert!(!is_less_noisy(&busy, &busy), "the first run counts unless the other one is better");
    }

    #[test]
    fn summary_matches_results() {
        let setting = DemoConfig { requests: 7, ..SETTING };
        let fixed = RunStats { preemptions: Some(30), ..run(&[400.0, 400.0], 0) };
        let mut lending = RunStats { preemptions: Some(1), ..run(&[600.0, 600.0], 0) };
        lending.max_absent_layers = 12;
        lending.overall.ttft_p99_ms = 30.0;
        lending.rounds.iter_mut().for_each(|round| round.ttft_p99_ms = 30.0);
        let expected = "\
Idle tenants lent the memory of up to 12 layers to the busy one, so requests lost their memory and were computed again once instead of 30 times.
Under lending the tenants wrote 1.50 times the tokens per second, the slowest first tokens (P99) came after \
30 ms instead of 100 ms. This run measured, under lending and under fixed partitions: 50 and 50 ms for the longest pauses between tokens (P99). \
This difference is within the noise and does not count: two halves of a run under the same rule may differ by 5 %.
All 2 answers were the same under both rules: lending changed no token.";
        assert_eq!(summary(&lending, &fixed, &setting), expected);
        assert!(memory_sentence(&fixed, &fixed, &setting).starts_with("Idle tenants lent no memory"));
    }

    #[test]
    fn lending_is_credited_only_for_fewer_recomputations() {
        let counted =
            |preempted| RunStats { preemptions: preempted, max_absent_layers: 4, ..run(&[1.0, 1.0], 0) };
        let words = |lending, fixed| memory_sentence(&counted(lending), &counted(fixed), &SETTING);
        let lent = "Idle tenants lent the memory of up to 4 layers to the busy one";
        assert_eq!(
            words(Some(5), Some(3)),
            format!(
                "{lent}; requests were computed again 5 times under lending and 3 times under fixed partitions."
            )
        );
        assert!(!words(Some(3), Some(3)).contains(", so "));
        assert!(words(Some(2), Some(3)).contains(", so requests lost their memory"));
        let unknown =
            "; how often requests were computed again is not known: a tenant did not answer at the end.";
        assert_eq!(words(None, Some(3)), format!("{lent}{unknown}"));
        assert_eq!(words(Some(0), None), format!("{lent}{unknown}"));
        let table = table(&counted(None), &counted(Some(3)));
        assert!(
            table
                .lines()
                .any(|row| row.starts_with("requests computed again") && row.ends_with(" not known")),
            "{table}"
        );
    }

    #[test]
    fn differing_output_is_shown_in_table_and_summary() {
        let (fixed, mut lending) = (run(&[1.0, 1.0], 0), run(&[1.0, 1.0], 0));
        let same = table(&lending, &fixed);
        assert!(same.ends_with(" yes"));
        let in_time = same.lines().find(|row| row.starts_with("first tokens within the promise")).unwrap();
        assert_eq!(in_time.matches(" 96.8 %").count(), 2, "{same}");
        lending.texts[1] = "c".into();
        assert!(!has_identical_outputs(&lending, &fixed) && table(&lending, &fixed).ends_with(" NO"));
        assert!(output_sentence(&lending, &fixed).starts_with("1 of 2 answers differed"));
    }

    const SETTING: DemoConfig = DemoConfig {
        threads: 1,
        link_bytes_per_s: 1,
        chunk_bytes: 1,
        memory_bytes: 1,
        host_bytes: 1,
        total_bytes: 1,
        requests: 1,
        lengths: super::super::config::RequestLengths::QUICK,
        context: 1,
    };
}
