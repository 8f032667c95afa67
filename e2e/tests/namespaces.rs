//! Pods have private process ids. Each pair of sidecar and engine here is alone in a PID namespace, where the
//! sidecar is process 1, as all of its peers are. A peer that identifies instances by process id would confuse
//! them.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use sluice_wire::State;

use crate::support::three_tenants::{
    self, Answers, RETURN_AFTER_CRASHES, ThreeTenants, is_loaded, same, tenant_index,
};
use crate::support::{Answer, TestEnv, eventually, model, processes};

/// Runs a program as the first process of a namespace that ends with it.
const UNSHARE: [&str; 6] = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child=KILL"];

#[tokio::test(flavor = "multi_thread")]
async fn pairs_that_are_killed_with_their_namespaces_lose_no_byte_and_change_no_token() {
    let world = TestEnv::new();
    let Some(binaries) = binaries(&world) else { return };
    let mut trio = ThreeTenants::start_of(&binaries, &world, "Oneiros").await;
    assert_eq!(trio.tenants.each_ref().map(|tenant| tenant.record.pid), [1; 3]);
    let baseline: Vec<_> = trio.baseline().await.into_iter().map(|(answers, _)| answers).collect();
    let mut lives = [1; 3];
    kill_one_matching(
        "lends",
        |state| tenant_index(state).lent_bytes > 0,
        &mut trio,
        &world,
        &mut lives,
        &baseline,
    )
    .await;
    kill_one_matching(
        "borrows",
        |state| tenant_index(state).borrowed_bytes > 0,
        &mut trio,
        &world,
        &mut lives,
        &baseline,
    )
    .await;
    trio.up.signal(Signal::TERM);
    // `unshare` does not forward the signal.
    pairs(&world, "").into_iter().for_each(|pair| processes::signal(pair.sidecar, Signal::TERM));
    trio.up.ended_cleanly().await;
}

/// Kills the whole namespace of the first matching tenant under load; its next instance serves as before.
async fn kill_one_matching(
    what: &str,
    wanted: impl Fn(&State) -> bool,
    trio: &mut ThreeTenants<'_>,
    world: &TestEnv,
    lives: &mut [usize; 3],
    baseline: &[Vec<Answer>],
) {
    // Known before the search: the load of the victim may end soon after it.
    let all = trio.tenants.each_ref().map(|tenant| pairs(world, &tenant.record.name).pop().expect("it runs"));
    let (loads, victim, state) =
        trio.find_loaded_tenant(what, |state| is_loaded(state) && wanted(state)).await;
    let (name, pair) = (trio.tenants[victim].record.name.clone(), &all[victim]);
    assert!(!pair.engine.is_empty(), "{pair:?}");
    processes::signal(pair.sidecar, Signal::KILL);
    let (lent, borrowed) = (tenant_index(&state).lent_bytes, tenant_index(&state).borrowed_bytes);
    eprintln!("killed {name} with its engine {:?}: {lent} bytes lent, {borrowed} borrowed", state.engine.pid);
    let gone = async || pair.all().all(|pid| !processes::alive(pid)).then_some(());
    eventually("the whole namespace ends with its first process", gone).await;
    for (index, load) in loads.into_iter().enumerate() {
        check(index, three_tenants::ended(load).await, &baseline[index], index == victim);
    }
    lives[victim] += 1;
    trio.tenants[victim] = trio.up.ready_again(&name, lives[victim]).await;
    assert_eq!(trio.tenants[victim].record.pid, 1);
    for (index, answers) in trio.watched(&[0, 1, 2]).await.0.into_iter().enumerate() {
        same(index, answers, &baseline[index]);
    }
    trio.are_all_loans_returned(RETURN_AFTER_CRASHES).await;
}

/// Checks that all answers are equal to those without peers. Only answers of the victim may be missing, and some
/// must be.
fn check(index: usize, answers: Answers, baseline: &[Answer], victim: bool) {
    assert!(!victim || answers.iter().any(Result::is_err), "it was killed in the middle of its load");
    let kept = |answer: &Result<_, _>| !victim || answer.is_ok();
    let expected: Vec<_> =
        baseline.iter().zip(&answers).filter(|(_, a)| kept(a)).map(|(e, _)| e.clone()).collect();
    same(index, answers.into_iter().filter(kept).collect(), &expected);
}

/// A sidecar and the other processes of its namespace, by their outer process ids.
#[derive(Debug)]
struct Pair {
    sidecar: u32,
    engine: Vec<u32>,
}

impl Pair {
    fn all(&self) -> impl Iterator<Item = u32> {
        self.engine.iter().copied().chain([self.sidecar])
    }
}

/// Returns the pairs of the tenants whose name ends with `name`.
fn pairs(world: &TestEnv, name: &str) -> Vec<Pair> {
    let all = world.processes();
    let is_sidecar = |pid: &u32| {
        let config = format!("{name}/config.json");
        processes::name(*pid) == "sluice-sidecar" && processes::command_line(*pid).contains(&config)
    };
    let pair = |sidecar: u32| {
        let within = |pid: &u32| *pid != sidecar && above(*pid).any(|above| above == sidecar);
        Pair { sidecar, engine: all.iter().copied().filter(within).collect() }
    };
    all.iter().copied().filter(is_sidecar).map(pair).collect()
}

/// Returns the parent of the process, its parent, and so on.
fn above(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(processes::parent_of(pid), |pid| processes::parent_of(*pid).filter(|pid| *pid > 0))
}

/// Creates a folder of binaries whose sidecar starts a namespace. Prints the reason and returns `None` if the
/// kernel does not permit that.
fn binaries(world: &TestEnv) -> Option<PathBuf> {
    let [unshare, options @ ..] = UNSHARE;
    let mut trial = Command::new(unshare);
    let trial = trial.args(options).arg("true").stderr(Stdio::null()).status();
    if !trial.is_ok_and(|status| status.success()) {
        // Not `eprintln!`: the test harness captures it.
        let mut stderr = std::io::stderr();
        writeln!(
            stderr,
            "SKIPPED: this machine lets no process make user and process id namespaces (unshare)"
        )
        .unwrap();
        return None;
    }
    let folder = world.path("bin");
    std::fs::create_dir(&folder).unwrap();
    symlink(model::binary("sluice-engine"), folder.join("sluice-engine")).unwrap();
    let sidecar = model::binary("sluice-sidecar");
    let script = format!("#!/bin/sh\nexec {} '{}' \"$@\"\n", UNSHARE.join(" "), sidecar.display());
    let path = folder.join("sluice-sidecar");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}
