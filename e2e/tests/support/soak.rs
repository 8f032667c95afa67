//! Tenants of one GPU under a load and faults that are derived from a seed, and the checks during and after the
//! run.

pub mod byte_audit;
pub mod directive_source;
pub mod faults;
pub mod finding;
pub mod load;
pub mod plan;
pub mod rng;
pub mod sleep;
pub mod stats;
pub mod tenant;
pub mod verdict;
pub mod watch;
pub mod watchdog;

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use sluice_client::run_at;
use sluice_wire::State;
use sluice_wire::state::SharingState;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Answer, TestEnv, Up, Yaml};
use byte_audit::{AuditStats, ByteAudit};
use finding::{Finding, Findings};
use plan::Plan;
use stats::{Counter, SoakStats};
use tenant::SoakTenant;

/// Poll interval.
pub const PAUSE: Duration = Duration::from_millis(20);
/// Open requests of one tenant; more wait with their clients.
const MOST_OPEN: usize = 24;

/// Memory of a tenant with its own GPU: no pressure.
const AMPLE: &str = "256Mi";

/// The tenants on their GPU.
#[derive(Debug)]
pub struct SoakRun {
    /// Environment of the run.
    pub run: Arc<TestEnv>,
    /// Process id of their parent.
    pub up: u32,
    /// The tenants.
    pub tenants: Vec<Arc<SoakTenant>>,
    /// Bytes of the GPU.
    pub capacity_bytes: u64,
    /// Whether memory changes hands.
    pub trades: bool,
    /// Limit for the return of loans, seconds.
    pub home_seconds: u32,
    /// Memory files of a newly started sidecar.
    pub memfds: Vec<String>,
    /// Loan time without renewal, milliseconds.
    pub loan_ms: u64,
    /// Number of processes that are stopped by plan.
    pub stopped: AtomicU32,
    /// Counted events.
    pub stats: Counter,
    /// Most bytes that were lent at one time.
    pub most_lent: AtomicU64,
    /// Problems found.
    pub findings: Findings,
}

/// Conditions that differ between runs of one plan.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    /// A fault of every sidecar.
    pub fault: Option<&'a str>,
    /// Limit for the return of loans, seconds.
    pub home_seconds: u32,
}

/// Results of a run.
#[derive(Debug)]
pub struct SoakReport {
    /// Problems found.
    pub findings: Vec<Finding>,
    /// Number of requests, and how often one was cut off with its sidecar and sent again.
    pub requests: (usize, u32),
    /// Counted events.
    pub stats: SoakStats,
    /// Memory as counted by the kernel.
    pub observed: AuditStats,
    /// Most bytes that were lent at one time.
    pub most_lent: u64,
}

/// Returns the part of a state about peers; without peers it is the default, with no loans.
pub fn place(state: &State) -> Cow<'_, SharingState> {
    state.peers.as_ref().map_or_else(Cow::default, Cow::Borrowed)
}

/// Prints a line even if the test passes.
pub fn log_event(text: std::fmt::Arguments<'_>) {
    // Not `eprintln!`: the test harness captures it.
    let mut stderr = std::io::stderr();
    writeln!(stderr, "{text}").unwrap();
}

/// Runs a plan.
pub async fn run(plan: &Plan, conditions: Conditions<'_>) -> SoakReport {
    let models = TestEnv::new();
    let folders: Vec<_> = (0..plan.questions.len())
        .map(|tenant| {
            models.model(
                &name(tenant),
                &format!("{} --seed {}", plan.gpu.model, plan.seed % 1000 + tenant as u64),
            )
        })
        .collect();
    let expected = Arc::new(baseline_answers(&models, plan, &folders).await);
    let world = Arc::new(TestEnv::new());
    let mut up = start(&world, plan, &folders, conditions.fault);
    let mut pids = Vec::new();
    for tenant in 0..folders.len() {
        pids.push(up.ready(&name(tenant)).await.record.pid);
    }
    let stage = Arc::new(SoakRun {
        up: up.pid(),
        tenants: (0..folders.len()).map(|tenant| Arc::new(SoakTenant::new(&world, &name(tenant)))).collect(),
        capacity_bytes: plan.gpu.capacity_bytes(),
        trades: plan.gpu.trades(),
        home_seconds: conditions.home_seconds,
        loan_ms: plan.gpu.loan_ms(),
        stopped: AtomicU32::new(0),
        stats: Counter::default(),
        most_lent: AtomicU64::new(0),
        memfds: verdict::memfds(pids[0]),
        findings: Findings::default(),
        run: world.clone(),
    });
    perform(&stage, plan, expected, up).await
}

async fn perform(
    stage: &Arc<SoakRun>,
    plan: &Plan,
    expected: Arc<Vec<Vec<Answer>>>,
    up: Up<'_>,
) -> SoakReport {
    let findings = &stage.findings;
    let witness = ByteAudit::start(stage.run.path("run"), stage.capacity_bytes, findings.clone());
    let begun = Instant::now();
    let mut cut = 0;
    tokio::select! {
        times = work(stage, plan, expected, begun) => cut = times,
        finding = watchdog::watch(stage) => findings.add(finding),
        () = watch::poll(stage) => unreachable!("it looks for ever"),
        () = directive_source::lead(stage, &plan.directives, begun) => unreachable!("it leads for ever"),
    }
    verdict::ends(stage);
    let well = findings.all().is_empty();
    if well {
        up.end_cleanly().await;
    } else {
        // Journals are complete only after their writers have exited.
        up.signal(Signal::TERM);
        watchdog::within(10, async || stage.run.processes().is_empty()).await;
    }
    let seen = witness.end();
    if well {
        let left = async || byte_audit::holders(&seen.inodes).is_empty();
        if !watchdog::within(10, left).await {
            findings
                .add(Finding::Leak(format!("memory of the dead: {:?}", byte_audit::holders(&seen.inodes))));
        }
        verdict::journals(stage);
    }
    if !findings.all().is_empty() {
        keep_files(&stage.run, plan);
    }
    SoakReport {
        findings: findings.all(),
        requests: (plan.visits.len(), cut),
        stats: stage.stats.tally(),
        observed: seen,
        most_lent: stage.most_lent.load(Ordering::Relaxed),
    }
}

/// Runs the plan and checks the result. Returns how often a request was cut off.
async fn work(stage: &Arc<SoakRun>, plan: &Plan, expected: Arc<Vec<Vec<Answer>>>, begun: Instant) -> u32 {
    let (cut, (), ()) = tokio::join!(
        ask_all(stage, plan, expected, begun),
        faults::inject(stage, &plan.faults, begun),
        sleep::put_to_sleep(stage, &plan.sleeps, begun),
    );
    verdict::are_all_idle(stage).await;
    cut
}

/// Copies journals and logs to the folder that `SLUICE_SOAK_KEEP` names.
fn keep_files(world: &TestEnv, plan: &Plan) {
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

/// Returns the answers of every tenant to each of its requests, one after another, on its own GPU.
async fn baseline_answers(models: &TestEnv, plan: &Plan, folders: &[PathBuf]) -> Vec<Vec<Answer>> {
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

fn start<'a>(world: &'a TestEnv, plan: &Plan, folders: &[PathBuf], fault: Option<&str>) -> Up<'a> {
    let (gpus, memory_mib) = plan.gpu.slices(folders.len());
    let mut yaml = Yaml::pool(format!("{memory_mib}Mi").leak());
    yaml.gpus = gpus;
    (yaml.chunk, yaml.link, yaml.sharing, yaml.remap) =
        (Some("64Ki"), Some(plan.gpu.link), Some(plan.gpu.sharing), Some(plan.gpu.remap));
    for (tenant, folder) in folders.iter().enumerate() {
        let spec = format!(
            "priority: {}, pacing: {{mode: Immediate}}, drainSeconds: 2, limits: {{holdSeconds: 120}}, engine: {{hangTimeoutSeconds: 600}}, {}",
            plan.priorities[tenant],
            plan.rests[tenant].yaml(),
        );
        yaml = yaml.tenant(&name(tenant), folder, ", maxModelLen: 256", &spec);
    }
    let journals = world.path("journals");
    let arguments = ["--poison", "--journal", journals.to_str().unwrap()];
    let fault = fault.map(|fault| format!("--fault {fault}"));
    let loan = plan.gpu.loan_ms.map(|ms| format!("--loan-ms {ms}"));
    let options: Vec<_> = fault.into_iter().chain(loan).collect();
    match options.as_slice() {
        [] => world.up(&yaml, &arguments),
        options => world.up_of(&world.special_binaries(&options.join(" ")), &yaml.text(), &arguments),
    }
}

/// Sends every request at its time; returns how often one was cut off.
async fn ask_all(stage: &SoakRun, plan: &Plan, expected: Arc<Vec<Vec<Answer>>>, begun: Instant) -> u32 {
    let permits: Vec<_> = stage.tenants.iter().map(|_| Arc::new(Semaphore::new(MOST_OPEN))).collect();
    let visits = plan.visits.iter().cloned().map(|visit| {
        let (member, at) = (stage.tenants[visit.tenant].clone(), visit.at);
        let body = plan.questions[visit.tenant][visit.question].body(&member.name);
        let (door, findings, expected) =
            (permits[visit.tenant].clone(), stage.findings.clone(), expected.clone());
        let request = async move {
            let _permit = door.acquire_owned().await.unwrap();
            let expected = &expected[visit.tenant][visit.question];
            load::visit(&member, &visit, &body, expected, &findings).await
        };
        (at, request)
    });
    run_at(begun, visits).await.into_iter().sum()
}
