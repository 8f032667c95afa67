//! Caches kinds, names and digests of rendered objects, so that unchanged objects are not rendered again.
//!
//! Without the cache, a reconciliation after a change of one tenant would render and hash the objects of thousands of
//! tenants.

use std::hash::{DefaultHasher, Hash, Hasher};

use sluice_plan::objects::{Child, ChildKind, PlacedSlot};
use sluice_plan::pool_plan::{GpuPlan, TenantPlan};
use sluice_types::GpuPool;

use super::Reconciler;
use super::lock::lock;
use super::own_kind::OwnKind;
use super::rendered_objects::RenderedObjects;
use crate::cache::NamespacedName;

/// Returns the digest of the inputs of a tenant's objects: the specs, by uid and generation, and the plan's values.
pub(super) fn tenant_digest(pool: &GpuPool, planned: &TenantPlan<'_>, placed: &[PlacedSlot<'_>]) -> u64 {
    let of = |one: &PlacedSlot<'_>| {
        format!("{:?}", (one.index, one.gpu, one.epoch, one.model, one.demand, one.share_bytes))
    };
    let slots: Vec<String> = placed.iter().map(of).collect();
    let metadata = &planned.tenant.metadata;
    digest(pool, &(&metadata.uid, metadata.generation, slots))
}

/// Returns the digest of the inputs of a GPU's objects.
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
    /// Returns kinds and names of the objects that were rendered from the same inputs, if all of them are applied and
    /// unchanged.
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

    /// Records the rendered objects.
    pub(super) fn record_render<'a>(
        &self,
        key: (OwnKind, NamespacedName),
        of: u64,
        children: impl Iterator<Item = &'a Child>,
    ) {
        let short = |child: &Child| (child.kind, child.name.as_str().into(), child.digest);
        let most = 2 * (self.cache.tenants.len() + self.cache.claims.len()) + 1000;
        let mut drawn = lock(&self.reconcile_cache.rendered);
        // No event removes the entries of deleted tenants.
        if drawn.len() > most {
            drawn.clear();
        }
        drawn.insert(key, RenderedObjects { digest: of, children: children.map(short).collect() });
    }
}
