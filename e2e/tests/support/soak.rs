//! Tenants of one GPU under a load, and under troubles, that follow from a seed; and everything that must hold meanwhile
//! and afterwards.

pub mod dice;
pub mod finding;
pub mod load;
pub mod member;
pub mod plan;
pub mod trouble;
pub mod verdict;
pub mod watchdog;
pub mod witness;

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Answer, Up, World, Yaml, model};
use finding::{Finding, Findings};
use member::Member;
use plan::Plan;
use trouble::Done;
use witness::{Seen, Witness};

/// Between two looks at something that is waited for.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Open requests of one tenant; more wait with their clients.
const MOST_OPEN: usize = 24;

/// Memory of a tenant that has a GPU of its own: never short.
const AMPLE: &str = "256Mi";

/// The tenants on their GPU.
#[derive(Debug)]
pub struct Stage {
    /// Where they run.
    pub run: Arc<World>,
    /// Process id of their parent.
    pub up: u32,
    /// They.
    pub members: Vec<Arc<Member>>,
    /// Bytes of the GPU.
    pub capacity_bytes: u64,
    /// How long loans may take to come home, seconds.
    pub home_seconds: u32,
    /// What each sidecar has in memory when it has just started.
    pub memfds: Vec<String>,
    /// What is wrong.
    pub findings: Findings,
}

/// What differs from run to run of one plan.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// A fault of every sidecar.
    pub fault: Option<&'a str>,
    /// How long loans may take to come home, seconds.
    pub home_seconds: u32,
}

/// What a run has shown.
#[derive(Debug)]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Requests, and how often one was cut off with its sidecar and asked again.
    pub requests: (usize, u32),
    /// Troubles.
    pub done: Done,
    /// Memory, as the kernel counts it.
    pub seen: Seen,
    /// Most bytes that were lent at one time.
    pub most_lent: u64,
}

/// Says something even if the test passes.
pub fn say(text: std::fmt::Arguments<'_>) {
    // Not by `eprintln!`: the test harness would swallow it.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

/// Runs a plan.
pub async fn run(plan: &Plan, conditions: Conditions<'_>) -> Report {
    let models = World::new();
    let folders: Vec<_> = (0..plan.questions.len())
        .map(|tenant| {
            models.model(
                &name(tenant),
                &format!("{} --seed {}", plan.gpu.model, plan.seed % 1000 + tenant as u64),
            )
        })
        .collect();
    let expected = Arc::new(alone(&models, plan, &folders).await);
    let world = Arc::new(World::new());
    let mut up = start(&world, plan, &folders, conditions.fault);
    let mut pids = Vec::new();
    for tenant in 0..folders.len() {
        pids.push(up.ready(&name(tenant)).await.record.pid);
    }
    let stage = Arc::new(Stage {
        up: up.pid(),
        members: (0..folders.len()).map(|tenant| Arc::new(Member::new(&world, &name(tenant)))).collect(),
        capacity_bytes: plan.gpu.capacity_bytes(),
        home_seconds: conditions.home_seconds,
        memfds: verdict::memfds(pids[0]),
        findings: Findings::default(),
        run: world.clone(),
    });
    perform(&stage, plan, expected, up).await
}

async fn perform(stage: &Arc<Stage>, plan: &Plan, expected: Arc<Vec<Vec<Answer>>>, up: Up<'_>) -> Report {
    let findings = &stage.findings;
    let witness = Witness::start(stage.run.path("run"), stage.capacity_bytes, findings.clone());
    let begun = Instant::now();
    let load = async {
        tokio::join!(ask_all(stage, plan, expected, begun), trouble::inflict(stage, &plan.troubles, begun))
    };
    let (mut cut, mut done, mut most_lent, mut stuck) = (0, Done::default(), 0, false);
    tokio::select! {
        ended = load => (cut, done) = ended,
        finding = watchdog::watch(stage) => { findings.add(finding); stuck = true; }
        () = watch_loans(stage, &mut most_lent) => unreachable!("it watches for ever"),
    }
    if !stuck {
        verdict::at_rest(stage).await;
    }
    verdict::ends(stage);
    let well = findings.all().is_empty();
    if well {
        up.end_cleanly().await;
    } else {
        // Journals are whole only when their writers have ended.
        up.signal(Signal::TERM);
        watchdog::within(10, async || stage.run.processes().is_empty()).await;
    }
    let seen = witness.end();
    if well {
        let left = async || witness::holders(&seen.inodes).is_empty();
        if !watchdog::within(10, left).await {
            findings.add(Finding::Left(format!("memory of the dead: {:?}", witness::holders(&seen.inodes))));
        }
        verdict::journals(stage);
    }
    if !findings.all().is_empty() {
        keep(&stage.run, plan);
    }
    Report { findings: findings.all(), requests: (plan.visits.len(), cut), done, seen, most_lent }
}

/// Copies journals and logs to the folder that `SLUICE_SOAK_KEEP` names.
fn keep(world: &World, plan: &Plan) {
    let Some(folder) = std::env::var_os("SLUICE_SOAK_KEEP").filter(|folder| !folder.is_empty()) else {
        return;
    };
    let folder = PathBuf::from(folder).join(format!("{}-{}", plan.seed, plan.questions.len()));
    std::fs::create_dir_all(&folder).unwrap();
    let files = ["stdout", "stderr", "up.yaml"].map(|name| world.path(name));
    for file in files.into_iter().chain(watchdog::journals(&world.path("journals"))) {
        std::fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
}

/// Name of a tenant.
fn name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// What every tenant answers to each of its questions, one after the other, on a GPU of its own.
async fn alone(models: &World, plan: &Plan, folders: &[PathBuf]) -> Vec<Vec<Answer>> {
    let mut yaml = Yaml::pool(AMPLE);
    (yaml.policy, yaml.gpus) = ("Recompute", folders.len() as u32);
    for (tenant, folder) in folders.iter().enumerate() {
        yaml = yaml.tenant(&name(tenant), folder, ", maxModelLen: 256", "pacing: {mode: Immediate}");
    }
    let mut up = models.up(&yaml, &[]);
    let mut all = Vec::new();
    for (index, questions) in plan.questions.iter().enumerate() {
        let (tenant, name) = (up.ready(&name(index)).await, name(index));
        let bodies: Vec<_> = questions.iter().map(|question| question.body(&name)).collect();
        all.push(tokio::spawn(async move {
            let mut answers = Vec::new();
            for body in bodies {
                answers.push(tenant.complete(&body).await.unwrap());
            }
            answers
        }));
    }
    let mut expected = Vec::new();
    for answers in all {
        expected.push(answers.await.unwrap());
    }
    up.end_cleanly().await;
    expected
}

fn start<'a>(world: &'a World, plan: &Plan, folders: &[PathBuf], fault: Option<&str>) -> Up<'a> {
    let mut yaml = Yaml::pool(format!("{}Mi", plan.gpu.memory_mib).leak());
    (yaml.chunk, yaml.link, yaml.sharing, yaml.remap) =
        (Some("64Ki"), Some(plan.gpu.link), Some(plan.gpu.sharing), Some(plan.gpu.remap));
    for (tenant, folder) in folders.iter().enumerate() {
        let spec = format!(
            "priority: {}, pacing: {{mode: Immediate}}, drainSeconds: 2, limits: {{holdSeconds: 120}}",
            plan.priorities[tenant]
        );
        yaml = yaml.tenant(&name(tenant), folder, ", maxModelLen: 256", &spec);
    }
    let journals = world.path("journals");
    let arguments = ["--poison", "--journal", journals.to_str().unwrap()];
    match fault {
        None => world.up(&yaml, &arguments),
        Some(fault) => world.up_of(&faulty(world, fault), &yaml.text(), &arguments),
    }
}

/// A folder of binaries whose sidecar has a fault.
fn faulty(world: &World, fault: &str) -> PathBuf {
    let folder = world.path("bin");
    std::fs::create_dir(&folder).unwrap();
    symlink(model::binary("sluice-engine"), folder.join("sluice-engine")).unwrap();
    let sidecar = model::binary("examples/faulty-sidecar");
    let script = format!("#!/bin/sh\nexec '{}' --fault {fault} \"$@\"\n", sidecar.display());
    let path = folder.join("sluice-sidecar");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Every visit in its time; returns how often one was cut off.
async fn ask_all(stage: &Stage, plan: &Plan, expected: Arc<Vec<Vec<Answer>>>, begun: Instant) -> u32 {
    let doors: Vec<_> = stage.members.iter().map(|_| Arc::new(Semaphore::new(MOST_OPEN))).collect();
    let mut visits = JoinSet::new();
    for visit in plan.visits.clone() {
        tokio::time::sleep_until(begun + visit.at).await;
        let member = stage.members[visit.tenant].clone();
        let body = plan.questions[visit.tenant][visit.question].body(&member.name);
        let (door, findings, expected) =
            (doors[visit.tenant].clone(), stage.findings.clone(), expected.clone());
        visits.spawn(async move {
            let _permit = door.acquire_owned().await.unwrap();
            let expected = &expected[visit.tenant][visit.question];
            load::visit(&member, &visit, &body, expected, &findings).await
        });
    }
    visits.join_all().await.into_iter().sum()
}

/// Looks at all states again and again: budgets must be what shares and loans make of them.
async fn watch_loans(stage: &Stage, most_lent: &mut u64) {
    let mut wrong = false;
    loop {
        let mut lent = 0;
        for member in &stage.members {
            let Some(state) = member.state().await else { continue };
            member.works(state.figures.steps_total);
            let place = super::trio::place(&state);
            lent += place.lent_bytes;
            // What each owner has is not asked: the device is ahead of the books while memory moves.
            if !place.balances() && !std::mem::replace(&mut wrong, true) {
                stage.findings.add(Finding::Books(watchdog::brief(&state)));
            }
        }
        *most_lent = lent.max(*most_lent);
        tokio::time::sleep(PAUSE).await;
    }
}
