//! A tenant with the product's engine loop, scheduler, memory and gateway; only the engine is a stand-in.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, ensure};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::json;
use sluice_agent::engine_loop::{TenantLoader, load};
use sluice_agent::heartbeat::Heartbeat;
use sluice_agent::metrics::Metrics;
use sluice_agent::scheduler_handle::{MessageSender, SchedulerHandle, SchedulerMessage, Status};
use sluice_link::server::Listener;
use sluice_policy::token_deposit::Pacing;
use sluice_wire::config::{LimitsConfig, SidecarConfig, SloConfig};
use tokio::sync::watch;

use super::engine::{self, Sent};
use super::host::Host;
use super::tiny;

/// Number of layers of a model with 8 billion weights; only this number affects the sidecar's work.
const LAYERS: u64 = 32;
const HIDDEN: usize = 32;
const KV_WIDTH: usize = 16;
const INTERMEDIATE: usize = 64;
const CHUNK_BYTES: u64 = 2 << 20;
/// Tokens of every prompt: a number as text, one token per byte.
pub const PROMPT_TOKENS: u32 = 5;

/// A serving tenant.
pub struct Tenant {
    /// Its server, with address and metrics.
    pub host: Host,
    inbox: MessageSender,
    engine: JoinHandle<anyhow::Result<Sent>>,
    _folder: tempfile::TempDir,
}

/// Returns the prompt of a stream, by which the engine identifies the stream of a row.
pub fn prompt_of(stream: usize) -> String {
    format!("{stream:0width$}", width = PROMPT_TOKENS as usize)
}

/// Returns the stream of a prompt.
pub fn stream_of(prompt: &[u32]) -> anyhow::Result<usize> {
    let text = prompt.iter().map(|token| char::from_u32(*token)).collect::<Option<String>>();
    text.context("tokens that are no text")?.parse().context("a prompt that names no stream")
}

impl Tenant {
    /// Starts a tenant for `streams` streams of `tokens` tokens and waits until it serves. A step takes `period`.
    pub fn start(streams: u32, tokens: u32, period: Duration) -> anyhow::Result<Tenant> {
        let folder = tempfile::tempdir()?;
        let context = PROMPT_TOKENS + tokens;
        write_model(folder.path(), context)?;
        let loaded = Arc::new(load(config(folder.path(), streams, context)?)?);
        let socket = folder.path().join("engine.sock");
        let (inbox, messages) = MessageSender::new();
        let (status, mut watched) = watch::channel(Status::Loading);
        let metrics = Arc::new(Metrics::new("tiny", &SloConfig::default()));
        let loading = TenantLoader {
            peers: None,
            directives: None,
            loaded: loaded.clone(),
            inbox: inbox.clone(),
            messages,
            status,
            metrics: metrics.clone(),
            listener: Listener::bind(&socket)?,
            closed: Arc::new(AtomicBool::new(false)),
            heartbeat: Heartbeat::default(),
        };
        std::thread::Builder::new().name("scheduler".into()).spawn(move || run_engine_loop(loading))?;
        let engine = engine::attach(&socket, inbox.clone(), streams as usize, period)?;
        let service = SchedulerHandle::new(inbox.clone(), watched.clone());
        let host = Host::serve(loaded.text.clone(), service, streams, Pacing::Immediate, metrics)?;
        host.until_serving(&mut watched).context("the room has ended; its words are above")?;
        Ok(Tenant { host, inbox, engine, _folder: folder })
    }

    /// Stops the tenant and returns the times of its engine's steps.
    pub fn shutdown(self) -> anyhow::Result<Sent> {
        let text = self.host.metrics.encode();
        let preempted = text.lines().filter(|line| line.starts_with("vllm:num_preemptions_total"));
        ensure!(preempted.clone().all(|line| line.ends_with(" 0")), "requests were preempted: {text}");
        self.inbox.send(SchedulerMessage::Stop);
        self.engine.join().expect("the engine does not panic")
    }
}

fn run_engine_loop(loading: TenantLoader) {
    let ended = loading.finish().map_err(anyhow::Error::from).and_then(|engine_loop| Ok(engine_loop.run()?));
    if let Err(error) = ended {
        eprintln!("the room: {error:#}");
    }
}

/// Returns a configuration with enough memory for all streams at full length.
fn config(folder: &Path, streams: u32, context: u32) -> anyhow::Result<SidecarConfig> {
    let limits = LimitsConfig {
        max_queued_requests: streams,
        max_streams: streams,
        max_sequences: streams,
        max_step_tokens: LimitsConfig::default().max_step_tokens.max(streams),
        ..LimitsConfig::default()
    };
    let kv_bytes = u64::from(streams) * u64::from(context + 32) * LAYERS * (2 * 2 * KV_WIDTH as u64);
    let chunks = LAYERS + 8 + (kv_bytes / CHUNK_BYTES + 1) * 2;
    let config = json!({
        "namespace": "default", "name": "latency", "model_path": folder, "max_model_len": context,
        "gpu": {"name": "gpu", "memory_bytes": chunks * CHUNK_BYTES, "chunk_bytes": CHUNK_BYTES},
        "policy": "Oneiros", "memory": {}, "limits": limits, "runtime_dir": folder,
        "listen": {"serve": "127.0.0.1:0", "admin": "127.0.0.1:0", "probes": "127.0.0.1:0"},
    });
    Ok(serde_json::from_value(config)?)
}

/// Writes a model of zeros; no weights are used.
fn write_model(folder: &Path, context: u32) -> anyhow::Result<()> {
    tiny::text(folder);
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HIDDEN / KV_WIDTH, "num_key_value_heads": 1,
        "vocab_size": tiny::VOCAB, "max_position_embeddings": context, "torch_dtype": "bfloat16",
        "tie_word_embeddings": true, "eos_token_id": tiny::END,
    });
    std::fs::write(folder.join("config.json"), config.to_string())?;
    let zeros = vec![0; tiny::VOCAB as usize * HIDDEN * 2];
    let view = |(name, shape): (String, Vec<usize>)| {
        let bytes = shape.iter().product::<usize>() * 2;
        Ok((name, TensorView::new(Dtype::BF16, shape, &zeros[..bytes])?))
    };
    let tensors = tensors().into_iter().map(view).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(serialize_to_file(tensors, None, &folder.join("model.safetensors"))?)
}

/// Returns names and shapes in Hugging Face layout.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let of_a_layer = [
        ("input_layernorm", vec![HIDDEN]),
        ("post_attention_layernorm", vec![HIDDEN]),
        ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
        ("self_attn.k_proj", vec![KV_WIDTH, HIDDEN]),
        ("self_attn.v_proj", vec![KV_WIDTH, HIDDEN]),
        ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
        ("mlp.gate_proj", vec![INTERMEDIATE, HIDDEN]),
        ("mlp.up_proj", vec![INTERMEDIATE, HIDDEN]),
        ("mlp.down_proj", vec![HIDDEN, INTERMEDIATE]),
    ];
    let global = [("embed_tokens", vec![tiny::VOCAB as usize, HIDDEN]), ("norm", vec![HIDDEN])];
    let global = global.map(|(name, shape)| (format!("model.{name}.weight"), shape));
    let layers = (0..LAYERS).flat_map(|layer| {
        of_a_layer.clone().map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    });
    layers.chain(global).collect()
}
