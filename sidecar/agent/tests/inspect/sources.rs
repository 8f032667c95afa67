//! Tests of the inspection of a model, from a folder and from small servers with the real protocols.
// Helpers outside of test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::process::{Command, Output};
use std::time::Duration;

use rusty_s3::Credentials;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sluice_agent::download::{Bucket, Hub, ProgressOutput, RetryPolicy, Source};
use sluice_agent::inspect::{DeviceArgs, InspectError, ModelFiles, inspect};
use sluice_wire::geometry::{Geometry, GeometryError, GeometryErrorKind, GeometryReport, MAX_BYTES};

use crate::fetch::server::{Server, ServerBehavior};

/// Short waits, so that tests are fast.
const POLICY: RetryPolicy = RetryPolicy {
    max_tries: 2,
    connect_tries: 2,
    initial_backoff: Duration::from_millis(1),
    max_backoff: Duration::from_millis(1),
};
const CONFIG: &str = r#"{"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,
    "num_attention_heads":2,"num_key_value_heads":1,"vocab_size":32,"max_position_embeddings":128,"torch_dtype":"bfloat16"}"#;

/// Expected sizes: two bytes per weight, every tensor at a multiple of 64 bytes.
const GLOBAL: u64 = 512 + 64 + 512;
const LAYER: u64 = 64 + 128 + 64 + 64 + 128 + 64 + 256 + 256 + 256;

fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![32, 8]),
        ("model.norm.weight".to_owned(), vec![8]),
        ("lm_head.weight".to_owned(), vec![32, 8]),
    ];
    let layer: [(&str, &[usize]); 9] = [
        ("input_layernorm", &[8]),
        ("self_attn.q_proj", &[8, 8]),
        ("self_attn.k_proj", &[4, 8]),
        ("self_attn.v_proj", &[4, 8]),
        ("self_attn.o_proj", &[8, 8]),
        ("post_attention_layernorm", &[8]),
        ("mlp.gate_proj", &[16, 8]),
        ("mlp.up_proj", &[16, 8]),
        ("mlp.down_proj", &[8, 16]),
    ];
    for index in 0..2 {
        all.extend(
            layer.map(|(name, shape)| (format!("model.layers.{index}.{name}.weight"), shape.to_vec())),
        );
    }
    all
}

fn weights(shapes: &[(String, Vec<usize>)], dtype: Dtype) -> Vec<u8> {
    let zeros = vec![0_u8; 4096];
    let view = |shape: &Vec<usize>| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        TensorView::new(dtype, shape.clone(), &zeros[..bytes]).unwrap()
    };
    let views: HashMap<_, _> = shapes.iter().map(|(name, shape)| (name.clone(), view(shape))).collect();
    safetensors::serialize(views, None).unwrap()
}

/// Returns the model in two files with an index.
fn sharded() -> BTreeMap<String, Vec<u8>> {
    let all = shapes();
    let (first, second) = all.split_at(9);
    let names = |part: &[(String, Vec<usize>)], file: &str| -> Vec<String> {
        part.iter().map(|(name, _)| format!("\"{name}\":\"{file}\"")).collect()
    };
    let map = [names(first, "a.safetensors"), names(second, "b.safetensors")].concat().join(",");
    let files = [
        ("config.json", CONFIG.as_bytes().to_vec()),
        ("a.safetensors", weights(first, Dtype::BF16)),
        ("b.safetensors", weights(second, Dtype::F32)),
        ("model.safetensors.index.json", format!("{{\"weight_map\":{{{map}}}}}").into_bytes()),
    ];
    files.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}

fn single() -> BTreeMap<String, Vec<u8>> {
    let weights = weights(&shapes(), Dtype::F32);
    [("config.json", CONFIG.as_bytes().to_vec()), ("model.safetensors", weights)]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into()
}

/// Returns [`single`] with a configuration that names no dtype.
fn unnamed(stored: Dtype) -> BTreeMap<String, Vec<u8>> {
    let config = CONFIG.replace(r#","torch_dtype":"bfloat16""#, "");
    assert_ne!(config, CONFIG);
    [("config.json", config.into_bytes()), ("model.safetensors", weights(&shapes(), stored))]
        .map(|(name, bytes)| (name.to_owned(), bytes))
        .into()
}

fn behaviour(files: BTreeMap<String, Vec<u8>>) -> ServerBehavior {
    ServerBehavior { files, ..ServerBehavior::default() }
}

fn hub(server: &Server) -> Source {
    Source::Hub(Hub::new(&server.endpoint(), "org/tiny", "main", Some("secret".into())).unwrap())
}

fn bucket(server: &Server) -> Source {
    let credentials = Some(Credentials::new("secret", "key"));
    let bucket = Bucket::new(Some(&server.endpoint()), "eu-west-1", "bucket", "models/tiny", credentials);
    Source::Bucket(bucket.unwrap())
}

async fn sizes(source: Source) -> Result<Geometry, InspectError> {
    let files = ModelFiles::remote(source, POLICY, ProgressOutput::Log).await?;
    inspect(&files, None, DeviceArgs::default()).await
}

#[tokio::test]
async fn missing_dtype_is_taken_from_weights() {
    // Expected size: four bytes per weight, every tensor at a multiple of 64 bytes.
    const LAYER_F32: u64 = 64 + 256 + 128 + 128 + 256 + 64 + 512 + 512 + 512;
    for (stored, layer, kv) in [(Dtype::BF16, LAYER, 32), (Dtype::F32, LAYER_F32, 64)] {
        let server = Server::start(behaviour(unnamed(stored))).await;
        let reported = sizes(hub(&server)).await.unwrap();
        assert_eq!((reported.layer_bytes, reported.kv_bytes_per_token), (layer, kv), "{stored:?}");
    }
}

#[tokio::test]
async fn hub_and_bucket_report_same_sizes_by_ranges() {
    for files in [single(), sharded()] {
        let stored: usize = files.values().map(Vec::len).sum();
        let server =
            Server::start(ServerBehavior { required_credential: Some("secret".into()), ..behaviour(files) })
                .await;
        for source in [hub(&server), bucket(&server)] {
            let reported = sizes(source).await.unwrap();
            assert_eq!((reported.global_bytes, reported.layer_bytes, reported.layers), (GLOBAL, LAYER, 2));
            // Keys and values of one head of four, two bytes each, in two layers.
            assert_eq!((reported.kv_bytes_per_token, reported.max_model_len), (32, 128));
            assert_eq!(reported.download_bytes, Some(stored as u64), "as stored, whatever it is in memory");
            assert!(
                reported.step_activation_bytes > reported.activation_bytes && reported.thread_bytes > 0,
                "{reported:?}"
            );
        }
        for range in server.ranges() {
            let range = range.expect("weights are never asked for whole");
            assert!(range == "bytes=0-7" || range.starts_with("bytes=8-"), "{range}");
        }
    }
}

#[tokio::test]
async fn server_without_ranges_is_read_only_as_needed() {
    let server = Server::start(ServerBehavior {
        ignores_ranges: true,
        required_credential: None,
        ..behaviour(single())
    })
    .await;
    assert_eq!(sizes(hub(&server)).await.unwrap().global_bytes, GLOBAL);
}

#[tokio::test]
async fn folder_reports_same_sizes_and_dtype_changes_them() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in sharded() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let files = ModelFiles::folder(folder.path());
    let stored = inspect(&files, Some("Auto"), DeviceArgs::default()).await.unwrap();
    let wide = inspect(&files, Some("Float32"), DeviceArgs::default()).await.unwrap();
    assert_eq!((stored.global_bytes, stored.kv_bytes_per_token), (GLOBAL, 32));
    assert_eq!(stored.download_bytes, None, "nothing is to be downloaded");
    assert_eq!((wide.global_bytes, wide.kv_bytes_per_token), (1024 + 64 + 1024, 64));
    assert_eq!(
        wide.activation_bytes, stored.activation_bytes,
        "activations are f32 whatever the weights are"
    );
}

/// Runs the program against a server with the files, and checks that its two outputs agree.
async fn program(behaviour: ServerBehavior) -> (Output, Result<Geometry, GeometryError>) {
    let server = Server::start(behaviour).await;
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
    command.args([
        "inspect",
        "hugging-face",
        "--repo",
        "org/tiny",
        "--endpoint",
        &server.endpoint(),
        "--report",
    ]);
    command.arg(&report).env_remove("HF_TOKEN");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let line = std::fs::read(&report).unwrap();
    assert!(line.len() <= MAX_BYTES);
    assert_eq!(output.stdout.trim_ascii_end(), line);
    (output, GeometryReport::from_json(&line).unwrap())
}

#[tokio::test]
async fn program_reports_sizes_on_stdout_and_report_file() {
    let (output, reported) = program(behaviour(sharded())).await;
    assert_eq!((output.status.code(), reported.unwrap().layer_bytes), (Some(0), LAYER));
}

fn without(name: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = single();
    files.remove(name);
    files
}

fn with(name: &str, change: impl Fn(Vec<u8>) -> Vec<u8>) -> BTreeMap<String, Vec<u8>> {
    let mut files = single();
    let changed = change(files.remove(name).unwrap());
    files.insert(name.to_owned(), changed);
    files
}

#[tokio::test]
async fn permanent_error_exits_78() {
    let text = |find: &'static str, put: &'static str| {
        with("config.json", move |bytes| String::from_utf8(bytes).unwrap().replace(find, put).into_bytes())
    };
    let refused = ServerBehavior { required_credential: Some("secret".into()), ..behaviour(single()) };
    let cases = [
        (refused, GeometryErrorKind::Unreadable, "401"),
        (behaviour(without("config.json")), GeometryErrorKind::Unreadable, "lacks config.json"),
        (
            behaviour(without("model.safetensors")),
            GeometryErrorKind::Unreadable,
            "lacks a file that ends in .safetensors",
        ),
        (behaviour(text("llama", "gpt2")), GeometryErrorKind::Unsupported, "model_type: `gpt2`"),
        (
            behaviour(text("\"vocab_size\":32", "\"vocab_size\":33")),
            GeometryErrorKind::Unsupported,
            "embed_tokens",
        ),
        (
            behaviour(with("model.safetensors", |mut bytes| {
                bytes.truncate(300);
                bytes
            })),
            GeometryErrorKind::Unsupported,
            "the header has",
        ),
        (
            behaviour(with("model.safetensors", |mut bytes| {
                bytes.pop();
                bytes
            })),
            GeometryErrorKind::Unsupported,
            "the header describes",
        ),
        (
            behaviour(with("model.safetensors", |_| vec![1, 2, 3])),
            GeometryErrorKind::Unsupported,
            "3 bytes, too few",
        ),
        (
            behaviour(with("model.safetensors", |_| weights(&shapes(), Dtype::I32))),
            GeometryErrorKind::Unsupported,
            "format I32",
        ),
        (
            behaviour(with("model.safetensors", |_| weights(&shapes()[1..], Dtype::F32))),
            GeometryErrorKind::Unsupported,
            "is missing from the weight files",
        ),
    ];
    for (behaviour, reason, words) in cases {
        let (output, reported) = program(behaviour).await;
        let refusal = reported.unwrap_err();
        assert_eq!((output.status.code(), refusal.reason), (Some(78), reason), "{refusal:?}");
        assert!(refusal.message.contains(words), "{refusal:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains(words));
    }
}

#[tokio::test]
async fn unavailable_service_is_retryable() {
    let server = Server::start(ServerBehavior { unavailable: 9, ..behaviour(single()) }).await;
    let error = sizes(hub(&server)).await.unwrap_err();
    assert!(matches!(&error, InspectError::Fetch(error) if !error.is_final()), "{error}");
    assert!(error.to_string().contains("503"), "{error}");
}

#[test]
fn folder_without_model_is_unreadable() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
    let output = command.args(["inspect", "folder"]).arg(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let Err(refusal) = GeometryReport::from_json(output.stdout.trim_ascii_end()).unwrap() else { panic!() };
    assert_eq!(refusal.reason, GeometryErrorKind::Unreadable);
    assert!(refusal.message.contains("config.json"), "{refusal:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
