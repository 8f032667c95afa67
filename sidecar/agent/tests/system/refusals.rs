//! Tests that too little memory is refused with the needed size.

use sluice_agent::engine_loop::{LoadError, load};
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_policy::config_error::ConfigError;
use sluice_scheduler::RejectReason;
use sluice_wire::config::{MemoryConfig, SidecarConfig};

use crate::golden::{check, reference, requests};
use crate::machine::HOST_CHUNK;
use crate::support::{Tenant, TestRequest, config, poisoned};

fn refusal(config: SidecarConfig) -> ConfigError {
    match Tenant::begin(config, poisoned()) {
        Err(LoadError::Unsatisfiable(refused)) => refused,
        Err(other) => panic!("another refusal: {other}"),
        Ok(_) => panic!("it loads"),
    }
}

#[test]
fn memory_below_floor_is_refused_with_floor() {
    let Some(folder) = reference() else { return };
    for policy in ["Recompute", "Oneiros", "Ellm"] {
        let sized = |memory_bytes| {
            let mut config = config(&folder, memory_bytes, policy);
            config.max_model_len = Some(192);
            config
        };
        let ConfigError::FloorExceedsCapacity { floor_bytes, capacity_bytes } =
            refusal(sized(4 * HOST_CHUNK))
        else {
            panic!("{policy}: the floor is the reason")
        };
        assert_eq!(capacity_bytes, 4 * HOST_CHUNK);
        let one_less =
            ConfigError::FloorExceedsCapacity { floor_bytes, capacity_bytes: floor_bytes - HOST_CHUNK };
        assert_eq!(refusal(sized(floor_bytes - HOST_CHUNK)), one_less, "{policy}: one chunk too small");
        let tenant = Tenant::start(sized(floor_bytes));
        check(&tenant.serve_concurrently(&requests(&folder)), &folder, policy);
        let state = tenant.assert_nothing_leaks(policy);
        assert_eq!(state.memory.capacity_bytes, floor_bytes);
        assert_eq!(state.remap.alpha > 0, policy == "Oneiros", "only Oneiros can do without some layers");
    }
}

#[test]
fn a_context_that_does_not_fit_its_kv_is_refused_with_both_sizes() {
    let Some(folder) = reference() else { return };
    let mut config = config(&folder, 16 << 20, "Oneiros");
    config.max_model_len = Some(192);
    // 12 columns of 5 layers, 4 KiB each.
    let needed_bytes = 12 * 5 * 4096;
    config.memory.guaranteed_kv_bytes = Some(needed_bytes - 1);
    let refused = ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes: needed_bytes - 1 };
    assert_eq!(refusal(config.clone()), refused);
    config.memory.guaranteed_kv_bytes = None;
    config.memory.kv_limit_bytes = Some(needed_bytes / 2);
    let refused = refusal(config.clone());
    let expected = ConfigError::ContextDoesNotFit { needed_bytes, guaranteed_bytes: needed_bytes / 2 };
    assert_eq!(refused, expected);
    config.memory = MemoryConfig {
        guaranteed_kv_bytes: Some(needed_bytes),
        kv_limit_bytes: None,
        host_kv_bytes: 0,
        max_remapped_percent: 100,
    };
    drop(Tenant::start(config));
}

#[test]
fn weights_beyond_host_memory_are_refused_with_sizes() {
    let Some(folder) = reference() else { return };
    let refused = |given_bytes| {
        let mut config = config(&folder, 16 << 20, "Oneiros");
        config.gpu.host_memory_bytes = Some(given_bytes);
        load(config).map(drop).map_err(|error| error.to_string())
    };
    // 260 thousand parameters of 4 bytes, in slabs with aligned tensors.
    let words = refused(1 << 19).unwrap_err();
    let needed = words.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
    assert!((260_000 * 4..260_000 * 5).contains(&needed), "{words}");
    let expected = |given: u64| {
        format!(
            "gpu.host_memory_bytes: the weights need {needed} bytes of host memory, but the limit is {given}"
        )
    };
    assert_eq!(refused(needed - 1), Err(expected(needed - 1)));
    assert_eq!(refused(needed), Ok(()));
}

#[test]
fn request_beyond_context_is_refused() {
    let Some(folder) = reference() else { return };
    let mut config = config(&folder, 16 << 20, "Oneiros");
    config.max_model_len = Some(64);
    let tenant = Tenant::start(config);
    let wanted = |max_tokens| TestRequest::greedy(&[1, 2, 3, 4], max_tokens);
    assert_eq!(tenant.serve_concurrently(&[wanted(60)])[0].tokens.len(), 60);
    let mut ticket = tenant.submit(&wanted(61));
    let refused = tenant.next(&mut ticket);
    let expected = RejectReason::ContextLengthExceeded { prompt_tokens: 4, max_tokens: 61, limit_tokens: 64 };
    assert!(matches!(&refused, RequestUpdate::Refused(refusal) if *refusal == expected), "{refused:?}");
}
