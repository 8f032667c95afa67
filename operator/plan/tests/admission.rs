//! Which tenants are accepted, also by a pool that is being deleted.

use serde_json::json;
use sluice_plan::observed::ObservedPool;
use sluice_plan::pool_plan::plan;
use sluice_plan::report::{pool_status, tenant_status};
use sluice_types::{GpuPool, ModelTenant};

use super::fixtures::{host_pool, inspected, placed_and_ready, plan_context, tenant};

#[test]
fn a_tenant_whose_kv_fits_nowhere_is_not_accepted() {
    let reason = |change: &dyn Fn(&mut GpuPool, &mut ModelTenant)| {
        let (mut pool, mut tenant) = (host_pool(), inspected());
        change(&mut pool, &mut tenant);
        let (seen, tenants) = (ObservedPool::default(), [&tenant]);
        let given = plan_context(&pool, &tenants, &seen);
        let plan = plan(&given);
        let status = tenant_status(&given, &plan, &plan.tenants[0], None);
        let accepted = status.conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
        (accepted.reason, accepted.message)
    };
    assert_eq!(reason(&|_, _| ()).0, "AsExpected");
    let (short, message) = reason(&|_, tenant| {
        tenant.spec.memory.kv_limit = Some(sluice_types::Quantity::from_bytes(1 << 16));
    });
    assert_eq!(short, "ContextDoesNotFit");
    assert!(message.contains("spec.memory.kvLimit") && message.contains("1024 tokens"), "{message}");
    let (small, _) = reason(&|pool, _| {
        let host = pool.spec.device.as_mut().unwrap().host.as_mut().unwrap();
        host.chunk_bytes = sluice_types::Quantity::from_bytes(1 << 10);
    });
    assert_eq!(small, "ChunkTooSmall");
    // Together with other reasons.
    let (first, message) = reason(&|pool, tenant| {
        tenant.spec.memory.kv_limit = Some(sluice_types::Quantity::from_bytes(1 << 16));
        tenant.spec.access.api_keys_file = Some("keys".into());
        pool.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    });
    assert_eq!(first, "PoolTerminating");
    let parts: Vec<&str> = message.split("; ").collect();
    assert!(
        parts[0].starts_with("spec.poolRef: ") && parts[1].starts_with("spec.access.apiKeysFile "),
        "{message}"
    );
    assert!(parts[2].starts_with("spec.memory.kvLimit: "), "{message}");
}

/// A proxied tenant whose weights take slightly more than 10 GiB, on a GPU whose size only its claim reveals.
fn large() -> ModelTenant {
    let spec = json!({"engine": {"kind": "Vllm", "image": "example.org/vllm:1"}});
    let mut large = tenant("t", spec);
    let mut status = inspected().status.unwrap();
    let model = status.model.as_mut().unwrap();
    (model.layers, model.layer_bytes) = (10, 1 << 30);
    large.status = Some(status);
    large
}

/// Returns the reason of `Accepted`, and the pool with its new status.
fn accepted_reason(pool: &GpuPool, seen: &ObservedPool) -> (String, GpuPool) {
    let tenant = large();
    let tenants = [&tenant];
    let given = plan_context(pool, &tenants, seen);
    let plan = plan(&given);
    let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
    let accepted = conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
    (accepted.reason, GpuPool { status: Some(pool_status(&given, &plan, pool)), ..pool.clone() })
}

#[test]
fn a_model_that_its_gpu_turned_out_too_small_for_is_not_tried_again() {
    let mut pool = super::fixtures::pool(json!({"hostMemoryPerGPU": "64Gi"}));
    pool.metadata.generation = Some(1);
    let (fits, pool) = accepted_reason(&pool, &ObservedPool::default());
    assert_eq!(fits, "AsExpected", "the GPU's size is not known");
    let mut seen = placed_and_ready(&pool);
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(8 << 30);
    let (small, mut pool) = accepted_reason(&pool, &seen);
    assert_eq!(small, "ModelLargerThanGpu");
    // Deployment and claim are gone.
    for _ in 0..3 {
        let (still, after) = accepted_reason(&pool, &ObservedPool::default());
        assert_eq!(still, "ModelLargerThanGpu");
        pool = after;
    }
    pool.metadata.generation = Some(2);
    assert_eq!(
        accepted_reason(&pool, &ObservedPool::default()).0,
        "AsExpected",
        "it may ask for another GPU now"
    );
    seen.claims[0].device.as_mut().unwrap().capacity_bytes = Some(16 << 30);
    let (large, pool) = accepted_reason(&pool, &seen);
    let gpu = &pool.status.unwrap().gpus[0];
    assert_eq!((large.as_str(), gpu.capacity.as_ref().unwrap().bytes()), ("AsExpected", 16 << 30));
}

#[test]
fn terminating_pool_accepts_no_new_tenant() {
    let mut pool = host_pool();
    let reason = |pool: &GpuPool, seen: &ObservedPool| {
        let tenant = inspected();
        let tenants = [&tenant];
        let given = plan_context(pool, &tenants, seen);
        let plan = plan(&given);
        let conditions = tenant_status(&given, &plan, &plan.tenants[0], None).conditions;
        let accepted = conditions.into_iter().find(|one| one.type_ == "Accepted").unwrap();
        (accepted.reason, plan.tenants[0].slots.len())
    };
    assert_eq!(reason(&pool, &ObservedPool::default()), ("AsExpected".to_owned(), 1));
    pool.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(reason(&pool, &ObservedPool::default()), ("PoolTerminating".to_owned(), 0));
    assert_eq!(reason(&pool, &placed_and_ready(&pool)), ("AsExpected".to_owned(), 1), "who is there stays");
}
