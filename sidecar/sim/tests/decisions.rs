//! Decisions stay the same: digests of all commands and notices of recorded runs must equal the committed ones.
//!
//! The digests do not depend on names or on the layout of the state, so a refactoring does not change them. To change a
//! decision, `SLUICE_WRITE_DECISIONS=1 cargo test -p sluice-sim --test main decisions` writes them again, and the
//! commit states which decision changed and why it is better.

use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::journal::replay;
use sluice_sim::soak;

use crate::gpu::record_peers;
use crate::journal::{record_directed, record_load};

const COMMITTED: &str = include_str!("decisions.txt");
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

fn soak_digests() -> Vec<(String, u64)> {
    let decisions =
        |seed| soak::run_recorded(seed, None).unwrap_or_else(|broken| panic!("{broken}")).decisions;
    SEEDS.map(|seed| (format!("soak, seed {seed}"), decisions(seed))).into()
}

#[test]
fn decisions_match_committed_digests() {
    let rows: Vec<_> = journal_digests().into_iter().chain(soak_digests()).collect();
    let text: String = rows.iter().map(|(what, digest)| format!("{digest:016x}  {what}\n")).collect();
    if std::env::var_os("SLUICE_WRITE_DECISIONS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/decisions.txt");
        return std::fs::write(path, text).unwrap();
    }
    let changed: Vec<_> =
        text.lines().zip(COMMITTED.lines()).filter(|(now, then)| now != then).map(|(now, _)| now).collect();
    assert!(changed.is_empty(), "other decisions than those committed:\n{}", changed.join("\n"));
    assert_eq!(text.lines().count(), COMMITTED.lines().count(), "a row for each run");
}
