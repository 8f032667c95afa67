//! Experiments over virtual time on small tables: that they tell what they should, alike each time.

use std::cell::RefCell;

use sluice_sim::experiments::{self, Lab, Report, Verdict};
use sluice_sim::workload::table::Table;

/// Arrivals in bursts, lengths of some hundred tokens.
fn read(_: &str) -> Result<Table, String> {
    let row = |at: u32| format!("{}.{},{},{}\n", at / 8, at % 8, 150 + at % 50 * 8, 20 + at % 7 * 30);
    let rows: String = (0..600).map(row).collect();
    let text = format!("arrival_s,context_tokens,generated_tokens\n{rows}");
    Table::parse("made.csv", &text, false).map_err(|error| error.to_string())
}

fn run(name: &str, requests: usize) -> (Report, Vec<String>) {
    let told = RefCell::new(Vec::new());
    let progress = |name: &str, done: usize, of: usize| told.borrow_mut().push(format!("{done}/{of} {name}"));
    let lab = Lab { read: &read, progress: &progress, requests, seed: 1, seeds: 2 };
    let report = experiments::named(name).unwrap().run(&lab).unwrap();
    (report, told.into_inner())
}

#[test]
fn oneiros_is_compared_with_what_the_paper_compares_and_link_classes_stand_apart() {
    let (report, told) = run("oneiros-c1", 24);
    let policies = ["Recompute", "Pie", "Oneiros"];
    let runs = &report.details[1..];
    assert_eq!(runs.len(), 2 * (3 + 1) * policies.len(), "three loads on the paper's link, one on another");
    for (at, run) in runs.iter().enumerate() {
        assert_eq!(run[3], policies[at % policies.len()]);
    }
    assert_eq!(told.len(), runs.len());
    assert!(told.last().unwrap().starts_with("24/24"));
    let links: Vec<_> = report.rows.iter().map(|row| row.link).collect();
    assert!(links.is_sorted() && links[0] == "C2C" && *links.last().unwrap() == "PCIe 5", "{links:?}");
    assert!(report.rows.iter().filter(|row| row.link == "PCIe 5").all(|row| row.verdict == Verdict::Untold));
    assert_eq!(report.figures.len(), 3, "throughput, first token, tokens");
    let reasoned = report.rows.iter().filter(|row| row.verdict == Verdict::Reasoned);
    assert!(reasoned.into_iter().all(|row| row.reason.is_some()));
}

#[test]
fn the_ladder_has_four_rungs_at_two_scales_and_repeats_itself() {
    let (report, _) = run("orbitflow-ladder", 60);
    let levels = |scale: &str| {
        let is_level = |what: &str| what.starts_with(&format!("scale {scale}:")) && !what.ends_with("adds");
        report.rows.iter().filter(|row| is_level(&row.what)).count()
    };
    assert_eq!((levels("1"), levels("2.5")), (4, 4));
    assert_eq!(report.figures[0].lines.len(), 3, "both scales and the paper");
    assert_eq!(report, run("orbitflow-ladder", 60).0);
}

#[test]
fn a_file_that_is_missing_is_named() {
    let missing = |file: &str| Err(format!("no {file}"));
    let lab = Lab { read: &missing, progress: &|_, _, _| {}, requests: 10, seed: 1, seeds: 2 };
    let refused = |name| experiments::named(name).unwrap().run(&lab).unwrap_err();
    assert_eq!(refused("oneiros-c2"), "no azure_llm_2023_code.csv");
    assert_eq!(refused("orbitflow-ladder"), "no sharegpt_lengths.csv");
}

#[test]
fn unified_is_compared_with_every_policy_in_every_scenario() {
    let (report, told) = run("unified", 3);
    assert_eq!(told.len(), 6 * 7 * 2, "scenarios, policies, seeds");
    assert_eq!(report.details.len(), 1 + 6 * 7);
    let count = |what: &str| report.rows.iter().filter(|row| row.what.contains(what)).count();
    assert_eq!((count("best single policy"), count("dominated"), count("gain on a mix")), (6, 6, 4));
    assert_eq!(count("layers of the active model"), 2, "where a copy takes long");
    let decided = |verdict| matches!(verdict, Verdict::Holds | Verdict::Fails);
    assert!(report.rows.iter().all(|row| decided(row.verdict)));
}
