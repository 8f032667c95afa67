//! An operator with many tenants on many GPUs: what it costs to make them, to start again and to stand by.
//!
//! | piece | what it does |
//! |---|---|
//! | [`tenants`] | pools, tenants, and what schedulers, controllers and kubelets would do for them |
//! | [`stub`] | all sidecars behind one listener, by mutual TLS with the Secrets that the operator wrote |
//! | [`process`] | the operator as a process under its own rights, and what it costs |
//! | [`audit_counts`] | what it asked of the API server, from the audit log |
//! | [`verdict`] | values against limits |

mod audit_counts;
mod process;
mod sizes;
mod stub;
mod tenants;
mod verdict;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_e2e::cluster::{self, within};

use self::audit_counts::AuditCounts;
use self::process::{Cost, Operator};
pub use self::sizes::Sizes;
use self::stub::Stub;
use self::tenants::{TenantPopulation, WAIT_LIMIT};
pub use self::verdict::LimitCheck;

/// Margin beyond the longest delay of a status, after which no further write is expected.
const QUIET_PERIOD: Duration = Duration::from_secs(5);

/// Limits of the design.
const MEMORY_MIB: f64 = 128.0;
const OBSERVED_SECONDS: f64 = 60.0;
const CORES: f64 = 0.1;
/// Minimum share of the expected readings of a GPU: 18 of 20 in ten minutes.
const READ_PERMILLE: u64 = 900;
/// Default interval between two readings of a GPU in the operator, seconds.
const POLL_SECONDS: u64 = 30;

/// Inputs of the benchmark.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of the operator's binary.
    pub operator: PathBuf,
    /// Sizes of the cluster.
    pub sizes: Sizes,
    /// Folder for logs.
    pub logs: Option<PathBuf>,
}

/// Results of the benchmark.
#[derive(Debug)]
pub struct BenchOutcome {
    /// Values with limits.
    pub verdicts: Vec<LimitCheck>,
    /// Values without limits.
    pub notes: Value,
}

impl BenchOutcome {
    /// Whether all limits hold.
    pub fn passed(&self) -> bool {
        self.verdicts.iter().all(LimitCheck::passed)
    }
}

/// Results of one run of the operator process.
struct OperatorRun {
    peak_mib: f64,
    writes: Vec<String>,
}

/// Runs the benchmark. `None` without an API server of our own.
///
/// # Panics
/// If an expected event does not occur.
pub async fn run(options: &Options) -> Option<BenchOutcome> {
    let server = cluster::api().await?;
    if !server.is_own_cluster() {
        return None;
    }
    let sizes = &options.sizes;
    let stub = Arc::new(Stub::start(sizes.gpus).await);
    let population = TenantPopulation::new(server, sizes, stub.clone()).await;
    let logs = options.logs.clone();
    let place = process::ProcessDirs::new(server, &options.operator, logs, stub.port(), sizes).await;
    let mut audit = AuditCounts::of(server, place.user());
    // The operator may delay a status write by `status_seconds` after the next reading, whose interval varies by
    // its jitter.
    let still = QUIET_PERIOD + Duration::from_secs(sizes.status_seconds + interval(sizes) * 12 / 10);

    let operator = place.start("first").await;
    let began = Instant::now();
    population.create_all().await;
    let (made, first_writes) = wait_until_quiet(&operator, &mut audit, &stub, still).await;
    population.all_ready().await;
    let created = made.duration_since(began);
    let first = OperatorRun { peak_mib: operator.cost().peak_mib, writes: first_writes };
    let first_cpu = operator.cost().cpu;
    eprintln!("made in {created:?} by {} writes, {:?} of CPU", first.writes.len(), first_cpu);
    operator.end();
    assert!(audit.refused().is_empty(), "refused: {:?}", audit.refused());

    let _ = audit.writes();
    let again = place.start("second").await;
    let (observed, restarted) = observed(&again, Duration::from_secs(sizes.patience_seconds)).await;
    let (_, writes) = wait_until_quiet(&again, &mut audit, &stub, still).await;
    eprintln!("observed after {observed:?} s, {restarted:?}");
    let rest = measure_idle(&again, &mut audit, &stub, Duration::from_secs(sizes.rest_seconds)).await;
    let second = OperatorRun { peak_mib: again.cost().peak_mib, writes };
    again.end();

    let notes = json!({
        "first_creation": {"seconds": created.as_secs_f64(), "writes": first.writes.len(),
            "writes_by_kind": by_kind(&first.writes), "cpu_seconds": first_cpu.as_secs_f64()},
        "restart": {"cpu_seconds": restarted.cpu.as_secs_f64(), "looked_seconds": restarted.looked},
        "handshakes": stub.handshakes(), "directives": stub.directives(),
    });
    Some(BenchOutcome { verdicts: verdicts(sizes, observed, &first, &second, &rest), notes })
}

/// Costs of a restart other than its time.
#[derive(Debug)]
struct Restarted {
    cpu: Duration,
    looked: Option<f64>,
}

/// Waits until everything is observed. Returns the seconds of the operator's own metric; `None` = not observed in
/// time.
async fn observed(operator: &Operator, patience: Duration) -> (Option<f64>, Restarted) {
    let begun = Instant::now();
    let mut seconds = None;
    while seconds.is_none() && begun.elapsed() < patience {
        tokio::time::sleep(Duration::from_millis(200)).await;
        seconds = operator.figure("sluice_operator_observed_seconds").await.filter(|seconds| *seconds > 0.0);
    }
    let looked = operator.figure("sluice_operator_looked_seconds").await;
    (seconds, Restarted { cpu: operator.cost().cpu, looked })
}

/// Waits until the operator has written nothing and sent no directive for `calm`. Returns when that period began,
/// and all writes.
async fn wait_until_quiet(
    operator: &Operator,
    audit: &mut AuditCounts,
    stub: &Stub,
    calm: Duration,
) -> (Instant, Vec<String>) {
    let (mut since, mut all, mut sent) = (Instant::now(), Vec::new(), stub.directives());
    within(WAIT_LIMIT, "calm", async || {
        operator.assert_alive();
        let new = audit.writes();
        if !new.is_empty() || stub.directives() != sent {
            (since, sent) = (Instant::now(), stub.directives());
            all.extend(new);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        (since.elapsed() >= calm).then_some(())
    })
    .await;
    (since, all)
}

/// Activity of the operator in an idle cluster.
struct IdlePeriod {
    duration: Duration,
    cost: Cost,
    least_reads: u64,
    writes: Vec<String>,
}

async fn measure_idle(
    operator: &Operator,
    audit: &mut AuditCounts,
    stub: &Stub,
    time: Duration,
) -> IdlePeriod {
    let (began, before, reads) = (Instant::now(), operator.cost(), stub.reads());
    tokio::time::sleep(time).await;
    let (took, after) = (began.elapsed(), operator.cost());
    let read = stub.reads().into_iter().zip(reads).map(|(after, before)| after - before);
    let least_reads = read.min().unwrap_or(0);
    let cost = Cost { cpu: after.cpu - before.cpu, ..after };
    IdlePeriod { duration: took, cost, least_reads, writes: audit.writes() }
}

/// Interval between two readings of a GPU, seconds.
fn interval(sizes: &Sizes) -> u64 {
    sizes.poll_seconds.unwrap_or(POLL_SECONDS)
}

fn verdicts(
    sizes: &Sizes,
    observed: Option<f64>,
    first: &OperatorRun,
    second: &OperatorRun,
    rest: &IdlePeriod,
) -> Vec<LimitCheck> {
    let needed = sizes.rest_seconds * READ_PERMILLE / 1000 / interval(sizes);
    let cores = rest.cost.cpu.as_secs_f64() / rest.duration.as_secs_f64();
    let peak = first.peak_mib.max(second.peak_mib);
    let lives = json!({"first_creation_mib": first.peak_mib, "restart_and_rest_mib": second.peak_mib,
        "resident_at_the_end_mib": rest.cost.resident_mib});
    let written = |writes: &[String]| json!(writes.iter().take(20).collect::<Vec<_>>());
    vec![
        LimitCheck::at_most("leader's peak memory", peak, "MiB", MEMORY_MIB).with(lives),
        LimitCheck::of("restart to all observed", observed, "s", OBSERVED_SECONDS),
        LimitCheck::at_most("writes after a restart", count(&second.writes), "writes", 0.0)
            .with(written(&second.writes)),
        LimitCheck::at_most("CPU at rest", cores, "cores", CORES).with(
            json!({"cpu_seconds": rest.cost.cpu.as_secs_f64(), "seconds": rest.duration.as_secs_f64()}),
        ),
        LimitCheck::at_least("least reads of a GPU at rest", rest.least_reads as f64, "reads", needed as f64),
        LimitCheck::at_most("writes at rest", count(&rest.writes), "writes", 0.0).with(written(&rest.writes)),
    ]
}

fn count(writes: &[String]) -> f64 {
    writes.len() as f64
}

/// Counts the writes by verb and kind.
fn by_kind(writes: &[String]) -> Value {
    let mut all = std::collections::BTreeMap::<&str, usize>::new();
    for write in writes {
        *all.entry(write.split(' ').next().unwrap_or_default()).or_default() += 1;
    }
    json!(all)
}
