//! Conditions of a tenant.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;
use sluice_plan::conditions::{ConditionResult, ConditionResults, ConditionStatus, conditions, summary};
use sluice_plan::placement::{SmallerFloor, UnfitReason, UnplacedReason};
use sluice_plan::validate::{ClusterFeatures, placement_conditions, rejections};
use sluice_types::conditions::{ConditionType, Reason};
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{host_pool, pool, tenant};

const TENANT: &[ConditionType] = ConditionType::OF_TENANT;
const NEW: ClusterFeatures = ClusterFeatures { has_image_volumes: true };

fn at(moment: &str) -> Time {
    serde_json::from_value(json!(moment)).unwrap()
}

fn morning() -> Time {
    at("2026-01-01T08:00:00Z")
}

fn evening() -> Time {
    at("2026-01-01T20:00:00Z")
}

fn all_well() -> ConditionResults {
    let kinds = TENANT.iter().filter(|kind| **kind != ConditionType::Ready);
    let truth = |kind: ConditionType| {
        if kind == ConditionType::Degraded { ConditionStatus::False } else { ConditionStatus::True }
    };
    kinds.map(|kind| (*kind, ConditionResult::as_expected(truth(*kind)))).collect()
}

fn of<'a>(conditions: &'a [Condition], kind: &str) -> &'a Condition {
    conditions.iter().find(|condition| condition.type_ == kind).unwrap()
}

#[test]
fn at_first_sight_all_conditions_are_there_and_unknown() {
    let first = conditions(TENANT, &[], &ConditionResults::new(), 4, &morning());
    let kinds: Vec<_> = first.iter().map(|condition| condition.type_.as_str()).collect();
    let documented =
        ["Accepted", "Placed", "DevicesAllocated", "WeightsLoaded", "Serving", "Degraded", "Ready"];
    assert_eq!(kinds, documented);
    for condition in &first {
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "NotObserved"));
        assert_eq!(condition.observed_generation, Some(4));
    }
}

#[test]
fn ready_is_the_first_step_that_does_not_hold() {
    assert_eq!(summary(TENANT, &all_well()).status, ConditionStatus::True);
    let mut findings = all_well();
    findings.insert(ConditionType::Serving, ConditionResult::not_met(Reason::WaitingForMemory, "late"));
    findings.insert(ConditionType::Placed, ConditionResult::not_met(Reason::Unschedulable, "no GPU"));
    let ready = summary(TENANT, &findings);
    assert_eq!(
        (ready.status, ready.reason, ready.message.as_str()),
        (ConditionStatus::False, Reason::Unschedulable, "Placed: no GPU")
    );
}

#[test]
fn degraded_tenant_can_be_ready() {
    let mut findings = all_well();
    let fault =
        ConditionResult { status: ConditionStatus::True, reason: Reason::MpsFault, message: String::new() };
    findings.insert(ConditionType::Degraded, fault);
    assert_eq!(summary(TENANT, &findings).status, ConditionStatus::True);
}

#[test]
fn condition_keeps_transition_time_until_status_changes() {
    let before = conditions(TENANT, &[], &all_well(), 1, &morning());
    let mut findings = all_well();
    findings.insert(ConditionType::Serving, ConditionResult::not_met(Reason::WaitingForMemory, ""));
    let after = conditions(TENANT, &before, &findings, 2, &evening());
    assert_eq!(of(&after, "Placed").last_transition_time, morning());
    assert_eq!(of(&after, "Serving").last_transition_time, evening());
    assert_eq!(of(&after, "Ready").last_transition_time, evening());
    assert_eq!(of(&after, "Placed").observed_generation, Some(2));
    // Another reason alone is no transition.
    findings.insert(ConditionType::Serving, ConditionResult::not_met(Reason::DriverRefused, ""));
    let later = conditions(TENANT, &after, &findings, 2, &at("2026-01-02T08:00:00Z"));
    assert_eq!(of(&later, "Serving").last_transition_time, evening());
    assert_eq!(of(&later, "Serving").reason, "DriverRefused");
}

#[test]
fn nothing_that_changes_nothing_is_written() {
    let before = conditions(TENANT, &[], &all_well(), 1, &morning());
    assert_eq!(conditions(TENANT, &before, &all_well(), 1, &evening()), before);
}

#[test]
fn message_is_truncated_to_api_server_limit() {
    let long = [(ConditionType::Placed, ConditionResult::not_met(Reason::Unschedulable, "ä".repeat(40_000)))];
    let found = conditions(TENANT, &[], &ConditionResults::from(long), 1, &morning());
    assert!(found.iter().all(|condition| condition.message.len() <= 32_768));
}

/// Returns the condition `Accepted`.
fn accepted(tenant: &ModelTenant, pool: Option<&GpuPool>, cluster: ClusterFeatures) -> ConditionResult {
    ConditionResult::met_unless(&rejections(tenant, pool, cluster))
}

#[test]
fn all_reasons_not_to_accept_a_tenant_are_in_one_message() {
    let spec = json!({
        "model": {"source": {"type": "File", "persistentVolumeClaim": null, "file": {"path": "."}}},
        "access": {"apiKeysFile": "k"},
        "gpuGroup": "x",
        "engine": {"kind": "Vllm"},
    });
    let found = accepted(&tenant("t", spec), Some(&host_pool()), NEW);
    assert_eq!((found.status, found.reason), (ConditionStatus::False, Reason::LocalOnly));
    assert_eq!(
        found.message,
        "spec.model.source.file works only for local processes (sluice up); \
         spec.access.apiKeysFile works only for local processes (sluice up); \
         spec.engine.image must name an image for a Vllm engine, such as vllm/vllm-openai with a version; \
         spec.gpuGroup: the pool has no group `x`; its groups are chat"
    );
}

#[test]
fn each_reason_not_to_accept_a_tenant_names_its_field() {
    let pool = host_pool();
    let file = json!({"model": {"source": {
        "type": "File", "persistentVolumeClaim": null, "file": {"path": "."}}}});
    let image = json!({"model": {"source": {
        "type": "Image", "persistentVolumeClaim": null, "image": {"reference": "r"}}}});
    let cases = [
        (json!({}), None, NEW, Reason::PoolNotFound, "spec.poolRef: no GpuPool `p`"),
        (
            json!({"engine": {"kind": "Vllm"}}),
            Some(&pool),
            NEW,
            Reason::EngineImageMissing,
            "spec.engine.image",
        ),
        (
            json!({"gpuGroup": "x"}),
            Some(&pool),
            NEW,
            Reason::GroupNotFound,
            "no group `x`; its groups are chat",
        ),
        (file, Some(&pool), NEW, Reason::LocalOnly, "spec.model.source.file"),
        (
            json!({"access": {"apiKeysFile": "k"}}),
            Some(&pool),
            NEW,
            Reason::LocalOnly,
            "spec.access.apiKeysFile",
        ),
        (
            image.clone(),
            Some(&pool),
            ClusterFeatures { has_image_volumes: false },
            Reason::ImageVolumesUnsupported,
            "1.36",
        ),
    ];
    for (spec, pool, cluster, reason, said) in cases {
        let found = accepted(&tenant("t", spec), pool, cluster);
        assert_eq!((found.status, found.reason), (ConditionStatus::False, reason));
        assert!(found.message.contains(said), "{}", found.message);
    }
    assert_eq!(accepted(&tenant("t", json!({})), Some(&pool), NEW).status, ConditionStatus::True);
    assert_eq!(accepted(&tenant("t", image), Some(&pool), NEW).status, ConditionStatus::True);
}

#[test]
fn a_tenant_is_placed_when_all_of_its_slots_are() {
    let found = |slots: &[(u32, Result<&'static str, &'static UnplacedReason>)]| {
        placement_conditions(slots.iter().copied())
    };
    assert_eq!(found(&[(0, Ok("a")), (1, Ok("b"))]).1.status, ConditionStatus::True);
    assert_eq!(found(&[]).1.status, ConditionStatus::True);
    static WAITS: UnplacedReason = UnplacedReason::ModelNotInspected;
    let (refused, waits) = found(&[(0, Err(&WAITS))]);
    assert_eq!(
        (refused, waits.status, waits.reason),
        (None, ConditionStatus::Unknown, Reason::ModelNotInspected)
    );
    let full = UnplacedReason::NoCapacity { tried: 3, gpu: "p-chat-1".into(), misfit: UnfitReason::Full };
    let full: &'static UnplacedReason = Box::leak(Box::new(full));
    let (refused, full) = found(&[(0, Ok("a")), (1, Err(full))]);
    assert_eq!((refused, full.status, full.reason), (None, ConditionStatus::False, Reason::Unschedulable));
    assert!(
        full.message.starts_with("1 of 2 slots has no GPU: slot 1: no room on 3 GPUs"),
        "{}",
        full.message
    );
    let smaller_floor = SmallerFloor::default();
    let large = UnplacedReason::ModelLargerThanGpu {
        floor_bytes: 101,
        context_bytes: 60,
        capacity_bytes: 100,
        smaller_floor,
    };
    let large: &'static UnplacedReason = Box::leak(Box::new(large));
    let (refused, _) = found(&[(0, Err(&WAITS)), (1, Err(large))]);
    let refused = refused.expect("no pool change but a larger GPU helps");
    assert_eq!(refused.reason, Reason::ModelLargerThanGpu);
    let words = "the tenant's floor of 101 B, of which 60 B are for CUDA contexts (device.contextReserve), exceeds its \
                 largest usable GPU, which has 100 B";
    assert!(refused.message.contains(words), "{}", refused.message);
}

#[test]
fn both_kinds_of_engines_are_accepted_on_each_kind_of_gpu() {
    let proxied = json!({"engine": {"kind": "Vllm", "image": "vllm/vllm-openai:v1"}});
    for pool in [host_pool(), pool(json!({"deviceClassName": "gpu.nvidia.com"}))] {
        for spec in [json!({}), proxied.clone()] {
            assert_eq!(accepted(&tenant("t", spec), Some(&pool), NEW).reason, Reason::AsExpected);
        }
    }
}

#[test]
fn every_reason_has_a_page() {
    let page = concat!(include_str!("../../../docs/operator.md"), include_str!("../../../docs/runbooks.md"));
    for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::AsExpected) {
        assert!(page.contains(&format!("`{}`", reason.as_str())), "{} is on no page", reason.as_str());
    }
}
