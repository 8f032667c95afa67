//! The watches that keep the caches up to date, and enqueue the affected pools.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{Stream, StreamExt, pin_mut};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Node, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_plan::objects::{COMPONENT, ChildKind, MANAGED_BY, MANAGER};
use sluice_types::{GpuPool, ModelTenant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::device::DeviceSlice;
use super::pod::{
    ATTACH_FAILURE_SELECTOR, JOB_CREATE_FAILURE_SELECTOR, MOUNT_FAILURE_SELECTOR,
    POD_CREATE_FAILURE_SELECTOR, PREPARE_FAILURE_SELECTOR, PodWarning, inspection, involved_name, pod,
    pod_warning,
};
use super::pod_request::{SCHEDULED_PODS_SELECTOR, pod_request};
use super::{ClaimEntry, ClusterCache, NamespacedName, ObservedChild, PoolKey, Store, node};
use crate::queue::WorkQueue;

/// Objects of a page of a list.
const LIST_PAGE_SIZE: u32 = 100;

/// Maximum events of one kind for pods that the cache does not contain.
const UNKNOWN_POD_EVENTS_MAX: usize = 1000;

/// What all watches share.
#[derive(Clone)]
pub struct WatchContext {
    /// The caches to update.
    pub cache: Arc<ClusterCache>,
    /// The queue for affected pools.
    pub queue: Arc<WorkQueue>,
    /// Watches that have not listed everything yet.
    pub pending: Arc<AtomicUsize>,
    /// Notified when `pending` reaches 0.
    pub ready: Arc<Notify>,
}

/// Starts all watches. `namespaces` are the watched ones; empty = all.
pub fn watch_all(client: &Client, namespaces: &[String], feed: &WatchContext) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let scopes: Vec<Option<String>> = match namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    for scope in scopes {
        let mut watch = NamespaceWatches { client, scope, context: feed, tasks: &mut tasks };
        watch.watch_own_kinds();
        watch.watch_pods();
        watch.watch_claims();
        watch.watch_children::<ConfigMap>(ChildKind::ConfigMap);
        watch.watch_children::<Deployment>(ChildKind::Deployment);
        watch.watch_children::<Job>(ChildKind::Job);
        watch.watch_children::<NetworkPolicy>(ChildKind::NetworkPolicy);
        watch.watch_children::<PodDisruptionBudget>(ChildKind::PodDisruptionBudget);
        watch.watch_children::<Service>(ChildKind::Service);
    }
    watch_nodes(client, feed, &mut tasks);
    tasks
}

/// Watches of one namespace, or of all.
struct NamespaceWatches<'a> {
    client: &'a Client,
    scope: Option<String>,
    context: &'a WatchContext,
    tasks: &'a mut JoinSet<()>,
}

impl NamespaceWatches<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn spawn_watch<O, V>(
        &mut self,
        events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
        mirror: fn(&ClusterCache) -> &Store<V>,
        prune: impl Fn(&O, &ClusterCache) -> Option<(PoolKey, V)> + Send + 'static,
    ) where
        O: ResourceExt + Debug + Send + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let scope = self.scope.clone();
        let whom = WatchSpawner { context: self.context, tasks: self.tasks, scope };
        spawn_watch(whom, events, mirror, prune, |feed, unit, _| feed.queue.add(unit));
    }

    fn watch_own_kinds(&mut self) {
        let pools = watch(self.api::<GpuPool>(), watcher_config());
        let pool = |pool: &GpuPool, _: &ClusterCache| {
            let unit = PoolKey { namespace: pool.namespace()?, pool: pool.name_any() };
            Some((unit, Arc::new(pool.clone())))
        };
        self.spawn_watch(pools.modify(trim), |world| &world.pools, pool);
        let tenants = watch(self.api::<ModelTenant>(), watcher_config());
        let tenant = |tenant: &ModelTenant, _: &ClusterCache| {
            let unit = PoolKey { namespace: tenant.namespace()?, pool: tenant.spec.pool_ref.name.clone() };
            Some((unit, Arc::new(tenant.clone())))
        };
        self.spawn_watch(tenants.modify(trim), |world| &world.tenants, tenant);
    }

    fn watch_pods(&mut self) {
        let pods = watch(self.api::<Pod>(), component_config("slot"));
        let prune =
            |object: &Pod, _: &ClusterCache| Some((ObservedChild::pool_key(&object.metadata)?, pod(object)?));
        self.spawn_watch(pods, |world| &world.pods, prune);
        let pods = watch(self.api::<Pod>(), component_config("inspect"));
        let prune = |object: &Pod, _: &ClusterCache| {
            Some((ObservedChild::pool_key(&object.metadata)?, inspection(object)?))
        };
        self.spawn_watch(pods, |world| &world.inspections, prune);
        self.watch_other_pods();
        self.watch_warning_events(PREPARE_FAILURE_SELECTOR, ClusterCache::pool_of_pod, |world| {
            &world.prepare_failures
        });
        self.watch_warning_events(MOUNT_FAILURE_SELECTOR, ClusterCache::pool_of_pod, |world| {
            &world.mount_failures
        });
        self.watch_warning_events(ATTACH_FAILURE_SELECTOR, ClusterCache::pool_of_pod, |world| {
            &world.attach_failures
        });
        self.watch_warning_events(
            POD_CREATE_FAILURE_SELECTOR,
            |world, at| world.children(ChildKind::Deployment).pool_key(at),
            |world| &world.pod_create_failures,
        );
        self.watch_warning_events(
            JOB_CREATE_FAILURE_SELECTOR,
            |world, at| world.children(ChildKind::Job).pool_key(at),
            |world| &world.job_create_failures,
        );
    }

    /// Watches events of pods, or of their controllers, by name. An event may arrive before its pod, or in another
    /// list: it is stored without a pool, and found by the pod's name. Every pod of the cluster may have such events,
    /// so at most [`UNKNOWN_POD_EVENTS_MAX`] are kept for unknown pods; their source repeats the others.
    fn watch_warning_events(
        &mut self,
        fields: &str,
        unit_of: fn(&ClusterCache, &NamespacedName) -> Option<PoolKey>,
        mirror: fn(&ClusterCache) -> &Store<PodWarning>,
    ) {
        let events = watch(self.api::<CoreEvent>(), watcher_config().fields(fields));
        let events = events.modify(|event| {
            event.metadata.name = involved_name(&event.involved_object);
        });
        let refused = move |event: &CoreEvent, world: &ClusterCache| {
            let (subject, refusal) = pod_warning(event)?;
            let at = NamespacedName::new(event.namespace()?, subject);
            let known = unit_of(world, &at);
            let has_capacity = mirror(world).count(|unit| unit.pool.is_empty()) < UNKNOWN_POD_EVENTS_MAX;
            let nobodys =
                || has_capacity.then(|| PoolKey { namespace: at.namespace.clone(), pool: String::new() });
            Some((known.or_else(nobodys)?, refusal))
        };
        let whom = WatchSpawner { context: self.context, tasks: self.tasks, scope: self.scope.clone() };
        // Checked again: the pod may have arrived while its event was stored.
        spawn_watch(whom, events, mirror, refused, move |feed, unit, subject| {
            let known = unit_of(&feed.cache, &NamespacedName::new(unit.namespace.clone(), subject));
            let own = || Some(unit.clone()).filter(|unit| !unit.pool.is_empty());
            known.or_else(own).iter().for_each(|unit| feed.queue.add(unit));
        });
    }

    /// Watches foreign pods. A change of their requests enqueues nothing.
    fn watch_other_pods(&mut self) {
        let of_others =
            watcher_config().labels(&format!("{MANAGED_BY}!={MANAGER}")).fields(SCHEDULED_PODS_SELECTOR);
        let pods = watch(self.api::<Pod>(), of_others);
        let prune = |object: &Pod, _: &ClusterCache| Some((PoolKey::default(), pod_request(object)?));
        let whom = WatchSpawner { context: self.context, tasks: self.tasks, scope: self.scope.clone() };
        spawn_watch(whom, pods, |world| &world.pod_requests, prune, |_, _, _| ());
    }

    fn watch_claims(&mut self) {
        let claims = watch(self.api::<ResourceClaim>(), managed_config());
        let claim = |claim: &ResourceClaim, world: &ClusterCache| {
            let at = NamespacedName::new(claim.namespace()?, claim.name_any());
            let before = world.claims.get(&at);
            let entry = ClaimEntry::observe(claim, before.as_ref());
            Some((ObservedChild::pool_key(&claim.metadata)?, entry))
        };
        self.spawn_watch(claims, |world| &world.claims, claim);
    }

    fn watch_children<K>(&mut self, kind: ChildKind)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let events = watch(self.api::<PartialObjectMeta<K>>(), managed_config());
        let prune = move |object: &PartialObjectMeta<K>, world: &ClusterCache| {
            let at = NamespacedName::new(object.metadata.namespace.clone()?, object.metadata.name.clone()?);
            let before = world.children(kind).get(&at);
            let child = ObservedChild::observe(&object.metadata, before.as_ref());
            Some((ObservedChild::pool_key(&object.metadata)?, child))
        };
        self.spawn_watch(events, store_of(kind), prune);
    }
}

const fn store_of(kind: ChildKind) -> fn(&ClusterCache) -> &Store<ObservedChild> {
    match kind {
        ChildKind::ConfigMap => |world| world.children(ChildKind::ConfigMap),
        ChildKind::Deployment => |world| world.children(ChildKind::Deployment),
        ChildKind::Job => |world| world.children(ChildKind::Job),
        ChildKind::NetworkPolicy => |world| world.children(ChildKind::NetworkPolicy),
        ChildKind::PodDisruptionBudget => |world| world.children(ChildKind::PodDisruptionBudget),
        ChildKind::ResourceClaim | ChildKind::Service => |world| world.children(ChildKind::Service),
    }
}

/// Watches nodes and devices, and enqueues the pools with a claim on a changed one.
fn watch_nodes(client: &Client, feed: &WatchContext, tasks: &mut JoinSet<()>) {
    let world = feed.cache.clone();
    let nodes = watch(Api::<Node>::all(client.clone()), watcher_config()).inspect(move |event| match event {
        // An incomplete list is no state yet.
        Ok(Event::Init | Event::InitApply(_)) => {}
        event => {
            let now = Timestamp::now().as_second();
            world.node_monitor.set_watch_healthy(event.is_ok(), now);
            // The event may end an outage, which lasted until now.
            world.outage(now);
        }
    });
    let prune = |object: &Node, _: &ClusterCache| Some((PoolKey::default(), node::node(object)));
    spawn_watch(
        WatchSpawner { context: feed, tasks: &mut *tasks, scope: None },
        nodes,
        |world| &world.nodes,
        prune,
        |feed, _, name| {
            let on = |claim: &ClaimEntry| {
                let device = claim.claim.device.as_ref();
                device.is_some_and(|device| device.node.as_deref() == Some(name))
            };
            enqueue_affected(feed, on);
        },
    );
    let slices = watch(Api::<ResourceSlice>::all(client.clone()), watcher_config());
    let prune = |object: &ResourceSlice, _: &ClusterCache| {
        Some((PoolKey::default(), DeviceSlice::from_resource_slice(object)?))
    };
    spawn_watch(
        WatchSpawner { context: feed, tasks, scope: None },
        slices,
        |world| &world.slices,
        prune,
        |feed, _, name| {
            let Some(slice) = feed.cache.slices.get(&NamespacedName::new("", name)) else { return };
            let on = |claim: &ClaimEntry| {
                claim.device.as_ref().is_some_and(|id| id.driver == slice.driver && id.pool == slice.pool)
            };
            enqueue_affected(feed, on);
        },
    );
}

fn enqueue_affected(feed: &WatchContext, on: impl Fn(&ClaimEntry) -> bool) {
    for unit in feed.cache.claims.filter_map(|unit, claim| on(claim).then(|| unit.clone())) {
        feed.queue.add(&unit);
    }
}

/// Context, tasks and namespace of a new watch.
struct WatchSpawner<'a> {
    context: &'a WatchContext,
    tasks: &'a mut JoinSet<()>,
    scope: Option<String>,
}

/// Spawns a task that applies `events` to a store, and calls `changed` with the pool and the name of each changed
/// object.
fn spawn_watch<O, V>(
    WatchSpawner { context: feed, tasks, scope }: WatchSpawner<'_>,
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
    mirror: fn(&ClusterCache) -> &Store<V>,
    prune: impl Fn(&O, &ClusterCache) -> Option<(PoolKey, V)> + Send + 'static,
    changed: impl Fn(&WatchContext, &PoolKey, &str) + Send + 'static,
) where
    O: ResourceExt + Debug + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    let feed = feed.clone();
    feed.pending.fetch_add(1, Ordering::SeqCst);
    tasks.spawn(async move {
        let mut follower = StoreUpdater {
            context: feed,
            scope,
            store: mirror,
            prune,
            changed,
            listed: HashSet::new(),
            is_synced: false,
        };
        let events = events.default_backoff();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => follower.apply_watcher_event(event),
                Err(error) => tracing::warn!(
                    %error, kind = std::any::type_name::<O>(),
                    "a watch failed and is restarted"
                ),
            }
        }
    });
}

struct StoreUpdater<V, P, C> {
    context: WatchContext,
    scope: Option<String>,
    store: fn(&ClusterCache) -> &Store<V>,
    prune: P,
    changed: C,
    /// Names in the current list.
    listed: HashSet<NamespacedName>,
    is_synced: bool,
}

impl<V: Clone, P, C: Fn(&WatchContext, &PoolKey, &str)> StoreUpdater<V, P, C> {
    fn apply_watcher_event<O: ResourceExt>(&mut self, event: Event<O>)
    where
        P: Fn(&O, &ClusterCache) -> Option<(PoolKey, V)>,
    {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(name(&object));
                self.store_object(&object);
            }
            Event::InitDone => self.on_init_done(),
            Event::Apply(object) => self.store_object(&object),
            Event::Delete(object) => {
                let at = name(&object);
                if let Some(unit) = (self.store)(&self.context.cache).remove(&at) {
                    (self.changed)(&self.context, &unit, &at.name);
                }
            }
        }
    }

    fn store_object<O: ResourceExt>(&self, object: &O)
    where
        P: Fn(&O, &ClusterCache) -> Option<(PoolKey, V)>,
    {
        let Some((unit, value)) = (self.prune)(object, &self.context.cache) else { return };
        let at = name(object);
        let own = at.name.clone();
        if (self.store)(&self.context.cache).insert(at, unit.clone(), value) {
            (self.changed)(&self.context, &unit, &own);
        }
    }

    fn on_init_done(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        for unit in (self.store)(&self.context.cache).retain(self.scope.as_deref(), &listed) {
            (self.changed)(&self.context, &unit, "");
        }
        if !std::mem::replace(&mut self.is_synced, true)
            && self.context.pending.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.context.ready.notify_waiters();
        }
    }
}

fn name(object: &impl ResourceExt) -> NamespacedName {
    NamespacedName::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// List pages are small: an object with its managed fields is many times larger than its stored part, and all watches
/// list at once.
fn watcher_config() -> watcher::Config {
    watcher::Config::default().page_size(LIST_PAGE_SIZE)
}

/// Selects Sluice's pods of one component: slots or inspections.
fn component_config(what: &str) -> watcher::Config {
    watcher_config().labels(&format!("{MANAGED_BY}={MANAGER},{COMPONENT}={what}"))
}

/// Selects objects that the operator manages.
fn managed_config() -> watcher::Config {
    watcher_config().labels(&format!("{MANAGED_BY}={MANAGER}"))
}

/// Removes the managed fields, which are not used for Sluice's own kinds.
fn trim(object: &mut impl ResourceExt) {
    object.managed_fields_mut().clear();
}
