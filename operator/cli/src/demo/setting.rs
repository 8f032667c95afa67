//! What is run: engine threads, link, memory and load, by what the machine can do and by the sizes of the model. Pure.

use std::time::Duration;

use serde_json::json;
use sluice_plan::sizes::{self, SMALL_BYTES};
use sluice_types::{HOST_DEVICE_CLASS, Quantity};
use sluice_wire::geometry::Geometry;

use super::machine::Machine;
use crate::chunk::{block_bytes, chunk_bytes};

/// The tenants, in the order in which the page shows them.
pub const TENANTS: [&str; 3] = ["chat", "code", "summary"];
/// Namespace of them all: no tenant of the user's is called so.
pub const NAMESPACE: &str = "sluice-demo";

/// Most threads of an engine: models of a demo are too small for more.
const MOST_THREADS: u32 = 8;
/// The link has this part of what one thread copies: copies take so much of one core at most.
const LINK_PART: u64 = 4;
/// Requests whose KV a tenant's share has room for.
const SHARE_REQUESTS: u64 = 2;
/// Requests of a burst.
const BURST: std::ops::RangeInclusive<u64> = 4..=8;
/// Part of its layers that a neighbour lends at most, percent: what a `GpuPool` says by default.
const LENDABLE_PERCENT: u64 = 60;
/// Least time between tokens that a client is promised, milliseconds: about what people read.
const LEAST_PACE_MS: u64 = 50;
/// What a tenant's share has more than is computed, chunks: each owner's last chunk is not full.
const SPARE_CHUNKS: u64 = 2;

/// How the tenants share their GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Fixed partitions: what does not fit is preempted and computed again.
    Fixed,
    /// Idle tenants lend the memory of their weights.
    Lending,
}

impl Rule {
    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Rule::Fixed => "fixed partitions (Recompute)",
            Rule::Lending => "lending (Oneiros)",
        }
    }

    fn policy(self) -> &'static str {
        match self {
            Rule::Fixed => "Recompute",
            Rule::Lending => "Oneiros",
        }
    }
}

/// Lengths of one request, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Prompt.
    pub prompt: u32,
    /// Answer.
    pub output: u32,
}

impl Lengths {
    /// Of a whole show.
    pub const SHOW: Lengths = Lengths { prompt: 64, output: 96 };
    /// Of a short one.
    pub const QUICK: Lengths = Lengths { prompt: 64, output: 32 };

    /// Prompt, answer, and a few tokens to spare.
    fn context(self) -> u32 {
        self.prompt + self.output + 8
    }
}

/// What a client is promised, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Until the first token.
    pub ttft_ms: u64,
    /// Between two tokens.
    pub tbt_ms: u64,
}

impl Promise {
    /// Before anything is measured.
    pub const UNKNOWN: Promise = Promise { ttft_ms: 2000, tbt_ms: LEAST_PACE_MS };

    /// Until the first token.
    pub fn first_token(self) -> Duration {
        Duration::from_millis(self.ttft_ms)
    }

    /// By the first tokens and the step of a warm-up with as many requests as a share has room for.
    pub fn of(ttft_ms: f64, step_ns: u64, requests: u64) -> Promise {
        // Prompts are computed one after the other. Twice that, so that a burst that is served at once keeps it.
        let bursts = requests.div_ceil(SHARE_REQUESTS) as f64;
        let ttft_ms = (2.0 * bursts * ttft_ms).ceil() as u64;
        // Slower than the tokens of a full batch come, so that a stream has some in reserve.
        Promise { ttft_ms: ttft_ms.max(1), tbt_ms: (3 * step_ns).div_ceil(1_000_000).max(LEAST_PACE_MS) }
    }
}

/// What both rules have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Threads of each engine.
    pub threads: u32,
    /// Bandwidth of the link to the GPU, bytes per second.
    pub link_bytes_per_s: u64,
    /// Unit of memory, bytes.
    pub chunk_bytes: u64,
    /// Memory of the GPU, bytes.
    pub memory_bytes: u64,
    /// Host memory for the tenants' copies of their weights, bytes.
    pub host_bytes: u64,
    /// All memory of this machine that the demo takes, bytes.
    pub total_bytes: u64,
    /// Requests of a burst.
    pub requests: u64,
    /// Lengths of each.
    pub lengths: Lengths,
    /// Longest sequence, tokens.
    pub context: u32,
}

impl Setting {
    /// For `machine` and three tenants of a model of these sizes.
    pub fn new(machine: &Machine, model: &Geometry, lengths: Lengths) -> Setting {
        // One core is for copies, the sidecars and the clients. With less they would take it of the engine.
        let threads = machine.cores.saturating_sub(1).clamp(1, MOST_THREADS);
        let chunk_bytes = chunk_bytes([model]);
        let tokens = u64::from(lengths.prompt + lengths.output);
        let lendable = u64::from(model.layers) * LENDABLE_PERCENT / 100 * model.layer_bytes;
        let lent = lendable / (tokens * model.kv_bytes_per_token).max(1);
        let requests = (SHARE_REQUESTS + lent).clamp(*BURST.start(), *BURST.end());
        let setting = Setting {
            threads,
            link_bytes_per_s: (machine.copy_bytes_per_s / LINK_PART).max(1),
            chunk_bytes,
            memory_bytes: 0,
            host_bytes: 0,
            total_bytes: 0,
            requests,
            lengths,
            context: lengths.context(),
        };
        setting.sized(model, SHARE_REQUESTS)
    }

    /// The same for sequences of up to `context` tokens, one for each tenant at least.
    pub fn for_context(self, model: &Geometry, context: u32) -> Setting {
        let context = context.min(model.max_model_len).max(self.context);
        let larger = Setting { context, ..self }.sized(model, 1);
        if larger.memory_bytes > self.memory_bytes { larger } else { Setting { context, ..self } }
    }

    /// With memory for three times the weights, the activations, and KV of `sequences` sequences.
    fn sized(self, model: &Geometry, sequences: u64) -> Setting {
        let chunk = self.chunk_bytes;
        let chunks = |bytes: u64| bytes.div_ceil(chunk);
        let layers = u64::from(model.layers);
        let activations = model.step_activation_bytes + model.thread_bytes * u64::from(self.threads);
        let blocks = sequences * sizes::sequence_blocks(self.context, model.layers);
        let kv = sizes::block_chunks(blocks, block_bytes(model), chunk);
        let share = chunks(model.global_bytes)
            + layers * chunks(model.layer_bytes)
            + chunks(activations)
            + chunks(model.staging_bytes)
            + kv
            + SPARE_CHUNKS;
        let tenants = TENANTS.len() as u64;
        let weights = model.global_bytes + layers * model.layer_bytes;
        let (memory_bytes, host_bytes) = (tenants * share * chunk, tenants * (weights + chunk));
        let total_bytes = memory_bytes + host_bytes + tenants * SMALL_BYTES;
        Setting { memory_bytes, host_bytes, total_bytes, ..self }
    }

    /// The pool and its tenants under `rule`, which all serve the model in `folder`, as documents for the loader.
    pub fn manifest(&self, rule: Rule, promise: Promise, folder: &str) -> String {
        let quantity = |bytes| Quantity::from_bytes(bytes).as_str().to_owned();
        let device = json!({"host": {
            "memory": quantity(self.memory_bytes), "chunkBytes": quantity(self.chunk_bytes),
            "linkBytesPerSecond": quantity(self.link_bytes_per_s),
        }});
        let sharing = json!({"mode": "Temporal", "temporal": {"order": "RoundRobin"}});
        let pool = json!({
            "deviceClassName": HOST_DEVICE_CLASS, "device": device, "policy": rule.policy(),
            "gpus": [{"name": "shared", "sharing": sharing}], "hostMemoryPerGPU": quantity(self.host_bytes),
        });
        let tenant = |name: &&str| {
            let spec = json!({
                "poolRef": {"name": "demo"}, "drainSeconds": 1,
                "slo": {"ttftMilliseconds": promise.ttft_ms, "tbtMilliseconds": promise.tbt_ms},
                "model": {"source": {"type": "File", "file": {"path": folder}}, "maxModelLen": self.context},
            });
            object("ModelTenant", name, &spec)
        };
        let objects = std::iter::once(object("GpuPool", "demo", &pool)).chain(TENANTS.iter().map(tenant));
        objects.collect::<Vec<_>>().join("\n---\n")
    }
}

/// JSON, which is YAML too.
fn object(kind: &str, name: &str, spec: &serde_json::Value) -> String {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

#[cfg(test)]
mod tests {
    use sluice_types::load;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(cores: u32) -> Machine {
        Machine { cores, copy_bytes_per_s: 8_000_000_000, others_permille: Some(0) }
    }

    /// 32 layers of 1.6 MiB, 32 KiB of KV a token.
    fn model() -> Geometry {
        Geometry {
            global_bytes: MIB / 4,
            layer_bytes: 13 << 17,
            layers: 32,
            kv_bytes_per_token: 1 << 15,
            max_model_len: 512,
            activation_bytes: MIB,
            step_activation_bytes: 2 * MIB,
            thread_bytes: 1000,
            staging_bytes: 0,
            download_bytes: None,
        }
    }

    #[test]
    fn one_core_is_left_for_copies_and_the_link_takes_a_quarter_of_it() {
        let threads =
            [1, 2, 4, 96].map(|cores| Setting::new(&machine(cores), &model(), Lengths::SHOW).threads);
        assert_eq!(threads, [1, 1, 3, 8]);
        assert_eq!(Setting::new(&machine(2), &model(), Lengths::SHOW).link_bytes_per_s, 2_000_000_000);
    }

    #[test]
    fn a_burst_exhausts_a_share_and_fits_with_what_one_neighbour_may_lend() {
        let (model, tokens) = (model(), 160);
        let setting = Setting::new(&machine(2), &model, Lengths::SHOW);
        let request = tokens * model.kv_bytes_per_token;
        let fixed = model.global_bytes + 32 * model.layer_bytes + model.step_activation_bytes;
        let kv = setting.memory_bytes / 3 - fixed;
        let lent = 32 * 60 / 100 * model.layer_bytes;
        assert_eq!((setting.requests, setting.chunk_bytes), (8, 64 << 10));
        assert!(kv >= 2 * request && kv < 3 * request, "{kv} of {request}");
        assert!(kv + lent >= setting.requests * request, "{kv} and {lent}");
        // Of a model that has nothing to lend a burst still exhausts the share.
        let tiny = Geometry { layer_bytes: 1000, ..model };
        assert_eq!(Setting::new(&machine(2), &tiny, Lengths::SHOW).requests, 4);
    }

    #[test]
    fn a_longer_context_has_room_in_each_share() {
        let setting = Setting::new(&machine(2), &model(), Lengths::SHOW);
        let longer = setting.for_context(&model(), 4096);
        assert_eq!(longer.context, 512, "the model's own is the longest");
        assert!(longer.memory_bytes - setting.memory_bytes >= 3 * (512 - 2 * 176) * 32 * 1024, "{longer:?}");
        assert_eq!(setting.for_context(&model(), 8).memory_bytes, setting.memory_bytes);
    }

    #[test]
    fn promises_follow_from_the_speed_of_the_model() {
        assert_eq!(Promise::of(100.2, 8_000_000, 7), Promise { ttft_ms: 802, tbt_ms: 50 });
        assert_eq!(Promise::of(0.0, 32_000_000, 4), Promise { ttft_ms: 1, tbt_ms: 96 });
    }

    #[test]
    fn the_tenants_are_ones_that_the_product_takes() {
        let setting = Setting::new(&machine(2), &model(), Lengths::QUICK);
        for rule in [Rule::Fixed, Rule::Lending] {
            let text = setting.manifest(rule, Promise::UNKNOWN, "/it's/a \"model\"");
            let loaded = load::load_valid_str(&text, "demo").unwrap_or_else(|errors| panic!("{errors:?}"));
            assert_eq!(loaded.len(), 4);
        }
    }
}
