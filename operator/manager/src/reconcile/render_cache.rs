//! What was rendered before, by kinds, names and digests alone: of what has not changed nothing is rendered again.
//!
//! A look at a pool of thousands of tenants after a change of one would else render and hash all of them.

use std::hash::{DefaultHasher, Hash, Hasher};

use sluice_plan::objects::{Child, ChildKind, PlacedSlot};
use sluice_plan::pool_plan::{GpuPlan, TenantPlan};
use sluice_types::GpuPool;

use super::{OwnKind, Reconciler, lock};
use crate::cache::NamespacedName;

/// What was rendered of a tenant or of a GPU.
#[derive(Debug)]
pub(super) struct RenderedObjects {
    /// Digest of all that it was rendered of.
    digest: u64,
    children: Box<[(ChildKind, Box<str>, u64)]>,
}

/// Digest of what a tenant's objects are rendered of: the specs, by uid and generation, and what the plan adds to them.
pub(super) fn tenant_digest(pool: &GpuPool, planned: &TenantPlan<'_>, placed: &[PlacedSlot<'_>]) -> u64 {
    let of = |one: &PlacedSlot<'_>| {
        format!("{:?}", (one.index, one.gpu, one.epoch, one.model, one.demand, one.share_bytes))
    };
    let slots: Vec<String> = placed.iter().map(of).collect();
    let metadata = &planned.tenant.metadata;
    digest(pool, &(&metadata.uid, metadata.generation, slots))
}

/// Digest of what a GPU's objects are rendered of.
pub(super) fn gpu_digest(pool: &GpuPool, planned: &GpuPlan) -> u64 {
    digest(pool, &format!("{planned:?}"))
}

fn digest(pool: &GpuPool, more: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&pool.metadata.uid, pool.metadata.generation).hash(&mut hasher);
    more.hash(&mut hasher);
    hasher.finish()
}

impl Reconciler {
    /// Kinds and names of what was rendered of the same as now, if all of it is there as it should be.
    pub(super) fn cached_children(
        &self,
        key: &(OwnKind, NamespacedName),
        of: u64,
    ) -> Option<Vec<(ChildKind, String)>> {
        let drawn = lock(&self.reconcile_cache.rendered);
        let known = drawn.get(key).filter(|known| known.digest == of)?;
        let there = |(kind, name, digest): &(ChildKind, Box<str>, u64)| {
            let at = NamespacedName::new(key.1.namespace.clone(), name.as_ref());
            self.cache.with_child(*kind, &at, |seen| Reconciler::is_applied(*digest, seen))
        };
        let all = known.children.iter().all(|child| there(child) == Some(true));
        all.then(|| known.children.iter().map(|(kind, name, _)| (*kind, name.as_ref().to_owned())).collect())
    }

    /// Keeps what was rendered.
    pub(super) fn record_render<'a>(
        &self,
        key: (OwnKind, NamespacedName),
        of: u64,
        children: impl Iterator<Item = &'a Child>,
    ) {
        let short = |child: &Child| (child.kind, child.name.as_str().into(), child.digest);
        let most = 2 * (self.cache.tenants.len() + self.cache.claims.len()) + 1000;
        let mut drawn = lock(&self.reconcile_cache.rendered);
        // Those of tenants that are gone are as many as there ever were.
        if drawn.len() > most {
            drawn.clear();
        }
        drawn.insert(key, RenderedObjects { digest: of, children: children.map(short).collect() });
    }
}
