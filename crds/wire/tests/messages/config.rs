//! The configuration of a sidecar against its committed forms.

use std::collections::BTreeMap;

use sluice_wire::config::{
    DebugConfig, EngineConfig, EngineKind, GpuConfig, LimitsConfig, ListenConfig, MemoryConfig,
    SidecarConfig, SloConfig,
};

use super::golden;

/// As it was written before there was more than one kind of engine.
const NATIVE: &str = include_str!("../golden/sidecar-config-native.json");
const VLLM: &str = include_str!("../golden/sidecar-config-vllm.json");

fn native() -> SidecarConfig {
    let at = |port: u16| ([127, 0, 0, 1], port).into();
    SidecarConfig {
        namespace: "serving".into(),
        name: "chat".into(),
        served_names: vec!["org/chat".into()],
        model_path: "/model".into(),
        dtype: None,
        max_model_len: Some(4096),
        gpu: GpuConfig {
            name: "gpu-0".into(),
            cuda: None,
            memory_bytes: 1 << 30,
            chunk_bytes: 2 << 20,
            link_bytes_per_second: None,
            link_to_host_bytes_per_second: None,
            host_memory_bytes: None,
        },
        gpu_ledger: None,
        policy: "Unified".into(),
        memory: MemoryConfig {
            guaranteed_kv_bytes: None,
            kv_limit_bytes: None,
            host_kv_bytes: 0,
            max_remapped_percent: 60,
        },
        slo: SloConfig::default(),
        order: "FirstCome".into(),
        pacing: "TokenDeposit".into(),
        limits: LimitsConfig::default(),
        api_keys_file: None,
        listen: ListenConfig {
            serve: at(8000),
            admin: at(8001),
            probes: at(8002),
            drain_hook: true,
            drain_key: None,
            admin_tls: None,
            peer_token_file: None,
        },
        runtime_dir: "/run/sluice".into(),
        engine: EngineConfig { threads: 4, ..EngineConfig::default() },
        hibernate_after_seconds: Some(600),
        drain_seconds: 30,
        journal: None,
        tunables: BTreeMap::default(),
        debug: DebugConfig::default(),
    }
}

fn vllm() -> SidecarConfig {
    let url = Some("http://127.0.0.1:8010".into());
    let engine = EngineConfig { kind: EngineKind::Vllm, url, ..EngineConfig::default() };
    SidecarConfig { engine, ..native() }
}

#[test]
fn both_kinds_are_written_as_committed_and_read_back() {
    for (config, committed) in [(native(), NATIVE), (vllm(), VLLM)] {
        golden::written_as(&config, committed);
        assert_eq!(serde_json::from_str::<SidecarConfig>(committed).expect("it is read"), config);
    }
}

#[test]
fn names_of_the_version_before_are_read() {
    let before = NATIVE
        .replace("\"gpu_ledger\"", "\"neighbourhood\"")
        .replace("\"peer_token_file\"", "\"neighbour_token_file\"");
    assert_ne!(before, NATIVE);
    assert_eq!(serde_json::from_str::<SidecarConfig>(&before).expect("it is read"), native());
}

#[test]
fn unknown_field_and_unknown_kind_are_refused() {
    for (pointer, value) in [("/engine/colour", "red"), ("/engine/kind", "Sglang")] {
        let text = golden::with(VLLM, pointer, value.into());
        assert!(serde_json::from_slice::<SidecarConfig>(&text).is_err(), "{pointer}");
    }
}
