//! Directives: what the sidecar of each slot on a GPU receives about its peers. The operator and `sluice up` derive
//! them here.
//!
//! A directive follows from the specs, the placement and the pod addresses. Only [`Directive::fallback_order`]
//! follows from sidecar reports. [`next_directive`] limits changes of the order alone to one every
//! [`MIN_REORDER_SECONDS`].

use std::net::SocketAddr;
use std::sync::Arc;

use sluice_types::tenant::EngineKind;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::directive::{self, Directive, MAX_PEERS, PeerInfo, Sharing, TenantRule, VictimRule};
use sluice_wire::state::Activity;

use crate::objects::name;
use crate::spec_convert::{to_u32, victim_rule};

/// Minimum time between two changes of the order alone, seconds.
pub const MIN_REORDER_SECONDS: i64 = 30;

/// A slot of a GPU.
#[derive(Clone, Debug)]
pub struct SlotPeer<'a> {
    /// Its tenant.
    pub tenant: &'a ModelTenant,
    /// Memory that it may hold without borrowing, bytes.
    pub share_bytes: u64,
    /// Whether the share is assigned. `false` = a placeholder because sizes are not known yet.
    pub is_share_assigned: bool,
    /// Memory that it cannot lend while it is awake, bytes.
    pub floor_bytes: u64,
    /// Its sidecar.
    pub sidecar: PeerSidecar,
}

/// Where the sidecar of a slot answers, and when its tenant was last used.
#[derive(Clone, Debug)]
pub struct PeerSidecar {
    /// Uid of its pod; `None` = no cluster.
    pub pod_uid: Option<String>,
    /// Address of its admin API.
    pub admin: SocketAddr,
    /// When its tenant was last used, as it reported; `None` = no report yet.
    pub activity: Option<Activity>,
}

impl SlotPeer<'_> {
    fn namespace(&self) -> &str {
        self.tenant.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn lender(&self) -> Lender<'_> {
        let (name, priority) = (name(self.tenant), self.tenant.spec.priority);
        Lender { name, priority, activity: self.sidecar.activity.as_ref() }
    }

    fn tenant_rule(&self) -> TenantRule {
        // A proxied engine manages its own memory.
        let native = self.tenant.spec.engine.kind == EngineKind::Native;
        tenant_rule(self.tenant, Some(self.share_bytes).filter(|_| self.is_share_assigned && native))
    }
}

/// A GPU and those of its slots whose sidecars have an address.
#[derive(Clone, Debug)]
pub struct GpuPeers<'a> {
    /// Its pool.
    pub pool: &'a GpuPool,
    /// The sharing settings in force.
    pub sharing: Sharing,
    /// Uid of its claim, once the claim exists.
    pub claim_uid: Option<&'a str>,
    /// Its UUID, if its driver publishes one.
    pub gpu_uuid: Option<&'a str>,
    /// Its slots.
    pub peers: Vec<SlotPeer<'a>>,
}

impl GpuPeers<'_> {
    /// Returns the directive for `self.peers[member]`. Epoch and sequence are 0: the sender sets both.
    pub fn directive(&self, member: usize) -> Directive {
        let others = self.peers.iter().enumerate().filter(|(index, _)| *index != member);
        let mut others: Vec<&SlotPeer<'_>> = others.map(|(_, other)| other).collect();
        // Sorted by name, as `FixedOrder` requires.
        others.sort_by_key(|other| name(other.tenant));
        others.truncate(MAX_PEERS);
        let peers = others.iter().map(|other| self.peer_info(other)).collect();
        let remap = &self.pool.spec.remap;
        let victim = victim_rule(remap.victim);
        sort_victims(&mut others, victim, |other| other.lender());
        Directive {
            version: directive::VERSION,
            epoch: 0,
            sequence: 0,
            policy: self.pool.spec.policy.as_str().to_owned(),
            tenant: self.peers[member].tenant_rule(),
            gpu_uuid: self.gpu_uuid.map(str::to_owned),
            sharing: self.sharing,
            victim,
            min_residence_ms: to_u32(remap.min_residence_milliseconds),
            revoke_bound_ms: to_u32(remap.revoke_bound_milliseconds),
            peers,
            fallback_order: others.iter().map(|other| name(other.tenant).to_owned()).collect(),
        }
    }

    fn peer_info(&self, other: &SlotPeer<'_>) -> PeerInfo {
        PeerInfo {
            namespace: other.namespace().to_owned(),
            name: name(other.tenant).to_owned(),
            pod_uid: other.sidecar.pod_uid.clone(),
            claim_uid: self.claim_uid.map(str::to_owned),
            admin: other.sidecar.admin,
            priority: other.tenant.spec.priority,
            share_bytes: other.share_bytes,
            // Directives with a floor above the share are invalid. A sidecar whose floor does not fit reports that
            // itself.
            floor_bytes: other.floor_bytes.min(other.share_bytes),
        }
    }
}

/// Returns the tenant's own part of its directive. `share_bytes`: `None` = not known yet.
fn tenant_rule(tenant: &ModelTenant, share_bytes: Option<u64>) -> TenantRule {
    let spec = &tenant.spec;
    TenantRule {
        priority: spec.priority,
        max_remapped_percent: to_u32(spec.memory.max_remapped_percent),
        share_bytes,
        hibernate_after_seconds: Some(to_u32(spec.idle.hibernate_after_seconds)),
        idle_after_seconds: to_u32(spec.idle.after_seconds),
    }
}

/// What the order of lenders depends on.
pub(crate) struct Lender<'a> {
    /// Name of its tenant.
    pub name: &'a str,
    /// Priority of its tenant.
    pub priority: i32,
    /// When it was last used, as it reported; `None` = no report.
    pub activity: Option<&'a Activity>,
}

/// Sorts lenders, first victims first: by [`victim_rank`], then by name. `FixedOrder` is by name alone.
pub(crate) fn sort_victims<T>(all: &mut [T], victim: VictimRule, lender: impl Fn(&T) -> Lender<'_>) {
    all.sort_by(|a, b| {
        let (a, b) = (lender(a), lender(b));
        let rank = |one: &Lender<'_>| victim_rank(one.activity, one.priority, victim);
        match victim {
            VictimRule::FixedOrder => a.name.cmp(b.name),
            VictimRule::MostRecentlyUsed | VictimRule::LeastRecentlyUsed => {
                rank(&a).cmp(&rank(&b)).then(a.name.cmp(b.name))
            }
        }
    });
}

/// Returns the sort key of a tenant as a lender, first victims first: inactive tenants, then low priorities, then by
/// `victim`. A tenant without a report sorts last among equals.
fn victim_rank(activity: Option<&Activity>, priority: i32, victim: VictimRule) -> impl Ord + use<> {
    let recency = match (victim, activity.and_then(|activity| activity.last_used_unix_ms)) {
        (_, None) => (true, 0),
        (VictimRule::MostRecentlyUsed, Some(used)) => (false, u64::MAX - used),
        (VictimRule::LeastRecentlyUsed | VictimRule::FixedOrder, Some(used)) => (false, used),
    };
    (activity.is_none_or(|activity| activity.inactive_since_unix_ms.is_none()), priority, recency)
}

/// The directive that was sent last, and when its order last changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectiveState {
    /// The directive, with epoch and sequence 0; shared with the sender, because there are thousands.
    pub directive: Arc<Directive>,
    /// Seconds since 1970.
    pub order_changed_at: i64,
}

/// Returns the directive to send now, given the last one; `None` = nothing new. A change of the order alone waits
/// until [`MIN_REORDER_SECONDS`] have passed.
pub fn next_directive(
    before: Option<&DirectiveState>,
    wanted: Directive,
    now: i64,
) -> Option<DirectiveState> {
    let Some(before) = before else {
        return Some(DirectiveState { directive: Arc::new(wanted), order_changed_at: now });
    };
    let same_order = wanted.fallback_order == before.directive.fallback_order;
    let same = same_order && wanted == *before.directive;
    let same_rest = || {
        let wanted = Directive { fallback_order: before.directive.fallback_order.clone(), ..wanted.clone() };
        wanted == *before.directive
    };
    if same || (now < before.order_changed_at + MIN_REORDER_SECONDS && same_rest()) {
        return None;
    }
    let ordered_at = if same_order { before.order_changed_at } else { now };
    Some(DirectiveState { directive: Arc::new(wanted), order_changed_at: ordered_at })
}
