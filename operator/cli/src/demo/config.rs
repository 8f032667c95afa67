//! Derives engine threads, link, memory and load of the demo from the machine and the sizes of the model. Pure.

use std::time::Duration;

use serde_json::json;
use sluice_plan::geometry::to_status;
use sluice_plan::resource_demand::{self, DemandParams};
use sluice_plan::sizes::{self, SMALL_PROCESS_BYTES};
use sluice_types::pool::Policy;
use sluice_types::{HOST_DEVICE_CLASS, Quantity};
use sluice_wire::geometry::Geometry;

use super::machine::MachineSpeed;
use crate::chunk_size::{block_bytes, chunk_bytes};

/// The tenants, in the order of the page.
pub const TENANTS: [&str; 3] = ["chat", "code", "summary"];
/// Namespace of the tenants. It must not clash with one of the user.
pub const NAMESPACE: &str = "sluice-demo";

/// Most threads of an engine: the models of a demo are too small for more.
const MAX_THREADS: u32 = 8;
/// The link has this part of the bandwidth of one copying thread: copies take at most this part of one core.
const LINK_DIVISOR: u64 = 4;
/// Number of requests whose KV fits into a tenant's share.
const REQUESTS_PER_SHARE: u64 = 2;
/// Number of requests of a burst.
const BURST_REQUESTS: std::ops::RangeInclusive<u64> = 4..=8;
/// Maximum part of its layers that a peer lends, percent: the default of a `GpuPool`.
const LENDABLE_PERCENT: u64 = 60;
/// Least promised time between tokens, milliseconds: about reading speed.
const MIN_TBT_MS: u64 = 50;
/// Spare chunks of a tenant's share: the last chunk of each owner is not full.
const SPARE_CHUNKS: u64 = 2;

/// How the tenants share their GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharingPolicy {
    /// Fixed partitions: requests that do not fit are preempted and recomputed.
    Fixed,
    /// Idle tenants lend the memory of their weights.
    Lending,
}

impl SharingPolicy {
    /// Returns the title for users.
    pub fn title(self) -> &'static str {
        match self {
            SharingPolicy::Fixed => "fixed partitions (Recompute)",
            SharingPolicy::Lending => "lending (Oneiros)",
        }
    }

    fn policy_name(self) -> &'static str {
        match self {
            SharingPolicy::Fixed => "Recompute",
            SharingPolicy::Lending => "Oneiros",
        }
    }
}

/// Lengths of one request, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLengths {
    /// Prompt.
    pub prompt: u32,
    /// Answer.
    pub output: u32,
}

impl RequestLengths {
    /// Lengths of a full demo.
    pub const SHOW: RequestLengths = RequestLengths { prompt: 64, output: 96 };
    /// Lengths of a quick demo.
    pub const QUICK: RequestLengths = RequestLengths { prompt: 64, output: 32 };

    /// Returns prompt, answer and some spare tokens.
    fn context_tokens(self) -> u32 {
        self.prompt + self.output + 8
    }
}

/// Latency targets that clients are promised, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySlo {
    /// Time to the first token.
    pub ttft_ms: u64,
    /// Time between two tokens.
    pub tbt_ms: u64,
}

impl LatencySlo {
    /// Targets before any measurement.
    pub const UNKNOWN: LatencySlo = LatencySlo { ttft_ms: 2000, tbt_ms: MIN_TBT_MS };

    /// Time to the first token.
    pub fn ttft(self) -> Duration {
        Duration::from_millis(self.ttft_ms)
    }

    /// Derives the objective from the first tokens and the step of a warm-up that fills a share with requests.
    pub fn from_warm_up(ttft_ms: f64, step_ns: u64, requests: u64) -> LatencySlo {
        // Prompts are computed one after the other. Twice that time lets a burst that is served at once meet the
        // target.
        let bursts = requests.div_ceil(REQUESTS_PER_SHARE) as f64;
        let ttft_ms = (2.0 * bursts * ttft_ms).ceil() as u64;
        // Slower than the token rate of a full batch, so that a stream builds up a reserve.
        LatencySlo { ttft_ms: ttft_ms.max(1), tbt_ms: (3 * step_ns).div_ceil(1_000_000).max(MIN_TBT_MS) }
    }
}

/// Settings that both rules share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemoConfig {
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
    /// Memory of this machine that the demo uses in all, bytes.
    pub total_bytes: u64,
    /// Requests of a burst.
    pub requests: u64,
    /// Lengths of each.
    pub lengths: RequestLengths,
    /// Longest sequence, tokens.
    pub context: u32,
}

impl DemoConfig {
    /// Computes the settings for `machine` and three tenants of a model of these sizes.
    pub fn new(machine: &MachineSpeed, model: &Geometry, lengths: RequestLengths) -> DemoConfig {
        // One core is reserved for copies, sidecars and clients, which would otherwise slow down the engine.
        let threads = machine.cores.saturating_sub(1).clamp(1, MAX_THREADS);
        let chunk_bytes = chunk_bytes([model]);
        let tokens = u64::from(lengths.prompt + lengths.output);
        let lendable = u64::from(model.layers) * LENDABLE_PERCENT / 100 * model.layer_bytes;
        let lent = lendable / (tokens * model.kv_bytes_per_token).max(1);
        let requests = (REQUESTS_PER_SHARE + lent).clamp(*BURST_REQUESTS.start(), *BURST_REQUESTS.end());
        let setting = DemoConfig {
            threads,
            link_bytes_per_s: (machine.copy_bytes_per_s / LINK_DIVISOR).max(1),
            chunk_bytes,
            memory_bytes: 0,
            host_bytes: 0,
            total_bytes: 0,
            requests,
            lengths,
            context: lengths.context_tokens(),
        };
        setting.with_memory(model, REQUESTS_PER_SHARE)
    }

    /// Returns the settings for sequences of up to `context` tokens, with KV for at least one per tenant.
    pub fn for_context(self, model: &Geometry, context: u32) -> DemoConfig {
        let context = context.min(model.max_model_len).max(self.context);
        let larger = DemoConfig { context, ..self }.with_memory(model, 1);
        if larger.memory_bytes > self.memory_bytes { larger } else { DemoConfig { context, ..self } }
    }

    /// Sets memory for three copies of the weights, the activations, and KV of `sequences` sequences.
    fn with_memory(self, model: &Geometry, sequences: u64) -> DemoConfig {
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
        let (memory_bytes, host_bytes) = (tenants * share * chunk, tenants * self.tenant_host_bytes(model));
        let total_bytes = memory_bytes + host_bytes + tenants * SMALL_PROCESS_BYTES;
        DemoConfig { memory_bytes, host_bytes, total_bytes, ..self }
    }

    /// Returns the host memory of one tenant, as its placement counts it.
    fn tenant_host_bytes(&self, model: &Geometry) -> u64 {
        let spec = serde_json::from_value(self.tenant_spec(LatencySlo::UNKNOWN, "model"));
        let spec = spec.expect("the tenant of the demo is a tenant");
        let sizes = resource_demand::EngineGeometry::from_status(&to_status(model), self.threads);
        let terms = DemandParams {
            chunk_bytes: self.chunk_bytes,
            context_bytes: 0,
            host_gpu_bytes: None,
            policy: Policy::Oneiros,
        };
        resource_demand::demand(&spec, &sizes.expect("an inspected model has sizes"), &terms).host_bytes
    }

    fn tenant_spec(&self, promise: LatencySlo, folder: &str) -> serde_json::Value {
        json!({
            "poolRef": {"name": "demo"}, "drainSeconds": 1,
            "slo": {"ttftMilliseconds": promise.ttft_ms, "tbtMilliseconds": promise.tbt_ms},
            "model": {"source": {"type": "File", "file": {"path": folder}}, "maxModelLen": self.context},
        })
    }

    /// Returns the pool and its tenants under `rule` as documents for the loader. All tenants serve the model in
    /// `folder`.
    pub fn manifest(&self, rule: SharingPolicy, promise: LatencySlo, folder: &str) -> String {
        let quantity = |bytes| Quantity::from_bytes(bytes).as_str().to_owned();
        let device = json!({"host": {
            "memory": quantity(self.memory_bytes), "chunkBytes": quantity(self.chunk_bytes),
            "linkBytesPerSecond": quantity(self.link_bytes_per_s),
        }});
        let sharing = json!({"mode": "Temporal", "temporal": {"order": "RoundRobin"}});
        let pool = json!({
            "deviceClassName": HOST_DEVICE_CLASS, "device": device, "policy": rule.policy_name(),
            "gpus": [{"name": "shared", "sharing": sharing}], "hostMemoryPerGPU": quantity(self.host_bytes),
        });
        let tenant = |name: &&str| manifest_object("ModelTenant", name, &self.tenant_spec(promise, folder));
        let objects =
            std::iter::once(manifest_object("GpuPool", "demo", &pool)).chain(TENANTS.iter().map(tenant));
        objects.collect::<Vec<_>>().join("\n---\n")
    }
}

/// Returns JSON, which is also YAML.
fn manifest_object(kind: &str, name: &str, spec: &serde_json::Value) -> String {
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}).to_string()
}

#[cfg(test)]
mod tests {
    use sluice_types::load;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn machine(cores: u32) -> MachineSpeed {
        MachineSpeed { cores, copy_bytes_per_s: 8_000_000_000, other_cpu_permille: Some(0) }
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
    fn one_core_is_reserved_for_copies_and_link_gets_a_quarter() {
        let threads = [1, 2, 4, 96]
            .map(|cores| DemoConfig::new(&machine(cores), &model(), RequestLengths::SHOW).threads);
        assert_eq!(threads, [1, 1, 3, 8]);
        assert_eq!(
            DemoConfig::new(&machine(2), &model(), RequestLengths::SHOW).link_bytes_per_s,
            2_000_000_000
        );
    }

    #[test]
    fn burst_exceeds_share_and_fits_with_one_peer_loan() {
        let (model, tokens) = (model(), 160);
        let setting = DemoConfig::new(&machine(2), &model, RequestLengths::SHOW);
        let request = tokens * model.kv_bytes_per_token;
        let fixed = model.global_bytes + 32 * model.layer_bytes + model.step_activation_bytes;
        let kv = setting.memory_bytes / 3 - fixed;
        let lent = 32 * 60 / 100 * model.layer_bytes;
        assert_eq!((setting.requests, setting.chunk_bytes), (8, 64 << 10));
        assert!(kv >= 2 * request && kv < 3 * request, "{kv} of {request}");
        assert!(kv + lent >= setting.requests * request, "{kv} and {lent}");
        // If a model has nothing to lend, a burst still exhausts the share.
        let tiny = Geometry { layer_bytes: 1000, ..model };
        assert_eq!(DemoConfig::new(&machine(2), &tiny, RequestLengths::SHOW).requests, 4);
    }

    #[test]
    fn longer_context_fits_in_each_share() {
        let setting = DemoConfig::new(&machine(2), &model(), RequestLengths::SHOW);
        let longer = setting.for_context(&model(), 4096);
        assert_eq!(longer.context, 512, "the model's own is the longest");
        assert!(longer.memory_bytes - setting.memory_bytes >= 3 * (512 - 2 * 176) * 32 * 1024, "{longer:?}");
        assert_eq!(setting.for_context(&model(), 8).memory_bytes, setting.memory_bytes);
    }

    #[test]
    fn slo_follows_from_model_speed() {
        assert_eq!(LatencySlo::from_warm_up(100.2, 8_000_000, 7), LatencySlo { ttft_ms: 802, tbt_ms: 50 });
        assert_eq!(LatencySlo::from_warm_up(0.0, 32_000_000, 4), LatencySlo { ttft_ms: 1, tbt_ms: 96 });
    }

    #[test]
    fn generated_manifest_is_valid() {
        let setting = DemoConfig::new(&machine(2), &model(), RequestLengths::QUICK);
        for rule in [SharingPolicy::Fixed, SharingPolicy::Lending] {
            let text = setting.manifest(rule, LatencySlo::UNKNOWN, "/it's/a \"model\"");
            let loaded = load::load_valid_str(&text, "demo").unwrap_or_else(|errors| panic!("{errors:?}"));
            assert_eq!(loaded.len(), 4);
        }
    }
}
