//! Plans compared with manual calculations.

use super::*;

const GIB: u64 = 1 << 30;

/// 20 layers of 16 MiB, 32 MiB of globals, 64 KiB of KV a token: a block of KV takes 51.2 KiB of each layer.
fn geometry() -> Geometry {
    Geometry {
        global_bytes: 32 << 20,
        layer_bytes: 16 << 20,
        layers: 20,
        kv_bytes_per_token: 64 << 10,
        max_model_len: 32_768,
        activation_bytes: 1 << 20,
        step_activation_bytes: 8 << 20,
        thread_bytes: 1 << 20,
        staging_bytes: 0,
        download_bytes: None,
    }
}

fn model(name: &str) -> ModelSize {
    let spec = serde_json::json!({
        "poolRef": {"name": "p"}, "model": {"source": {"type": "File", "file": {"path": "/m"}}},
    });
    ModelSize { name: name.into(), geometry: geometry(), spec: serde_json::from_value(spec).unwrap() }
}

fn options() -> MemoryOptions {
    MemoryOptions { threads: 2, ..MemoryOptions::default() }
}

/// KV of `sequences` contexts in chunks of 1 MiB, 20 blocks of 52,428 bytes in each.
fn kv(tokens: u64, sequences: u64) -> u64 {
    sequences * (tokens / 16 * 20).div_ceil(20) * (1 << 20)
}

/// Weights and a slot, and activations with two threads.
const WEIGHTS: u64 = (32 + 21 * 16) << 20;
const ACTIVATIONS: u64 = 10 << 20;

#[test]
fn ample_memory_gives_each_model_four_contexts() {
    let plan = plan(&[model("a")], &options(), 64 * GIB).unwrap();
    assert_eq!(plan.chunk_bytes, 1 << 20, "a sixteenth of a layer");
    assert_eq!((plan.context_tokens.as_slice(), plan.sequences), ([8192].as_slice(), 4));
    assert_eq!(plan.gpu_bytes, WEIGHTS + kv(8192, 4) + ACTIVATIONS);
    // Copy of the weights, 64 MiB of its own and 2048 streams of 32 KiB, and 5 %.
    let host: u64 = (352 << 20) + (64 << 20) + (64 << 20);
    assert_eq!(plan.host_bytes, (host + host.div_ceil(20)).next_multiple_of(1 << 20), "in whole MiB");
    assert_eq!(plan.total_bytes, plan.gpu_bytes + plan.host_bytes + (256 << 20));
}

#[test]
fn two_models_share_a_gpu_that_holds_both() {
    let one = plan(&[model("a")], &options(), 64 * GIB).unwrap();
    let two = plan(&[model("a"), model("b")], &options(), 64 * GIB).unwrap();
    assert_eq!(
        (two.gpu_bytes, two.host_bytes, two.total_bytes),
        (2 * one.gpu_bytes, 2 * one.host_bytes, 2 * one.total_bytes)
    );
    assert_eq!(two.context_tokens, [8192, 8192]);
}

#[test]
fn short_memory_reduces_sequences_before_context() {
    let total = |tokens, sequences| {
        let host: u64 = 480 << 20;
        let host = (host + host.div_ceil(20)).next_multiple_of(1 << 20);
        WEIGHTS + kv(tokens, sequences) + ACTIVATIONS + host + (256 << 20)
    };
    for (tokens, sequences) in [(8192, 4), (8192, 2), (8192, 1), (4096, 1), (2048, 1), (1024, 1)] {
        let enough = plan(&[model("a")], &options(), total(tokens, sequences)).unwrap();
        let found = (u64::from(enough.context_tokens[0]), enough.sequences);
        assert_eq!(found, (tokens, sequences));
    }
    let short = plan(&[model("a")], &options(), total(1024, 1) - 1).unwrap_err();
    let needed = bytes(total(1024, 1));
    let words = short.to_string();
    assert!(
        words.starts_with(&format!(
            "not enough memory: {needed} are needed (a: weights 368 MiB, KV of 1 x 1024 tokens 64 MiB"
        )),
        "{words}"
    );
    assert!(
        words.ends_with("are available on this machine; use a smaller model, or end other programs"),
        "{words}"
    );
}

#[test]
fn requested_context_is_granted_or_rejected() {
    let asked = |tokens| MemoryOptions { context_tokens: Some(tokens), ..options() };
    assert_eq!(plan(&[model("a")], &asked(32_768), 64 * GIB).unwrap().context_tokens, [32_768]);
    let long = plan(&[model("a")], &asked(32_769), 64 * GIB).unwrap_err().to_string();
    assert_eq!(long, "--context 32769: a supports at most 32768 tokens");
    let short = plan(&[model("a")], &asked(32_768), 2 * GIB).unwrap_err().to_string();
    assert!(short.ends_with("; lower --context"), "{short}");
}

#[test]
fn requested_memory_is_used_if_models_can_start() {
    let named = |bytes| MemoryOptions { memory_bytes: Some(bytes), ..options() };
    let plenty = plan(&[model("a")], &named(2 * GIB + 5), 64 * GIB).unwrap();
    assert_eq!((plenty.gpu_bytes, plenty.sequences), (2 * GIB, 1));
    let little = plan(&[model("a")], &named(GIB / 4), 64 * GIB).unwrap_err().to_string();
    assert!(little.starts_with("--memory 256 MiB is too little; a needs at least "), "{little}");
    assert!(!little.contains("together"), "{little}");
    let both = plan(&[model("a"), model("b")], &named(GIB / 4), 64 * GIB).unwrap_err().to_string();
    assert!(both.contains(", b needs at least ") && both.contains(", together "), "{both}");
    let host = plan(&[model("a")], &named(100 * GIB), 64 * GIB).unwrap_err().to_string();
    assert!(host.contains("and 64 GiB are available") && host.ends_with("; lower --memory"), "{host}");
}

#[test]
fn small_layers_have_small_chunks_that_hold_a_block_of_kv() {
    let mut small = model("a");
    small.geometry.layer_bytes = 200 << 10;
    assert_eq!(chunk_bytes([&small.geometry]), 64 << 10);
    small.geometry.kv_bytes_per_token = 100 << 10;
    assert_eq!(chunk_bytes([&small.geometry, &model("b").geometry]), 128 << 10, "80 KiB a block");
    small.geometry.kv_bytes_per_token = 20 << 20;
    let refused = plan(&[small], &options(), 64 * GIB).unwrap_err().to_string();
    assert!(refused.starts_with("a: KV of 16 tokens of one layer takes"), "{refused}");
}

#[test]
fn sizes_are_read_as_quantities() {
    assert_eq!(parse_memory("1.5Gi"), Ok(3 * GIB / 2));
    assert!(parse_memory("much").is_err() && parse_memory("0").is_err());
}
