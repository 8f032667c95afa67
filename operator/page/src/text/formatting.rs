//! Quantities as short text for people, and which moves they are shown.

pub use sluice_common::text::bytes;
use sluice_wire::State;
use sluice_wire::state::{Move, Percentiles, Phase};

/// A duration in milliseconds; from ten seconds on in seconds, with the unit.
pub fn milliseconds(ns: u64) -> String {
    match ns {
        0..10_000_000 => format!("{:.1}", ns as f64 / 1e6),
        10_000_000..10_000_000_000 => format!("{:.0}", ns as f64 / 1e6),
        _ => format!("{:.0}s", ns as f64 / 1e9),
    }
}

/// A duration with its unit: milliseconds, from ten seconds on seconds.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000_000_000 => format!("{} ms", milliseconds(ns)),
        _ => format!("{:.0} s", ns as f64 / 1e9),
    }
}

/// Median and 99th percentile in milliseconds; `-` when nothing was measured.
pub fn percentiles(p: &Percentiles) -> String {
    if p.samples == 0 {
        return "-".into();
    }
    format!("{}/{}", milliseconds(p.p50_ns), milliseconds(p.p99_ns))
}

/// A share as percent; `-` when there is none.
pub fn percent(permille: Option<u32>) -> String {
    permille.map_or("-".into(), |p| format!("{:.1} %", f64::from(p) / 10.0))
}

/// Length of a window that ends now: below two minutes in seconds, else in minutes.
pub fn window(ms: u64) -> String {
    match ms {
        0..120_000 => format!("{} s", ms / 1000),
        _ => format!("{} min", ms / 60_000),
    }
}

/// How long ago, with one unit.
pub fn age(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1}s", ms as f64 / 1e3),
        10_000..600_000 => format!("{}s", ms / 1000),
        600_000..36_000_000 => format!("{}m", ms / 60_000),
        _ => format!("{}h", ms / 3_600_000),
    }
}

/// Reasons of memory that passes between tenants. A sidecar writes the decision first, and its size once the memory has
/// moved. Sidecars that write state version 1 call the fourth one `cede`.
const LOAN_REASONS: [&str; 5] = ["borrow", "lend", "repay", "release_share", "cede"];

/// Returns the moves in which memory changed its owner, oldest first. The others are decisions, such as a plan for
/// each request's KV, and their number would hide these.
pub fn moved_memory(state: &State) -> impl DoubleEndedIterator<Item = &Move> {
    state.moves.iter().filter(|moved| moved.bytes > 0 || LOAN_REASONS.contains(&moved.reason.as_str()))
}

/// How many moves an entry stands for, where its sidecar says just that: `once` or `5 times`.
pub fn move_count(detail: &str) -> Option<u32> {
    match detail {
        "once" => Some(1),
        other => other.strip_suffix(" times")?.parse().ok(),
    }
}

/// What a move did, for people. A sidecar writes a new layout as `alpha 5, beta 1`: 5 layers gave their memory to KV.
pub fn move_text(moved: &Move) -> String {
    let layout = moved.detail.strip_prefix("alpha ").and_then(|rest| rest.split_once(", beta "));
    match layout.map(|(alpha, _)| alpha) {
        Some("0") => "all layers are resident".into(),
        Some("1") => "1 layer gave its memory to KV".into(),
        Some(alpha) => format!("{alpha} layers gave their memory to KV"),
        None => match move_count(&moved.detail) {
            Some(times) if times > 1 => format!("in {times} moves"),
            _ => moved.detail.clone(),
        },
    }
}

/// Returns the amount moved; empty if the sidecar did not report it.
pub fn moved_bytes(moved: &Move) -> String {
    if moved.bytes == 0 { String::new() } else { bytes(moved.bytes) }
}

/// What a tenant does, in at most nine characters.
pub const fn phase(state: &State) -> &'static str {
    match state.phase {
        Phase::Loading => "loading",
        Phase::Active => "active",
        Phase::Idle => "idle",
        Phase::Hibernated if state.sleep_ordered => "asleep",
        Phase::Hibernated => "hibernate",
        Phase::Waking => "waking",
        Phase::EngineLost => "no engine",
        Phase::Draining => "draining",
        Phase::Failed => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_measured_is_not_zero() {
        assert_eq!(percentiles(&Percentiles::default()), "-");
        let p = Percentiles { samples: 1, p50_ns: 1_200_000, p99_ns: 12_345_678_900 };
        assert_eq!(percentiles(&p), "1.2/12s");
        assert_eq!(percent(None), "-");
        assert_eq!(percent(Some(995)), "99.5 %");
    }

    #[test]
    fn a_duration_has_one_unit() {
        let shown: Vec<_> = [0, 1_200_000, 50_000_000, 9_999_000_000, 155_000_000_000].map(duration).into();
        assert_eq!(shown, ["0.0 ms", "1.2 ms", "50 ms", "9999 ms", "155 s"]);
    }
}
