//! The observed cluster state: caches that watches keep up to date.

mod child;
mod claim;
mod device;
mod missing_nodes;
mod node;
mod node_monitor;
mod pod;
mod pod_request;
mod pool_key;
mod store;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_plan::objects::ChildKind;
use sluice_types::{GpuPool, ModelTenant};

pub use self::child::ObservedChild;
pub use self::claim::ClaimEntry;
pub use self::device::DeviceId;
pub use self::pod::{Inspection, PodWarning};
pub use self::pool_key::PoolKey;
pub use self::store::{NamespacedName, Store};
pub use self::watch::{WatchContext, watch_all};
use sluice_plan::observed::{ObservedNode, ObservedPod, ObservedSlot};

/// All caches.
#[derive(Debug)]
pub struct ClusterCache {
    /// Pools.
    pub pools: Store<Arc<GpuPool>>,
    /// Tenants.
    pub tenants: Store<Arc<ModelTenant>>,
    /// Claims of pools.
    pub claims: Store<ClaimEntry>,
    /// Pods of slots.
    pub pods: Store<ObservedPod>,
    /// Results of inspection pods.
    pub inspections: Store<Inspection>,
    /// Why claims of pods could not be prepared, by the name of the pod.
    pub prepare_failures: Store<PodWarning>,
    /// Why volumes of pods could not be mounted, by the name of the pod.
    pub mount_failures: Store<PodWarning>,
    /// Why volumes could not be attached to a pod's node, by pod.
    pub attach_failures: Store<PodWarning>,
    /// Why a slot's pod cannot be created, by the name of its Deployment.
    pub pod_create_failures: Store<PodWarning>,
    /// Why an inspection's pod cannot be created, by the name of its Job.
    pub job_create_failures: Store<PodWarning>,
    /// Nodes. Their pool key is empty.
    pub nodes: Store<ObservedNode>,
    /// Missing nodes and outages.
    pub node_monitor: node_monitor::NodeMonitor,
    /// Memory requests of foreign pods. Their pool key is empty.
    pub pod_requests: Store<pod_request::PodRequest>,
    /// Devices of ResourceSlices, by slice name. Their pool key is empty.
    pub slices: Store<device::DeviceSlice>,
    /// All other applied objects, by kind.
    children: BTreeMap<ChildKind, Store<ObservedChild>>,
}

impl Default for ClusterCache {
    fn default() -> Self {
        let children = ChildKind::ALL.into_iter().filter(|kind| *kind != ChildKind::ResourceClaim);
        ClusterCache {
            pools: Store::versioned(|a, b| a == b, |a, b| is_newer(&a.metadata, &b.metadata)),
            tenants: Store::versioned(|a, b| a == b, |a, b| is_newer(&a.metadata, &b.metadata)),
            claims: Store::versioned(ClaimEntry::is_equivalent, |a, b| a.child.is_newer_than(&b.child)),
            pods: Store::new(|a, b| a == b),
            inspections: Store::new(|a, b| a == b),
            prepare_failures: Store::new(|a, b| a == b),
            mount_failures: Store::new(|a, b| a == b),
            attach_failures: Store::new(|a, b| a == b),
            pod_create_failures: Store::new(|a, b| a == b),
            job_create_failures: Store::new(|a, b| a == b),
            nodes: Store::new(|a, b| a == b),
            node_monitor: node_monitor::NodeMonitor::default(),
            pod_requests: Store::new(|a, b| a == b),
            slices: Store::new(|a, b| a == b),
            children: children
                .map(|kind| {
                    (kind, Store::versioned(ObservedChild::is_equivalent, ObservedChild::is_newer_than))
                })
                .collect(),
        }
    }
}

/// Whether `known` is a later version of the same object than `other`.
fn is_newer(known: &ObjectMeta, other: &ObjectMeta) -> bool {
    known.uid == other.uid && child::resource_version(known) > child::resource_version(other)
}

impl ClusterCache {
    /// Returns the cache of one kind of children, except claims.
    pub fn children(&self, kind: ChildKind) -> &Store<ObservedChild> {
        self.children.get(&kind).expect("claims have a mirror of their own")
    }

    /// Returns a child by its name.
    pub fn child(&self, kind: ChildKind, at: &NamespacedName) -> Option<ObservedChild> {
        match kind {
            ChildKind::ResourceClaim => self.claims.get(at).map(|entry| entry.child),
            kind => self.children(kind).get(at),
        }
    }

    /// Reads a child without cloning it.
    pub fn with_child<T>(
        &self,
        kind: ChildKind,
        at: &NamespacedName,
        of: impl FnOnce(&ObservedChild) -> T,
    ) -> Option<T> {
        match kind {
            ChildKind::ResourceClaim => self.claims.with(at, |entry| of(&entry.child)),
            kind => self.children(kind).with(at, of),
        }
    }

    /// Calls `see` with the name and state of each child of one kind in a pool.
    pub fn for_each_child(&self, kind: ChildKind, unit: &PoolKey, mut see: impl FnMut(&str, &ObservedChild)) {
        match kind {
            ChildKind::ResourceClaim => self.claims.for_each(unit, |name, entry| see(name, &entry.child)),
            kind => self.children(kind).for_each(unit, see),
        }
    }

    /// Returns the pool of a slot's or an inspection's pod.
    pub fn pool_of_pod(&self, at: &NamespacedName) -> Option<PoolKey> {
        self.pods.pool_key(at).or_else(|| self.inspections.pool_key(at))
    }

    /// Returns the slots of a pool that have a Deployment.
    pub fn slots(&self, unit: &PoolKey) -> Vec<ObservedSlot> {
        let slot = |child: &ObservedChild| {
            let claim = child.claim.clone().filter(|_| !child.is_deleting)?;
            Some(ObservedSlot { tenant: child.tenant.clone()?, index: child.slot?, claim })
        };
        let mut all = Vec::new();
        self.children(ChildKind::Deployment).for_each(unit, |_, child| all.extend(slot(child)));
        all
    }

    /// Returns the memory requests per node, bytes, without pods that are being deleted or have ended.
    pub fn requested_bytes(&self) -> BTreeMap<String, u64> {
        let mut nodes = BTreeMap::<String, u64>::new();
        let mut add = |node: &str, bytes: u64| match nodes.get_mut(node) {
            Some(sum) => *sum = sum.saturating_add(bytes),
            None => drop(nodes.insert(node.to_owned(), bytes)),
        };
        self.pod_requests.filter_map(|_, load| -> Option<()> {
            add(&load.node, load.bytes);
            None
        });
        self.pods.filter_map(|_, pod| -> Option<()> {
            add(pod.node.as_ref().filter(|_| pod.is_current())?, pod.memory_bytes);
            None
        });
        nodes
    }

    /// Returns the number of objects in each cache, by kind.
    pub fn object_counts(&self) -> Vec<(&'static str, usize)> {
        let children = self.children.iter().map(|(kind, mirror)| (kind.as_str(), mirror.len()));
        let own = [
            ("GpuPool", self.pools.len()),
            ("ModelTenant", self.tenants.len()),
            (ChildKind::ResourceClaim.as_str(), self.claims.len()),
            ("Pod", self.pods.len()),
            ("Node", self.nodes.len()),
            ("ResourceSlice", self.slices.len()),
        ];
        children.chain(own).collect()
    }

    /// Returns the keys of all pools and of all tenants' pools.
    pub fn pool_keys(&self) -> std::collections::BTreeSet<PoolKey> {
        self.pools.pool_keys().into_iter().chain(self.tenants.pool_keys()).collect()
    }
}
