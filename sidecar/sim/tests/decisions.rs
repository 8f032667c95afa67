//! Decisions stay the same: digests of all commands and notices of recorded runs must equal the committed ones.
//!
//! The digests do not depend on names or on the layout of the state, so a refactoring does not change them. To change a
//! decision, `SLUICE_WRITE_DECISIONS=1 cargo test -p sluice-sim --test main decisions -- --include-ignored` writes
//! them again, and the commit states which decision changed and why it is better.

use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::journal::replay;
use sluice_sim::soak;

use crate::gpu::record_peers;
use crate::journal::{record_directed, record_load};

const COMMITTED: &str = include_str!("decisions.txt");
/// Digests of many seeds, each the sum of those of [`SEEDS_OF_A_ROW`].
const COMMITTED_OF_MANY: &str = include_str!("many_decisions.txt");
const FIRST_OF_MANY: u64 = 5_000;
const SEEDS_OF_A_ROW: u64 = 25;
const ROWS: u64 = 20;
/// Seeds of the soak. In the last four, requests join by plans.
const SEEDS: [u64; 24] = [
    1376, 1377, 1378, 1379, 1380, 1381, 1382, 1383, 1384, 1385, 1386, 1387, 1388, 1389, 1390, 1391, 1392,
    1393, 1394, 1395, 27, 49, 79, 3580,
];

fn outputs(journal: &str) -> u64 {
    replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{error}")).outputs
}

fn journal_digests() -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    for policy in PolicyName::ALL {
        for (seed, kills) in [(3, false), (5, true)] {
            let how = if kills { "killed engines" } else { "undisturbed" };
            rows.push((
                format!("{policy:?}, seed {seed}, {how}"),
                outputs(&record_load(policy, seed, kills, 48)),
            ));
        }
    }
    rows.push(("directives".into(), outputs(&record_directed(7, 16))));
    for (tenant, journal) in record_peers(24).iter().enumerate() {
        rows.push((format!("two tenants in turn, tenant {tenant}"), outputs(journal)));
    }
    rows
}

fn soak_decisions(seed: u64) -> u64 {
    soak::run_recorded(seed, None).unwrap_or_else(|broken| panic!("{broken}")).decisions
}

/// Compares rows of a digest and what was run with those of `tests/FILE`, or writes that file.
fn compare(rows: &[(String, u64)], file: &str, committed: &str) {
    let text: String = rows.iter().map(|(what, digest)| format!("{digest:016x}  {what}\n")).collect();
    if std::env::var_os("SLUICE_WRITE_DECISIONS").is_some() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
        return std::fs::write(format!("{folder}/{file}"), text).unwrap();
    }
    let changed: Vec<_> =
        text.lines().zip(committed.lines()).filter(|(now, then)| now != then).map(|(now, _)| now).collect();
    assert!(changed.is_empty(), "other decisions than those committed:\n{}", changed.join("\n"));
    assert_eq!(text.lines().count(), committed.lines().count(), "a row for each run");
}

#[test]
fn decisions_match_committed_digests() {
    let seeds = SEEDS.map(|seed| (format!("soak, seed {seed}"), soak_decisions(seed)));
    let rows: Vec<_> = journal_digests().into_iter().chain(seeds).collect();
    compare(&rows, "decisions.txt", COMMITTED);
}

#[test]
#[ignore = "takes minutes: `cargo xtask nightly --only decisions` runs it"]
fn decisions_of_many_seeds_match_committed_digests() {
    let sum = |first: u64| (first..first + SEEDS_OF_A_ROW).map(soak_decisions).fold(0, u64::wrapping_add);
    let row = |first: u64| (format!("soak, {SEEDS_OF_A_ROW} seeds from {first}"), sum(first));
    let rows: Vec<_> = (0..ROWS).map(|number| row(FIRST_OF_MANY + number * SEEDS_OF_A_ROW)).collect();
    compare(&rows, "many_decisions.txt", COMMITTED_OF_MANY);
}
