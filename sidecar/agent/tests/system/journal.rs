//! Tests that the journal of a real run replays to the same digests for any movement of memory.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluice_agent::engine_loop::load;
use sluice_scheduler::journal::{JournalError, replay};
use sluice_wire::State;
use sluice_wire::config::SidecarConfig;

use crate::golden::{check, reference, requests, short, tiered};
use crate::models::generate;
use crate::random::{DEEP, first_come_case};
use crate::support::{Answer, Tenant, TestRequest, assert_same, event_count, slowed};

/// Most tenants to start, because one whose copies were timed on a busy machine may correctly decline.
const MAX_TENANTS: usize = 4;
/// Most loads per tenant.
const MAX_LOADS: u64 = 6;
/// Fewest loads, so that the replay includes cached blocks of the first one.
const MIN_LOADS: u64 = 2;
/// Steps of a load after which a request is cancelled.
const CANCEL_AFTER: u64 = 20;
/// Steps after which the engine is killed: by then KV is short and copies are running.
const KILL_AFTER: u64 = 100;

/// A mechanism that the recorded run must use, detected by the sidecar's counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mechanism {
    /// Requests are recomputed.
    Preempts,
    /// Layers of the tenant become KV.
    MovesLayers,
    /// Idle activations become KV.
    LendsActivations,
    /// KV is written back, and fetched for the steps that read it.
    MovesKv,
    /// The planner's thread returns results, which are applied, also without a plan for all requests.
    Plans,
    /// Prompts are computed with their KV in the host tier.
    OffloadsPrompts,
    /// Requests start or continue with part of their KV in the host tier.
    Joins,
}
use Mechanism::{Joins, LendsActivations, MovesKv, MovesLayers, OffloadsPrompts, Plans, Preempts};

impl Mechanism {
    fn has_occurred(self, tenant: &Tenant) -> bool {
        let (state, some) = (tenant.state(), |name: &str| tenant.metric(name) > 0.0);
        match self {
            Preempts => state.figures.preemptions_total > 0,
            MovesLayers => event_count(&state, "remap_own") > 0,
            LendsActivations => event_count(&state, "inflate") > 0,
            MovesKv => some("sluice_kv_writeback_bytes_total") && some("sluice_kv_fetch_bytes_total"),
            Plans => event_count(&state, "plan") + event_count(&state, "no_plan") > 0,
            OffloadsPrompts => some("sluice_offloaded_prompts_total"),
            Joins => event_count(&state, "join") > 0,
        }
    }
}

/// A policy, its limit on remapped layers in percent, and the mechanisms that it must use.
type Case = (&'static str, u32, &'static [Mechanism]);

/// The cases; 60 is the default of a manifest.
const CASES: [Case; 8] = [
    ("Recompute", 60, &[Preempts]),
    ("Oneiros", 60, &[MovesLayers]),
    ("Ellm", 60, &[LendsActivations]),
    ("FlexGen", 60, &[MovesKv]),
    ("Pie", 60, &[MovesKv]),
    ("OrbitFlow", 60, &[MovesKv, Plans]),
    ("Unified", 60, &[LendsActivations, MovesLayers]),
    // If no layer may move, KV does.
    ("Unified", 0, &[LendsActivations, MovesKv, Plans]),
];

/// Serves `wanted` concurrently, while one more request is cancelled and the engine is killed.
fn serve(tenant: &Tenant, wanted: &[TestRequest]) -> Vec<Answer> {
    let begun = tenant.state().figures.steps_total;
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let leaves = tenant.submit(&wanted[0]);
    tenant.state_when("steps", |s| s.figures.steps_total > begun + CANCEL_AFTER);
    drop(leaves);
    let over = |s: &State| s.queue.running + s.queue.waiting == 0;
    let late = |s: &State| s.figures.steps_total > begun + KILL_AFTER || over(s);
    let state = tenant.state_when("more steps", |s| s.engine.pid.is_some() && late(s));
    let pid = Pid::from_raw(state.engine.pid.unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect()
}

/// Serves `wanted` repeatedly until the tenant has used all mechanisms. Returns the journal; `None` if it has not.
fn record(
    mut config: SidecarConfig,
    wanted: &[TestRequest],
    must: &[Mechanism],
    right: &dyn Fn(&[Answer]),
) -> Option<String> {
    let files = tempfile::tempdir().unwrap();
    let (path, policy) = (files.path().join("journal"), config.policy.clone());
    config.journal = Some(path.clone());
    let tenant = Tenant::start_with(config, slowed(Duration::from_micros(200)));
    let done = (1..=MAX_LOADS).find(|losses| {
        right(&serve(&tenant, wanted));
        tenant.state_when("an engine was lost in each load", |s| s.engine.restarts == *losses);
        tenant.assert_nothing_leaks(&policy);
        *losses >= MIN_LOADS && must.iter().all(|mechanism| mechanism.has_occurred(&tenant))
    });
    drop(tenant);
    done.map(|_| std::fs::read_to_string(path).unwrap())
}

/// Returns the journal of a tenant that has used all mechanisms.
fn recorded(
    config: &SidecarConfig,
    wanted: &[TestRequest],
    must: &[Mechanism],
    right: &dyn Fn(&[Answer]),
) -> String {
    let journal = (0..MAX_TENANTS).find_map(|_| record(config.clone(), wanted, must, right));
    journal.unwrap_or_else(|| panic!("{}: {MAX_TENANTS} tenants did not do {must:?}", config.policy))
}

/// Asserts that the journal replays and contains the expected events.
fn assert_replays(journal: &str, must: &[Mechanism], what: &str) {
    let report = replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let events = |name: &str| journal.lines().filter(|line| line.contains(name)).count();
    let steps = events(" done ");
    assert!(report.events > 200 && steps > 100, "{what}: {report:?}, {steps} steps");
    assert!(events(" cancel ") > 0 && events(" lost ") > 0, "{what}: no client left, or no engine died");
    assert_eq!(events(" plan ") > 0, must.contains(&Plans), "{what}: answers of the planner's thread");
}

#[test]
fn replay_matches_digests_under_every_policy() {
    let Some(folder) = reference() else { return };
    let (short, wanted) = (short(&folder, "Recompute"), requests(&folder));
    for (policy, percent, must) in CASES {
        let config = tiered(&short, policy, percent);
        let what = format!("{policy}, at most {percent} % of the layers");
        let journal = recorded(&config, &wanted, must, &|answers| check(answers, &folder, &what));
        assert_replays(&journal, must, &what);
    }
}

#[test]
fn replay_with_planned_admissions_matches_digests() {
    let model = generate(&DEEP);
    let (config, wanted, calm) = first_come_case(model.path());
    let (must, what) = ([MovesKv, Plans, OffloadsPrompts, Joins], "requests are admitted in their order");
    let journal = recorded(&config, &wanted, &must, &|answers| assert_same(answers, &calm, what));
    assert_replays(&journal, &must, what);
}

#[test]
fn missing_journal_event_diverges_at_next_event() {
    let Some(folder) = reference() else { return };
    let (short, wanted) = (short(&folder, "Oneiros"), requests(&folder));
    let right = |answers: &[Answer]| check(answers, &folder, "Oneiros");
    let journal = recorded(&short, &wanted, &[MovesLayers], &right);
    let missing = journal.lines().position(|line| line.contains(" submit ")).unwrap();
    let without: Vec<_> =
        journal.lines().enumerate().filter(|(at, _)| *at != missing).map(|(_, l)| l).collect();
    let replayed = replay(without.join("\n").as_bytes());
    let line = missing + 1;
    assert!(matches!(replayed, Err(JournalError::Diverged { line: at, .. }) if at == line), "{replayed:?}");
}

#[test]
fn unknown_tunables_are_refused_by_name() {
    let Some(folder) = reference() else { return };
    let files = tempfile::tempdir().unwrap();
    let params = |tunables: &[(&str, u64)]| -> Vec<String> {
        let path = files.path().join("journal");
        let mut config = short(&folder, "Oneiros");
        config.journal = Some(path.clone());
        config.tunables = tunables.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        drop(Tenant::start(config));
        let journal = std::fs::read_to_string(path).unwrap();
        let line = journal.lines().find(|line| line.starts_with("params ")).unwrap();
        line.split(' ').map(str::to_owned).collect()
    };
    let (usual, tuned) = (params(&[]), params(&[("revert_patience_steps", 17), ("plan_expansions", 31)]));
    let differing: Vec<_> = usual.iter().zip(&tuned).filter(|(usual, tuned)| usual != tuned).collect();
    assert_eq!(differing, [(&"64".to_owned(), &"17".to_owned()), (&"16".to_owned(), &"31".to_owned())]);

    let refused = |name: &str, value| {
        let mut config = short(&folder, "Oneiros");
        config.tunables.insert(name.to_owned(), value);
        load(config).map(drop).unwrap_err().to_string()
    };
    let error = refused("replan_mismatches", 0);
    assert_eq!(error, "tunables: replan_mismatches is 0, and must be 1 to 10000");
    assert!(refused("patience", 1).starts_with("tunables: `patience` is not a tunable ("));
}
