//! A journal of a real run replays to the same digests.

use std::time::Duration;

use sluice_agent::room::load;
use sluice_scheduler::journal::{JournalError, replay};

use crate::golden::{check, reference, requests, short};
use crate::support::{Tenant, slowed, times};

/// Serves the golden requests with short KV and returns the journal.
fn record(policy: &str) -> Option<String> {
    let folder = reference()?;
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("journal");
    let mut config = short(&folder, policy);
    config.journal = Some(path.clone());
    let tenant = Tenant::start_with(config, slowed(Duration::from_micros(200)));
    let tickets: Vec<_> = requests(&folder).iter().map(|wanted| tenant.submit(wanted)).collect();
    let leaves = tenant.submit(&requests(&folder)[0]);
    let state = tenant.state_when("steps", |s| s.figures.steps_total > 20);
    drop(leaves);
    let pid = rustix::process::Pid::from_raw(state.engine.pid.unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let answers: Vec<_> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    check(&answers, &folder, policy);
    let state = tenant.assert_nothing_leaks(policy);
    let moved = ["remap_own", "inflate"].map(|reason| times(&state, reason)).iter().sum::<u64>();
    assert!(moved + state.figures.preemptions_total > 0, "something is worth recording");
    assert_eq!(state.engine.restarts, 1);
    drop(tenant);
    Some(std::fs::read_to_string(path).unwrap())
}

#[test]
fn a_recorded_run_replays_to_the_same_digests_under_every_policy() {
    for policy in ["Recompute", "Oneiros", "Ellm"] {
        let Some(journal) = record(policy) else { return };
        let report = replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{policy}: {error}"));
        let steps = journal.lines().filter(|line| line.contains(" done ")).count();
        assert!(report.events > 200 && steps > 100, "{policy}: {report:?}, {steps} steps");
    }
}

#[test]
fn a_journal_that_lacks_an_event_diverges_at_the_next_one() {
    let Some(journal) = record("Oneiros") else { return };
    let missing = journal.lines().position(|line| line.contains(" submit ")).unwrap();
    let without: Vec<_> =
        journal.lines().enumerate().filter(|(at, _)| *at != missing).map(|(_, l)| l).collect();
    let replayed = replay(without.join("\n").as_bytes());
    let line = missing + 1;
    assert!(matches!(replayed, Err(JournalError::Diverged { line: at, .. }) if at == line), "{replayed:?}");
}

#[test]
fn numbers_of_the_policy_are_those_of_the_configuration_and_others_are_refused_by_name() {
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
    let said = refused("replan_mismatches", 0);
    assert_eq!(said, "tunables: replan_mismatches is 0, and must be 1 to 10000");
    assert!(refused("patience", 1).starts_with("tunables: `patience` is no tunable ("));
}
