//! One pool with its tenants, in five steps.
//!
//! 1. **dereference**: gathers from the mirrors all that is seen of it; nothing is asked of the API server.
//! 2. **validate** and 3. **build**: `sluice-plan` says what is to be.
//! 4. **apply**: sends what is missing, changed or drifted, and deletes what is not to be there any more.
//!    Sidecars are told who their neighbours are, and their certificates are kept.
//! 5. **status**: tells what became of it.

mod announce;
mod apply;
mod dereference;
mod drawn;
mod finalizer;
mod neighbours;
mod status;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::jiff::Timestamp;
use kube::Client;
use sluice_plan::objects::Release;
use sluice_plan::seen::PodSeen;
use sluice_plan::unit::{Given, Troubles, plan};
use sluice_wire::overview::GpuOverview;
use sluice_wire::state::TenantReport;
use tokio::sync::Notify;
use tracing::Instrument as _;

pub use self::announce::Announcer;
use crate::abilities::Abilities;
use crate::credentials::Keeper;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::sidecars::{GpuKey, GpuRead, Sidecars};
use crate::world::{Name, Unit, World};

/// Everything that a reconciliation works with.
pub struct Operator {
    /// Access to the API server.
    pub client: Client,
    /// What is there.
    pub world: Arc<World>,
    /// What is to be looked at.
    pub queue: Arc<Queue>,
    /// What goes into every pod.
    pub release: Release,
    /// What the cluster can do.
    pub abilities: Arc<Abilities>,
    /// A node that is not ready for so long is lost, seconds.
    pub grace_seconds: i64,
    /// Shortest time between two writes of a status whose conditions do not change.
    pub status_every: Duration,
    /// Certificates.
    pub keeper: Keeper,
    /// The way to sidecars.
    pub sidecars: Mutex<Sidecars>,
    /// Figures.
    pub metrics: Metrics,
    /// Events.
    pub announcer: Announcer,
    /// What this leader keeps in mind. Nothing of it is needed for a right decision: it only saves requests.
    pub memory: Memory,
}

/// See [`Operator::memory`].
#[derive(Debug, Default)]
pub struct Memory {
    /// When each object's status was written last.
    written: Mutex<HashMap<(Kind2, Name), Instant>>,
    /// What was rendered last, of tenants and of GPUs (under [`Kind2::Pool`]).
    drawn: Mutex<HashMap<(Kind2, Name), drawn::Drawn>>,
    /// What each sidecar was told last.
    told: Mutex<HashMap<Told, sluice_plan::direct::Told>>,
    /// Units of the start that have not been looked at yet.
    unseen: Mutex<HashSet<Unit>>,
    /// Told when there is none left.
    all_seen: Notify,
}

/// A sidecar: its GPU, its tenant and the uid of its pod.
type Told = (GpuKey, String, String);

/// One of our own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind2 {
    Pool,
    Tenant,
}

/// Why a reconciliation has to be repeated.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The API server refused something, or did not answer.
    #[error("{what}: {error}")]
    Api {
        /// What was attempted.
        what: String,
        /// What it said.
        error: Box<kube::Error>,
    },
    /// Objects of tenants could not be applied; each tenant's status says why.
    #[error("{count} tenants have objects that could not be applied; the first: {first}")]
    Troubles {
        /// So many tenants.
        count: usize,
        /// What the first of them lacks.
        first: String,
    },
}

impl Failure {
    fn api(what: impl Into<String>, error: kube::Error) -> Failure {
        Failure::Api { what: what.into(), error: Box::new(error) }
    }
}

impl Operator {
    /// GPUs whose states have never been read.
    pub fn unread(&self) -> usize {
        lock(&self.sidecars).unread()
    }

    /// Sidecars that have been without their directive for a while.
    pub fn untold_count(&self) -> usize {
        lock(&self.sidecars).untold_count()
    }

    /// What is known of the GPUs that are wanted, by namespace and what their sidecars said.
    pub fn overview(&self, wanted: impl Fn(&str, &[TenantReport]) -> bool) -> Vec<GpuOverview> {
        lock(&self.sidecars).overview(wanted)
    }

    /// Goes through what was read last of all GPUs.
    pub fn each_gpu(&self, see: impl FnMut(&GpuRead<'_>)) {
        lock(&self.sidecars).each_gpu(see);
    }

    /// Each of `units` is to be looked at once: [`Operator::all_seen`] waits for that.
    pub fn expect(&self, units: impl IntoIterator<Item = Unit>) {
        lock(&self.memory.unseen).extend(units);
    }

    /// Waits until all that was expected has been looked at once, whatever came of it.
    pub async fn all_seen(&self) {
        loop {
            // It hears what comes from here on, before it is asked for.
            let all_seen = self.memory.all_seen.notified();
            if lock(&self.memory.unseen).is_empty() {
                return;
            }
            all_seen.await;
        }
    }

    fn is_there(&self, kind: Kind2, at: &Name) -> bool {
        match kind {
            Kind2::Pool => self.world.pools.get(at).is_some(),
            Kind2::Tenant => self.world.tenants.get(at).is_some(),
        }
    }

    fn saw(&self, unit: &Unit) {
        let mut unseen = lock(&self.memory.unseen);
        if unseen.remove(unit) && unseen.is_empty() {
            self.memory.all_seen.notify_waiters();
        }
    }

    /// Looks at one unit after the other, for ever.
    pub async fn work(&self) {
        loop {
            let unit = self.queue.next().await;
            let began = Instant::now();
            let span = tracing::info_span!("reconcile", namespace = unit.namespace, pool = unit.pool);
            let result = self.reconcile(&unit).instrument(span).await;
            let took = began.elapsed();
            self.metrics.reconciled(took, result.is_ok());
            match &result {
                Ok(()) => tracing::debug!(namespace = unit.namespace, pool = unit.pool, ?took, "reconciled"),
                Err(error) => {
                    tracing::warn!(namespace = unit.namespace, pool = unit.pool, %error, "to be repeated");
                }
            }
            self.queue.done(&unit, took, result.is_err());
            self.saw(&unit);
        }
    }

    /// Makes one unit what it is to be.
    ///
    /// # Errors
    /// Something could not be carried out; what could has been.
    async fn reconcile(&self, unit: &Unit) -> Result<(), Failure> {
        let now = Timestamp::now().as_second();
        let scene = tracing::info_span!("dereference").in_scope(|| self.dereference(unit, now));
        if scene.pool.is_none() && scene.tenants.is_empty() {
            self.direct(unit, Vec::new());
            self.forget(unit);
            return Ok(());
        }
        if let Some(pool) = &scene.pool {
            self.hold_pool(pool, !scene.all_tenants_gone).await?;
        }
        let tenants: Vec<_> = scene.tenants.iter().map(AsRef::as_ref).collect();
        let pool = scene.pool.as_deref();
        let given = Given {
            pool,
            tenants: &tenants,
            seen: &scene.seen,
            cluster: self.abilities.now(),
            grace_seconds: self.grace_seconds,
            outage: self.world.outage(now),
            now,
        };
        let plan = tracing::info_span!("build").in_scope(|| plan(&given));
        let troubles = match pool {
            Some(pool) => {
                self.doubt(unit, &scene.seen.pods);
                self.direct(unit, self.gpus(unit, pool, &plan, &given));
                self.apply(unit, pool, &plan, now).instrument(tracing::info_span!("apply")).await
            }
            None => {
                lock(&self.sidecars).found_no_pool(&unit.namespace, &unit.pool);
                Troubles::new()
            }
        };
        let failed = troubles
            .values()
            .next()
            .map(|first| Failure::Troubles { count: troubles.len(), first: first.message.clone() });
        self.tell(unit, &given, &plan, &troubles).instrument(tracing::info_span!("status")).await?;
        if let Some(seconds) = plan.look_again() {
            self.queue.add_after(unit, Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1));
        }
        failed.map_or(Ok(()), Err)
    }

    /// What keeps a pod from starting may be its Secret.
    fn doubt(&self, unit: &Unit, pods: &[PodSeen]) {
        for pod in pods.iter().filter(|pod| pod.failing.is_some() && pod.stays()) {
            self.keeper.doubt(&unit.namespace, &format!("sluice-{}-{}", pod.tenant, pod.index));
        }
    }

    /// Drops what was kept in mind of a unit that is gone.
    fn forget(&self, unit: &Unit) {
        lock(&self.sidecars).forget(&unit.namespace, &unit.pool);
        self.queue.forget(unit);
        self.keeper.retain(|namespace, _| namespace != unit.namespace);
        lock(&self.memory.written)
            .retain(|(kind, at), _| at.namespace != unit.namespace || self.is_there(*kind, at));
        lock(&self.memory.drawn).retain(|(_, at), _| at.namespace != unit.namespace);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
