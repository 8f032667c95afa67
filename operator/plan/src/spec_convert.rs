//! Converts spec fields to the sidecar's configuration and directives, for pods and for local processes.
//!
//! Enums of the CRDs and of the wire have the same names and values, and are two types each: those of the CRDs have a
//! schema and keep to Kubernetes' conventions, those of the wire are read by sidecars, which know no Kubernetes. No
//! crate of the two depends on the other, so the conversions are here.

use sluice_types::pool::{
    Sharing as Written, SharingMode, SliceOrder as WrittenOrder, VictimRule as WrittenVictimRule,
};
use sluice_types::{ModelTenantSpec, Quantity};
use sluice_wire::config::{LimitsConfig, MemoryConfig, SloConfig};
use sluice_wire::directive::{Sharing, SliceOrder, VictimRule};

/// Converts the sharing settings.
pub fn sharing(written: &Written) -> Sharing {
    let temporal = written.temporal.clone().unwrap_or_default();
    match written.mode {
        SharingMode::Spatial => Sharing::Spatial,
        SharingMode::Isolated => Sharing::Isolated,
        SharingMode::Temporal => Sharing::Temporal {
            order: match temporal.order {
                WrittenOrder::RoundRobin => SliceOrder::RoundRobin,
                WrittenOrder::Priority => SliceOrder::Priority,
            },
            min_quantum_ms: to_u32(temporal.min_quantum_milliseconds),
            max_quantum_ms: to_u32(temporal.max_quantum_milliseconds),
        },
    }
}

/// Converts a pool's victim rule to the rule in directives.
pub(crate) fn victim_rule(written: WrittenVictimRule) -> VictimRule {
    match written {
        WrittenVictimRule::MostRecentlyUsed => VictimRule::MostRecentlyUsed,
        WrittenVictimRule::LeastRecentlyUsed => VictimRule::LeastRecentlyUsed,
        WrittenVictimRule::FixedOrder => VictimRule::FixedOrder,
    }
}

/// Converts the bounds on a tenant's memory.
pub fn memory(spec: &ModelTenantSpec) -> MemoryConfig {
    MemoryConfig {
        guaranteed_kv_bytes: spec.memory.guaranteed_kv.as_ref().map(Quantity::bytes),
        kv_limit_bytes: spec.memory.kv_limit.as_ref().map(Quantity::bytes),
        host_kv_bytes: spec.memory.host_kv.bytes(),
        max_remapped_percent: to_u32(spec.memory.max_remapped_percent),
    }
}

/// Converts a tenant's objectives.
pub fn slo(spec: &ModelTenantSpec) -> SloConfig {
    SloConfig {
        ttft_milliseconds: to_u32(spec.slo.ttft_milliseconds),
        tbt_milliseconds: to_u32(spec.slo.tbt_milliseconds),
        allowed_miss_permille: to_u32(spec.slo.allowed_miss_permille),
        window_seconds: to_u32(spec.slo.window_seconds),
        max_pause_seconds: to_u32(spec.slo.max_pause_seconds),
    }
}

/// Converts the limits on a tenant's clients.
pub fn limits(spec: &ModelTenantSpec) -> LimitsConfig {
    LimitsConfig {
        max_queued_requests: to_u32(spec.limits.max_queued_requests),
        max_streams: to_u32(spec.limits.max_streams),
        max_prompt_tokens: spec.limits.max_prompt_tokens.map(to_u32),
        hold_seconds: to_u32(spec.limits.hold_seconds),
        max_body_bytes: spec.limits.max_body_bytes.bytes(),
        ..LimitsConfig::default()
    }
}

/// Converts a CRD count, which is signed by Kubernetes' convention; the schema sets its lower bound.
pub fn to_u32(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
