//! What the cluster looks like, as far as it matters here: mirrors that watches keep up to date.

mod child;
mod claim;
mod device;
mod load;
mod mirror;
mod node;
mod outage;
mod pod;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_plan::objects::Kind;
use sluice_types::{GpuPool, ModelTenant};

pub use self::child::ChildSeen;
pub use self::claim::ClaimEntry;
pub use self::device::DeviceId;
pub use self::mirror::{Mirror, Name};
pub use self::pod::{Inspection, Refusal};
pub use self::watch::{Feed, watch_all};
use sluice_plan::seen::{NodeSeen, PodSeen, SlotSeen};

/// What is reconciled as one: a pool and the tenants that refer to it, whether or not the pool is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// Namespace of all of them.
    pub namespace: String,
    /// Name of the pool.
    pub pool: String,
}

/// All mirrors.
#[derive(Debug)]
pub struct World {
    /// Pools.
    pub pools: Mirror<Arc<GpuPool>>,
    /// Tenants.
    pub tenants: Mirror<Arc<ModelTenant>>,
    /// Claims of ours.
    pub claims: Mirror<ClaimEntry>,
    /// Pods of ours.
    pub pods: Mirror<PodSeen>,
    /// What pods of inspections said.
    pub inspections: Mirror<Inspection>,
    /// Why claims of pods could not be prepared, by the name of the pod.
    pub refusals: Mirror<Refusal>,
    /// Why volumes of pods could not be mounted, by the name of the pod.
    pub unmounted: Mirror<Refusal>,
    /// Volumes that could not be brought to a pod's node, by pod.
    pub unattached: Mirror<Refusal>,
    /// Why a slot's pod cannot be made, by the name of its Deployment.
    pub unmade: Mirror<Refusal>,
    /// Why an inspection's pod cannot be made, by the name of its Job.
    pub unbegun: Mirror<Refusal>,
    /// Nodes. Their unit is empty.
    pub nodes: Mirror<NodeSeen>,
    /// What is known of nodes that are not there.
    pub absence: outage::Absence,
    /// What pods of others ask nodes for. Their unit is empty.
    pub loads: Mirror<load::Load>,
    /// Devices of ResourceSlices, by the name of their slice. Their unit is empty.
    pub slices: Mirror<device::Slice>,
    /// All other objects of ours, by kind.
    children: BTreeMap<Kind, Mirror<ChildSeen>>,
}

impl Default for World {
    fn default() -> Self {
        let children = Kind::ALL.into_iter().filter(|kind| *kind != Kind::ResourceClaim);
        World {
            pools: Mirror::of_views(|a, b| a == b, |a, b| is_later(&a.metadata, &b.metadata)),
            tenants: Mirror::of_views(|a, b| a == b, |a, b| is_later(&a.metadata, &b.metadata)),
            claims: Mirror::of_views(ClaimEntry::same, |a, b| a.child.later_than(&b.child)),
            pods: Mirror::new(|a, b| a == b),
            inspections: Mirror::new(|a, b| a == b),
            refusals: Mirror::new(|a, b| a == b),
            unmounted: Mirror::new(|a, b| a == b),
            unattached: Mirror::new(|a, b| a == b),
            unmade: Mirror::new(|a, b| a == b),
            unbegun: Mirror::new(|a, b| a == b),
            nodes: Mirror::new(|a, b| a == b),
            absence: outage::Absence::default(),
            loads: Mirror::new(|a, b| a == b),
            slices: Mirror::new(|a, b| a == b),
            children: children
                .map(|kind| (kind, Mirror::of_views(ChildSeen::same, ChildSeen::later_than)))
                .collect(),
        }
    }
}

/// Whether `known` is a later view of the same object than `other`.
fn is_later(known: &ObjectMeta, other: &ObjectMeta) -> bool {
    known.uid == other.uid && child::version(known) > child::version(other)
}

impl World {
    /// The mirror of a kind of children, claims aside.
    pub fn children(&self, kind: Kind) -> &Mirror<ChildSeen> {
        self.children.get(&kind).expect("claims have a mirror of their own")
    }

    /// A child by its name.
    pub fn child(&self, kind: Kind, at: &Name) -> Option<ChildSeen> {
        match kind {
            Kind::ResourceClaim => self.claims.get(at).map(|entry| entry.child),
            kind => self.children(kind).get(at),
        }
    }

    /// Something of a child, without a copy of it.
    pub fn with_child<T>(&self, kind: Kind, at: &Name, of: impl FnOnce(&ChildSeen) -> T) -> Option<T> {
        match kind {
            Kind::ResourceClaim => self.claims.with(at, |entry| of(&entry.child)),
            kind => self.children(kind).with(at, of),
        }
    }

    /// Goes through a unit's children of one kind: names, and what is known of each.
    pub fn each_child(&self, kind: Kind, unit: &Unit, mut see: impl FnMut(&str, &ChildSeen)) {
        match kind {
            Kind::ResourceClaim => self.claims.each_of(unit, |name, entry| see(name, &entry.child)),
            kind => self.children(kind).each_of(unit, see),
        }
    }

    /// The unit of a pod of ours, a slot's or an inspection's.
    pub fn unit_of_pod(&self, at: &Name) -> Option<Unit> {
        self.pods.unit(at).or_else(|| self.inspections.unit(at))
    }

    /// The slots of a unit that have a Deployment.
    pub fn slots(&self, unit: &Unit) -> Vec<SlotSeen> {
        let slot = |child: &ChildSeen| {
            let claim = child.claim.clone().filter(|_| !child.deleting)?;
            Some(SlotSeen { tenant: child.tenant.clone()?, index: child.slot?, claim })
        };
        let mut all = Vec::new();
        self.children(Kind::Deployment).each_of(unit, |_, child| all.extend(slot(child)));
        all
    }

    /// What pods ask of each node, bytes; those that are on their way out, or over, do not count.
    pub fn requested_bytes(&self) -> BTreeMap<String, u64> {
        let mut nodes = BTreeMap::<String, u64>::new();
        let mut add = |node: &str, bytes: u64| match nodes.get_mut(node) {
            Some(sum) => *sum = sum.saturating_add(bytes),
            None => drop(nodes.insert(node.to_owned(), bytes)),
        };
        self.loads.all(|_, load| -> Option<()> {
            add(&load.node, load.bytes);
            None
        });
        self.pods.all(|_, pod| -> Option<()> {
            add(pod.node.as_ref().filter(|_| pod.stays())?, pod.memory_bytes);
            None
        });
        nodes
    }

    /// How many objects each mirror has, by what it mirrors.
    pub fn counts(&self) -> Vec<(&'static str, usize)> {
        let children = self.children.iter().map(|(kind, mirror)| (kind.as_str(), mirror.len()));
        let own = [
            ("GpuPool", self.pools.len()),
            ("ModelTenant", self.tenants.len()),
            (Kind::ResourceClaim.as_str(), self.claims.len()),
            ("Pod", self.pods.len()),
            ("Node", self.nodes.len()),
            ("ResourceSlice", self.slices.len()),
        ];
        children.chain(own).collect()
    }

    /// All units that there is anything of.
    pub fn units(&self) -> std::collections::BTreeSet<Unit> {
        self.pools.units().into_iter().chain(self.tenants.units()).collect()
    }
}
