//! Two, three and eight tenants on one GPU under random load, random kills and slow links: everything follows from a seed,
//! which is printed. `cargo xtask soak` runs it for minutes.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::support::soak::finding::Finding;
use crate::support::soak::plan::Plan;
use crate::support::soak::{Conditions, Report, run, say};

/// A loan may have to wait for the end of its time to live.
const HOME: u32 = 60;

/// A number of the environment.
fn given(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")))
}

fn sizes() -> Vec<usize> {
    let text = std::env::var("SLUICE_SOAK_TENANTS").unwrap_or_default();
    let text = if text.is_empty() { "2,3,8" } else { &text };
    let sizes = text.split(',').map(|size| size.trim().parse());
    sizes.collect::<Result<_, _>>().unwrap_or_else(|e| panic!("SLUICE_SOAK_TENANTS={text}: {e}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_under_random_load_kills_and_slow_links_answer_as_if_alone() {
    let seed = given("SLUICE_SOAK_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let length = Duration::from_secs(given("SLUICE_SOAK_SECONDS").unwrap_or(12));
    say(format_args!("SLUICE_SOAK_SEED={seed} SLUICE_SOAK_SECONDS={}", length.as_secs()));
    for tenants in sizes() {
        let plan = Plan::new(seed, tenants, length);
        say(format_args!("soak of {tenants} tenants: {:?}, priorities {:?}", plan.gpu, plan.priorities));
        let begun = std::time::Instant::now();
        let report = run(&plan, Conditions { fault: None, home_seconds: HOME }).await;
        tell(tenants, begun.elapsed(), plan.gpu.capacity_bytes(), &report);
        assert_eq!(report.findings, [], "seed {seed}, {tenants} tenants");
    }
}

fn tell(tenants: usize, took: Duration, capacity_bytes: u64, report: &Report) {
    let Report { findings, requests: (requests, cut), done, seen, most_lent } = report;
    say(format_args!(
        "soak of {tenants} tenants: {requests} requests, {cut} times cut off; {done:?}; most lent {most_lent}; \
         {} of {capacity_bytes} bytes at most in {} looks ({} blurred); {took:.1?}",
        seen.most_bytes, seen.looks, seen.blurred
    ));
    findings.iter().for_each(|finding| say(format_args!("{finding}")));
}

#[test]
fn a_seed_gives_the_same_plan_again_and_another_seed_another() {
    let plan = |seed| Plan::new(seed, 3, Duration::from_secs(60));
    assert_eq!(plan(7), plan(7));
    assert_ne!(plan(7).visits, plan(8).visits);
    assert_ne!(plan(7).troubles, plan(8).troubles);
    let shorter = Plan::new(7, 3, Duration::from_secs(30));
    assert_eq!((shorter.gpu, shorter.questions), (plan(7).gpu, plan(7).questions), "the length only adds");
}

/// The load of the negative controls: without a fault it shows none.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_soak_is_clean_and_memory_changes_hands_in_it() {
    let report = run(&Plan::quiet(1), Conditions { fault: None, home_seconds: HOME }).await;
    assert_eq!(report.findings, []);
    assert!(report.most_lent > 0 && report.seen.looks > 100, "{report:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_earmark_is_noticed() {
    let report = run(&Plan::quiet(1), Conditions { fault: Some("lost-earmark"), home_seconds: 10 }).await;
    // Bytes that nobody counts are missed at the end, or somebody who needs them stands still before.
    let missed = |finding: &Finding| matches!(finding, Finding::Books(_) | Finding::Stuck(_));
    assert!(report.findings.iter().any(missed), "{:?}", report.findings);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_before_the_second_unmap_is_noticed() {
    let report = run(&Plan::quiet(1), Conditions { fault: Some("early-earmark"), home_seconds: HOME }).await;
    let above = |finding: &Finding| matches!(finding, Finding::AboveCapacity(_));
    assert!(report.findings.iter().any(above), "{:?}", report.findings);
}
