//! The registry of sidecars, their directives and their reports.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sluice_wire::directive::Directive;
use sluice_wire::overview::GpuOverview;
use sluice_wire::state::TenantReport;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::gpu_reading::{GpuKey, GpuReading, ReadingStore, Readings, SidecarKey};
use super::http_client::{SidecarAddress, Transport};
use super::poller::{INITIAL_SPREAD_MAX, POLL_INTERVAL, initial_spread, poll_forever};
use super::pusher::{FenceCounter, push_until_accepted};
use super::sidecar_event::{EventSender, SidecarEvent};

/// A GPU and its sidecars.
#[derive(Clone, Debug)]
pub struct GpuSidecars {
    /// Name of the GPU.
    pub key: GpuKey,
    /// Node that it is on.
    pub node: Option<String>,
    /// Its sidecars, without those that have no address.
    pub targets: Vec<DirectiveTarget>,
}

/// A sidecar and its directive.
#[derive(Clone, Debug)]
pub struct DirectiveTarget {
    /// Where it is.
    pub address: SidecarAddress,
    /// Uid of its pod: a new pod needs the directive again.
    pub pod_uid: String,
    /// The directive; epoch and sequence are set when it is sent.
    pub directive: Arc<Directive>,
}

/// A task that ends when it is dropped.
#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug)]
struct PolledGpu {
    sidecars: watch::Sender<Vec<SidecarKey>>,
    /// When a leader's first reconciliation found tenants on the GPU; `None` = they were placed later, and have no
    /// earlier reports.
    first_observed: Option<Instant>,
    _task: Option<AbortOnDrop>,
}

/// Maximum time that a new leader waits for reports.
pub const INITIAL_READ_TIMEOUT: Duration = Duration::from_secs(2 * INITIAL_SPREAD_MAX.as_secs());

/// Consecutive failures after which a missing directive is reported, which takes seconds.
const REPORT_AFTER_FAILURES: usize = 4;

/// Why a sidecar has no directive, once it is reported.
type LastError = Arc<Mutex<Option<String>>>;

#[derive(Debug)]
struct PushTask {
    gpu: GpuKey,
    tenant: String,
    directive: Arc<Directive>,
    last_error: LastError,
    _task: AbortOnDrop,
}

/// The last reading of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct GpuRead<'a> {
    /// Name of the GPU.
    pub key: &'a GpuKey,
    /// Node that it is on; `None` = not known yet.
    pub node: Option<&'a str>,
    /// The reading.
    pub reading: &'a GpuReading,
}

/// All sidecars of the cluster. Dropping it stops all tasks.
#[derive(Debug)]
pub struct SidecarRegistry {
    way: Transport,
    /// Time between two readings of a GPU; `None` = no GPU is read.
    poll_interval: Option<Duration>,
    fences: Arc<FenceCounter>,
    events: EventSender,
    readings: ReadingStore,
    gpus: HashMap<GpuKey, PolledGpu>,
    push_tasks: HashMap<SidecarKey, PushTask>,
    /// Namespaces and names of the pools that this leader has reconciled: it placed later tenants itself. A
    /// reconciliation that failed before any directive was sent does not count.
    observed_pools: HashSet<(String, String)>,
}

impl SidecarRegistry {
    /// Creates an empty registry. `epoch` is that of this leader, higher than all before.
    pub fn new(way: Transport, epoch: u64, news: mpsc::UnboundedSender<SidecarEvent>) -> SidecarRegistry {
        let (readings, gpus, push_tasks) = (ReadingStore::default(), HashMap::new(), HashMap::new());
        let (fences, looked) = (FenceCounter::new(epoch), HashSet::new());
        SidecarRegistry {
            way,
            poll_interval: Some(POLL_INTERVAL),
            fences,
            events: news,
            readings,
            gpus,
            push_tasks,
            observed_pools: looked,
        }
    }

    /// Returns the registry with another time between two readings of a GPU; `None` = no GPU is read.
    #[must_use]
    pub fn with_poll_interval(self, every: Option<Duration>) -> SidecarRegistry {
        SidecarRegistry { poll_interval: every, ..self }
    }

    /// Returns the fences of outgoing directives.
    pub fn fences(&self) -> Arc<FenceCounter> {
        self.fences.clone()
    }

    /// Sets the sidecars of a pool: starts tasks for new ones, pushes changed directives, and stops tasks of removed
    /// ones. Must be called within a runtime.
    pub fn set(&mut self, namespace: &str, pool: &str, gpus: Vec<GpuSidecars>) {
        let of_pool = |key: &GpuKey| key.namespace == namespace && key.pool == pool;
        let keys: BTreeSet<GpuKey> = gpus.iter().map(|gpu| gpu.key.clone()).collect();
        self.gpus.retain(|key, _| !of_pool(key) || keys.contains(key));
        self.readings.with(|all| all.retain(|key, _| !of_pool(key) || keys.contains(key)));
        let there: BTreeSet<SidecarKey> = gpus.iter().flat_map(|gpu| &gpu.targets).map(sidecar_key).collect();
        let news = self.events.clone();
        self.push_tasks.retain(|id, task| {
            let stays = !of_pool(&task.gpu) || there.contains(id);
            if !stays && error_message(&task.last_error).is_some() {
                let _ = news.send(SidecarEvent::Stuck(task.gpu.clone()));
            }
            stays
        });
        let first = self.observed_pools.insert((namespace.to_owned(), pool.to_owned()));
        for gpu in gpus {
            self.start_polling(&gpu, first);
            if self.is_fully_read(&gpu.key) {
                gpu.targets.into_iter().for_each(|target| self.start_pushing(&gpu.key, target));
            }
        }
    }

    /// Marks a pool that does not exist, but has tenants, as reconciled: their sidecars are not polled.
    pub fn mark_pool_absent(&mut self, namespace: &str, pool: &str) {
        self.observed_pools.insert((namespace.to_owned(), pool.to_owned()));
    }

    /// Drops a pool without GPUs; a new pool of its name starts without state.
    pub fn forget(&mut self, namespace: &str, pool: &str) {
        self.observed_pools.remove(&(namespace.to_owned(), pool.to_owned()));
    }

    /// Whether all sidecars of a GPU have reported. A new leader assigns shares by reported floors, as its
    /// predecessor did, so it reads them first. It waits for each sidecar, or until none has answered, at most
    /// [`INITIAL_READ_TIMEOUT`].
    pub fn is_fully_read(&self, gpu: &GpuKey) -> bool {
        let Some(followed) = self.gpus.get(gpu) else {
            return self.poll_interval.is_none()
                || self.observed_pools.contains(&(gpu.namespace.clone(), gpu.pool.clone()));
        };
        let waits = followed.first_observed.is_some_and(|found| found.elapsed() <= INITIAL_READ_TIMEOUT);
        self.poll_interval.is_none()
            || !waits
            || self.with_reading(gpu, GpuReading::is_complete) == Some(true)
    }

    fn start_polling(&mut self, gpu: &GpuSidecars, first_look: bool) {
        let there: Vec<SidecarKey> = gpu.targets.iter().map(sidecar_key).collect();
        self.readings.with(|all| all.entry(gpu.key.clone()).or_default().0.clone_from(&gpu.node));
        if let Some(followed) = self.gpus.get(&gpu.key) {
            followed.sidecars.send_if_modified(|known| {
                let other = *known != there;
                *known = there;
                other
            });
            return;
        }
        let (sidecars, watched) = watch::channel(there);
        let first = initial_spread(self.gpus.len() + 1);
        let task = self.poll_interval.map(|every| {
            let (way, readings, news) = (self.way.clone(), self.readings.clone(), self.events.clone());
            let task = poll_forever(way, gpu.key.clone(), watched, (readings, news), (first, every));
            AbortOnDrop(tokio::spawn(task).abort_handle())
        });
        let found = (first_look && !gpu.targets.is_empty()).then(Instant::now);
        self.gpus.insert(gpu.key.clone(), PolledGpu { sidecars, first_observed: found, _task: task });
    }

    fn start_pushing(&mut self, gpu: &GpuKey, target: DirectiveTarget) {
        let id = sidecar_key(&target);
        if self.push_tasks.get(&id).is_some_and(|task| task.directive == target.directive) {
            return;
        }
        let DirectiveTarget { address, directive, .. } = target;
        // The last error stays until a directive is accepted.
        let last_error = self.push_tasks.get(&id).map(|task| task.last_error.clone()).unwrap_or_default();
        let (kept, key, tenant) = (last_error.clone(), gpu.clone(), address.name.clone());
        let (way, fences, news) = (self.way.clone(), self.fences.clone(), self.events.clone());
        let sent = directive.clone();
        // Boxed: a finished task keeps its memory while a handle exists.
        let task = tokio::spawn(Box::pin(async move {
            let mut failures = 0;
            let report_error = |problem: Option<&str>| {
                let _ = news.send(SidecarEvent::DirectiveStatus(address.clone(), problem.map(str::to_owned)));
                failures += 1;
                if update_error(&last_error, problem, failures) {
                    let _ = news.send(SidecarEvent::Stuck(key.clone()));
                }
            };
            let deposed = |current| {
                let _ = news.send(SidecarEvent::Deposed(address.clone(), current));
            };
            push_until_accepted(&way, &address, &sent, &fences, deposed, report_error).await;
        }));
        // Dropping the old task ends its push, whose sequence is lower.
        self.push_tasks.insert(
            id,
            PushTask {
                gpu: gpu.clone(),
                tenant,
                directive,
                last_error: kept,
                _task: AbortOnDrop(task.abort_handle()),
            },
        );
    }

    /// Returns the sidecars of a pool that have been without their directive for a while, by tenant and GPU, with the
    /// reason.
    pub fn undelivered(&self, namespace: &str, pool: &str) -> BTreeMap<(String, String), String> {
        let of_pool = |task: &&PushTask| task.gpu.namespace == namespace && task.gpu.pool == pool;
        let why = |task: &PushTask| {
            Some(((task.tenant.clone(), task.gpu.name.clone()), error_message(&task.last_error)?))
        };
        self.push_tasks.values().filter(of_pool).filter_map(why).collect()
    }

    /// Returns the number of sidecars that have been without their directive for a while.
    pub fn undelivered_count(&self) -> usize {
        self.push_tasks.values().filter(|task| error_message(&task.last_error).is_some()).count()
    }

    /// Returns the last reading of a GPU.
    pub fn reading(&self, key: &GpuKey) -> Option<GpuReading> {
        self.readings.with(|all| all.get(key).map(|(_, reading)| reading.clone()))
    }

    /// Returns a value computed from the last reading of a GPU, without cloning the reading.
    pub fn with_reading<T>(&self, key: &GpuKey, of: impl FnOnce(&GpuReading) -> T) -> Option<T> {
        self.readings.with(|all| all.get(key).map(|(_, reading)| of(reading)))
    }

    /// Calls `see` with the last reading of each GPU of a pool, by name.
    pub fn for_each_reading(&self, namespace: &str, pool: &str, mut see: impl FnMut(&str, &GpuReading)) {
        let (namespace, pool) = (namespace.to_owned(), pool.to_owned());
        let first = GpuKey { namespace, pool, name: String::new() };
        self.readings.with(|all| {
            let own = all.range(&first..);
            own.take_while(|(key, _)| key.namespace == first.namespace && key.pool == first.pool)
                .for_each(|(key, (_, reading))| see(&key.name, reading));
        });
    }

    /// Returns the readings that `wanted` selects by namespace and reports; the others are not cloned.
    pub fn overview(&self, wanted: impl Fn(&str, &[TenantReport]) -> bool) -> Vec<GpuOverview> {
        let one = |(key, (node, reading)): (&GpuKey, &(Option<String>, GpuReading))| GpuOverview {
            namespace: key.namespace.clone(),
            pool: key.pool.clone(),
            name: key.name.clone(),
            node: node.clone(),
            read_unix_ms: reading.read_unix_ms,
            problem: reading.problem.clone(),
            tenants: reading.tenants.clone(),
        };
        let wants = |(key, (_, reading)): &(&GpuKey, &(Option<String>, GpuReading))| {
            wanted(&key.namespace, &reading.tenants)
        };
        self.readings.with(|all| all.iter().filter(wants).map(one).collect())
    }

    /// Calls `see` with the last reading of each GPU.
    pub fn for_each_gpu(&self, mut see: impl FnMut(&GpuRead<'_>)) {
        self.readings.with(|all| {
            for (key, (node, reading)) in &*all {
                see(&GpuRead { key, node: node.as_deref(), reading });
            }
        });
    }

    /// Returns the number of GPUs with sidecars that were never read. At 0 a new leader has read all of them.
    pub fn unread_count(&self) -> usize {
        let followed = self.gpus.iter().filter(|(_, gpu)| !gpu.sidecars.borrow().is_empty());
        let followed: Vec<&GpuKey> = followed.map(|(key, _)| key).collect();
        let unread = |all: &Readings, key: &GpuKey| {
            all.get(key).is_none_or(|(_, reading)| reading.read_unix_ms.is_none())
        };
        self.readings.with(|all| followed.iter().filter(|key| unread(all, key)).count())
    }
}

fn error_message(last_error: &LastError) -> Option<String> {
    last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Records why a sidecar has no directive, after `failures` consecutive failures; true = the error appeared or ended.
fn update_error(last_error: &LastError, problem: Option<&str>, failures: usize) -> bool {
    let mut kept = last_error.lock().unwrap_or_else(PoisonError::into_inner);
    let before = kept.is_some();
    match problem {
        None => *kept = None,
        Some(problem) if before || failures >= REPORT_AFTER_FAILURES => *kept = Some(problem.to_owned()),
        Some(_) => {}
    }
    before != kept.is_some()
}

fn sidecar_key(target: &DirectiveTarget) -> SidecarKey {
    (target.address.clone(), target.pod_uid.clone())
}
