//! The watches that keep the mirrors up to date, and tell the queue whom a change concerns.

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
use sluice_plan::objects::{COMPONENT, Kind, MANAGED_BY, MANAGER};
use sluice_types::{GpuPool, ModelTenant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::device::Slice;
use super::load::{ON_NODES, load};
use super::pod::{
    REFUSALS, Refusal, UNATTACHED, UNBEGUN, UNMADE, UNMOUNTED, inspection, pod, refusal, subject,
};
use super::{ChildSeen, ClaimEntry, Mirror, Name, Unit, World, node};
use crate::queue::Queue;

/// Objects of a page of a list.
const PAGE: u32 = 100;

/// Events of one kind that are kept of pods that nobody knows.
const STRANGERS: usize = 1000;

/// What all watches share.
#[derive(Clone)]
pub struct Feed {
    /// What they keep up to date.
    pub world: Arc<World>,
    /// Who is told.
    pub queue: Arc<Queue>,
    /// Watches that have not listed everything yet.
    pub pending: Arc<AtomicUsize>,
    /// Told when `pending` has become 0.
    pub ready: Arc<Notify>,
}

/// Starts all watches. `namespaces` are those looked after; none = all.
pub fn watch_all(client: &Client, namespaces: &[String], feed: &Feed) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let scopes: Vec<Option<String>> = match namespaces {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    for scope in scopes {
        let mut watch = Watch { client, scope, feed, tasks: &mut tasks };
        watch.own_kinds();
        watch.pods();
        watch.claims();
        watch.child::<ConfigMap>(Kind::ConfigMap);
        watch.child::<Deployment>(Kind::Deployment);
        watch.child::<Job>(Kind::Job);
        watch.child::<NetworkPolicy>(Kind::NetworkPolicy);
        watch.child::<PodDisruptionBudget>(Kind::PodDisruptionBudget);
        watch.child::<Service>(Kind::Service);
    }
    nodes(client, feed, &mut tasks);
    tasks
}

/// Watches of one namespace, or of all.
struct Watch<'a> {
    client: &'a Client,
    scope: Option<String>,
    feed: &'a Feed,
    tasks: &'a mut JoinSet<()>,
}

impl Watch<'_> {
    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        match &self.scope {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn follow<O, V>(
        &mut self,
        events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
        mirror: fn(&World) -> &Mirror<V>,
        prune: impl Fn(&O, &World) -> Option<(Unit, V)> + Send + 'static,
    ) where
        O: ResourceExt + Debug + Send + 'static,
        V: Clone + Send + Sync + 'static,
    {
        let scope = self.scope.clone();
        let whom = Follow { feed: self.feed, tasks: self.tasks, scope };
        follow(whom, events, mirror, prune, |feed, unit, _| feed.queue.add(unit));
    }

    fn own_kinds(&mut self) {
        let pools = watch(self.api::<GpuPool>(), config());
        let pool = |pool: &GpuPool, _: &World| {
            let unit = Unit { namespace: pool.namespace()?, pool: pool.name_any() };
            Some((unit, Arc::new(pool.clone())))
        };
        self.follow(pools.modify(trim), |world| &world.pools, pool);
        let tenants = watch(self.api::<ModelTenant>(), config());
        let tenant = |tenant: &ModelTenant, _: &World| {
            let unit = Unit { namespace: tenant.namespace()?, pool: tenant.spec.pool_ref.name.clone() };
            Some((unit, Arc::new(tenant.clone())))
        };
        self.follow(tenants.modify(trim), |world| &world.tenants, tenant);
    }

    fn pods(&mut self) {
        let pods = watch(self.api::<Pod>(), component("slot"));
        let prune = |object: &Pod, _: &World| Some((ChildSeen::unit(&object.metadata)?, pod(object)?));
        self.follow(pods, |world| &world.pods, prune);
        let pods = watch(self.api::<Pod>(), component("inspect"));
        let prune = |object: &Pod, _: &World| Some((ChildSeen::unit(&object.metadata)?, inspection(object)?));
        self.follow(pods, |world| &world.inspections, prune);
        self.loads();
        self.troubles(REFUSALS, World::unit_of_pod, |world| &world.refusals);
        self.troubles(UNMOUNTED, World::unit_of_pod, |world| &world.unmounted);
        self.troubles(UNATTACHED, World::unit_of_pod, |world| &world.unattached);
        self.troubles(UNMADE, |world, at| world.children(Kind::Deployment).unit(at), |world| &world.unmade);
        self.troubles(UNBEGUN, |world, at| world.children(Kind::Job).unit(at), |world| &world.unbegun);
    }

    /// Events of pods, or of what makes them, by name. One may be told before its pod is, or with it in two lists: it is kept,
    /// under no pool, and whoever looks at the pod finds it by its name. Every pod of the cluster may have such events, so of
    /// those that are nobody's only [`STRANGERS`] are kept; whoever told them says the others again.
    fn troubles(
        &mut self,
        fields: &str,
        unit_of: fn(&World, &Name) -> Option<Unit>,
        mirror: fn(&World) -> &Mirror<Refusal>,
    ) {
        let events = watch(self.api::<CoreEvent>(), config().fields(fields));
        let events = events.modify(|event| {
            event.metadata.name = subject(&event.involved_object);
        });
        let refused = move |event: &CoreEvent, world: &World| {
            let (subject, refusal) = refusal(event)?;
            let at = Name::new(event.namespace()?, subject);
            let known = unit_of(world, &at);
            let room = mirror(world).count(|unit| unit.pool.is_empty()) < STRANGERS;
            let nobodys = || room.then(|| Unit { namespace: at.namespace.clone(), pool: String::new() });
            Some((known.or_else(nobodys)?, refusal))
        };
        let whom = Follow { feed: self.feed, tasks: self.tasks, scope: self.scope.clone() };
        // Asked again: the pod may have come while its event was put away.
        follow(whom, events, mirror, refused, move |feed, unit, subject| {
            let known = unit_of(&feed.world, &Name::new(unit.namespace.clone(), subject));
            let own = || Some(unit.clone()).filter(|unit| !unit.pool.is_empty());
            known.or_else(own).iter().for_each(|unit| feed.queue.add(unit));
        });
    }

    /// Pods of others: what they ask for is looked at when something else is.
    fn loads(&mut self) {
        let of_others = config().labels(&format!("{MANAGED_BY}!={MANAGER}")).fields(ON_NODES);
        let pods = watch(self.api::<Pod>(), of_others);
        let prune = |object: &Pod, _: &World| Some((Unit::default(), load(object)?));
        let whom = Follow { feed: self.feed, tasks: self.tasks, scope: self.scope.clone() };
        follow(whom, pods, |world| &world.loads, prune, |_, _, _| ());
    }

    fn claims(&mut self) {
        let claims = watch(self.api::<ResourceClaim>(), ours());
        let claim = |claim: &ResourceClaim, world: &World| {
            let at = Name::new(claim.namespace()?, claim.name_any());
            let before = world.claims.get(&at);
            let entry = ClaimEntry::of(claim, before.as_ref());
            Some((ChildSeen::unit(&claim.metadata)?, entry))
        };
        self.follow(claims, |world| &world.claims, claim);
    }

    fn child<K>(&mut self, kind: Kind)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let events = watch(self.api::<PartialObjectMeta<K>>(), ours());
        let prune = move |object: &PartialObjectMeta<K>, world: &World| {
            let at = Name::new(object.metadata.namespace.clone()?, object.metadata.name.clone()?);
            let before = world.children(kind).get(&at);
            let child = ChildSeen::of(&object.metadata, before.as_ref());
            Some((ChildSeen::unit(&object.metadata)?, child))
        };
        self.follow(events, mirror_of(kind), prune);
    }
}

const fn mirror_of(kind: Kind) -> fn(&World) -> &Mirror<ChildSeen> {
    match kind {
        Kind::ConfigMap => |world| world.children(Kind::ConfigMap),
        Kind::Deployment => |world| world.children(Kind::Deployment),
        Kind::Job => |world| world.children(Kind::Job),
        Kind::NetworkPolicy => |world| world.children(Kind::NetworkPolicy),
        Kind::PodDisruptionBudget => |world| world.children(Kind::PodDisruptionBudget),
        Kind::ResourceClaim | Kind::Service => |world| world.children(Kind::Service),
    }
}

/// Nodes and devices: whoever has a claim on one is concerned.
fn nodes(client: &Client, feed: &Feed, tasks: &mut JoinSet<()>) {
    let world = feed.world.clone();
    let nodes = watch(Api::<Node>::all(client.clone()), config()).inspect(move |told| match told {
        // A list that is under way is no view yet.
        Ok(Event::Init | Event::InitApply(_)) => {}
        told => {
            let now = Timestamp::now().as_second();
            world.absence.heard(told.is_ok(), now);
            // What is told may end an outage: it lasted until now.
            world.outage(now);
        }
    });
    let prune = |object: &Node, _: &World| Some((Unit::default(), node::node(object)));
    follow(
        Follow { feed, tasks: &mut *tasks, scope: None },
        nodes,
        |world| &world.nodes,
        prune,
        |feed, _, name| {
            let on = |claim: &ClaimEntry| {
                let device = claim.claim.device.as_ref();
                device.is_some_and(|device| device.node.as_deref() == Some(name))
            };
            concerned(feed, on);
        },
    );
    let slices = watch(Api::<ResourceSlice>::all(client.clone()), config());
    let prune = |object: &ResourceSlice, _: &World| Some((Unit::default(), Slice::of(object)?));
    follow(
        Follow { feed, tasks, scope: None },
        slices,
        |world| &world.slices,
        prune,
        |feed, _, name| {
            let Some(slice) = feed.world.slices.get(&Name::new("", name)) else { return };
            let on = |claim: &ClaimEntry| {
                claim.device.as_ref().is_some_and(|id| id.driver == slice.driver && id.pool == slice.pool)
            };
            concerned(feed, on);
        },
    );
}

fn concerned(feed: &Feed, on: impl Fn(&ClaimEntry) -> bool) {
    for unit in feed.world.claims.all(|unit, claim| on(claim).then(|| unit.clone())) {
        feed.queue.add(&unit);
    }
}

/// Who follows, whom, and in which namespace.
struct Follow<'a> {
    feed: &'a Feed,
    tasks: &'a mut JoinSet<()>,
    scope: Option<String>,
}

/// Starts a task that keeps a mirror like what `events` tell, and calls `changed` with the unit and the name of whatever
/// changes.
fn follow<O, V>(
    Follow { feed, tasks, scope }: Follow<'_>,
    events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
    mirror: fn(&World) -> &Mirror<V>,
    prune: impl Fn(&O, &World) -> Option<(Unit, V)> + Send + 'static,
    changed: impl Fn(&Feed, &Unit, &str) + Send + 'static,
) where
    O: ResourceExt + Debug + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    let feed = feed.clone();
    feed.pending.fetch_add(1, Ordering::SeqCst);
    tasks.spawn(async move {
        let mut follower =
            Follower { feed, scope, mirror, prune, changed, listed: HashSet::new(), synced: false };
        let events = events.default_backoff();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => follower.take(event),
                Err(error) => tracing::warn!(%error, kind = std::any::type_name::<O>(), "a watch broke"),
            }
        }
    });
}

struct Follower<V, P, C> {
    feed: Feed,
    scope: Option<String>,
    mirror: fn(&World) -> &Mirror<V>,
    prune: P,
    changed: C,
    /// What the list that is under way has named.
    listed: HashSet<Name>,
    synced: bool,
}

impl<V: Clone, P, C: Fn(&Feed, &Unit, &str)> Follower<V, P, C> {
    fn take<O: ResourceExt>(&mut self, event: Event<O>)
    where
        P: Fn(&O, &World) -> Option<(Unit, V)>,
    {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(object) => {
                self.listed.insert(name(&object));
                self.put(&object);
            }
            Event::InitDone => self.listed(),
            Event::Apply(object) => self.put(&object),
            Event::Delete(object) => {
                let at = name(&object);
                if let Some(unit) = (self.mirror)(&self.feed.world).remove(&at) {
                    (self.changed)(&self.feed, &unit, &at.name);
                }
            }
        }
    }

    fn put<O: ResourceExt>(&self, object: &O)
    where
        P: Fn(&O, &World) -> Option<(Unit, V)>,
    {
        let Some((unit, value)) = (self.prune)(object, &self.feed.world) else { return };
        let at = name(object);
        let own = at.name.clone();
        if (self.mirror)(&self.feed.world).put(at, unit.clone(), value) {
            (self.changed)(&self.feed, &unit, &own);
        }
    }

    fn listed(&mut self) {
        let listed = std::mem::take(&mut self.listed);
        for unit in (self.mirror)(&self.feed.world).retain(self.scope.as_deref(), &listed) {
            (self.changed)(&self.feed, &unit, "");
        }
        if !std::mem::replace(&mut self.synced, true) && self.feed.pending.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.feed.ready.notify_waiters();
        }
    }
}

fn name(object: &impl ResourceExt) -> Name {
    Name::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Pages of a list are small: an object as it comes, with who has set which of its fields, is many times what is kept of it,
/// and all watches list at once.
fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Pods of ours that are slots, or inspections.
fn component(what: &str) -> watcher::Config {
    config().labels(&format!("{MANAGED_BY}={MANAGER},{COMPONENT}={what}"))
}

/// Objects of ours.
fn ours() -> watcher::Config {
    config().labels(&format!("{MANAGED_BY}={MANAGER}"))
}

/// Who set which field of our own kinds is of no use here.
fn trim(object: &mut impl ResourceExt) {
    object.managed_fields_mut().clear();
}
