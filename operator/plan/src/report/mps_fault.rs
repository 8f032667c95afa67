//! Detects whether the engines of one GPU were lost together, as under MPS after a fatal fault of one of them.

use sluice_types::pool::SharingMode;
use sluice_types::tenant::SlotState;
use sluice_wire::state::HANG_REPORTED_MS;

use crate::observed::{ObservedPool, SidecarReport};

/// Engines lost within this time of each other, milliseconds, were lost together: a fault reaches all at once, and a
/// sidecar sees its engine's socket close.
const SIMULTANEOUS_MS: i64 = 5_000;
/// How long conditions report a fault or a hang, milliseconds.
pub const REPORTED_MS: i64 = HANG_REPORTED_MS.cast_signed();

/// Returns why one fault probably ended all engines of the GPU `gpu`; `None` = no recent fault at `now`, seconds
/// since 1970.
///
/// MPS reports nothing to the cluster. The sign of a fault is that on a GPU of mode `Spatial` all sidecars, at least
/// two, lost their engines at the same time.
pub fn detect(gpu: &str, mode: SharingMode, seen: &ObservedPool, now: i64) -> Option<String> {
    if mode != SharingMode::Spatial {
        return None;
    }
    // A slot that is loading has no engine to lose.
    let of_gpu =
        seen.reports.iter().filter(|((_, on), report)| on == gpu && report.state != SlotState::Loading);
    let reports: Vec<&SidecarReport> = of_gpu.map(|(_, report)| report).collect();
    let lost: Vec<i64> = reports.iter().map(|report| report.engine_lost_ms).collect::<Option<_>>()?;
    let (first, last) = (*lost.iter().min()?, *lost.iter().max()?);
    let fault = lost.len() > 1 && last - first <= SIMULTANEOUS_MS && now * 1_000 - last < REPORTED_MS;
    fault.then(|| {
        let engines = lost.len();
        format!(
            "all {engines} engines on {gpu} were lost within {} ms: under MPS a fatal fault of one client \
             ends all clients; the engines restart",
            last - first
        )
    })
}

#[cfg(test)]
mod tests {
    use sluice_wire::state::{Phase, State};

    use super::*;
    use crate::sidecar_report::report;

    const NOW: i64 = 10_000;

    /// Whether a fault is reported for GPU `a`. Each of `lost` is a GPU and how many milliseconds ago a slot there
    /// lost its engine.
    fn is_reported(mode: SharingMode, lost: &[(&str, Option<i64>)]) -> bool {
        let of_slot = |(index, (gpu, ago)): (usize, &(&str, Option<i64>))| {
            let engine_lost_ms = ago.map(|ago| NOW * 1_000 - ago);
            let state = State { phase: Phase::Idle, ..State::default() };
            let report = SidecarReport { engine_lost_ms, ..report(&state) };
            ((index.to_string(), (*gpu).to_owned()), report)
        };
        let reports = lost.iter().enumerate().map(of_slot).collect();
        detect("a", mode, &ObservedPool { reports, ..ObservedPool::default() }, NOW).is_some()
    }

    #[test]
    fn engines_lost_together_under_mps_share_one_fault() {
        let (early, late, later) = (("a", Some(9_000)), ("a", Some(4_000)), ("a", Some(3_999)));
        assert!(is_reported(SharingMode::Spatial, &[early, late, ("b", None)]));
        assert!(!is_reported(SharingMode::Temporal, &[early, late]), "each has a context of its own");
        assert!(!is_reported(SharingMode::Spatial, &[early, later]), "one after the other");
        assert!(!is_reported(SharingMode::Spatial, &[early, late, ("a", None)]), "one goes on");
        assert!(!is_reported(SharingMode::Spatial, &[early, ("b", Some(9_000))]), "its only one");
        assert!(!is_reported(SharingMode::Spatial, &[]));
    }

    #[test]
    fn fault_is_reported_for_limited_time() {
        let ago = |ms| is_reported(SharingMode::Spatial, &[("a", Some(ms)), ("a", Some(ms))]);
        assert!(ago(REPORTED_MS - 1) && !ago(REPORTED_MS));
    }
}
