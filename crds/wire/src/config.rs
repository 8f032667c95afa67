//! Configuration of a sidecar: one JSON file, written by `sluice up` or by the operator, read at start.
//!
//! Unknown fields are refused: a sidecar never runs with a partly understood configuration.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Everything a sidecar needs to serve one tenant slot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarConfig {
    /// Namespace of the tenant.
    pub namespace: String,
    /// Name of the tenant.
    pub name: String,
    /// Names under which clients ask for the model; the first is reported. Empty = the tenant's name.
    #[serde(default)]
    pub served_names: Vec<String>,
    /// Folder in Hugging Face layout.
    pub model_path: PathBuf,
    /// Number format in memory; `None` = as stored.
    #[serde(default)]
    pub dtype: Option<String>,
    /// Longest sequence, tokens; `None` = what the model was made for.
    #[serde(default)]
    pub max_model_len: Option<u32>,
    /// The GPU.
    pub gpu: GpuConfig,
    /// Its place on a GPU that it shares; `None` = the GPU is its own.
    #[serde(default, alias = "neighbourhood")]
    pub gpu_ledger: Option<LedgerConfig>,
    /// Named policy, as in `GpuPool.spec.policy`.
    pub policy: String,
    /// Memory of the tenant.
    pub memory: MemoryConfig,
    /// Service level objectives.
    #[serde(default)]
    pub slo: SloConfig,
    /// `FirstCome` or `ShortestRemaining`.
    #[serde(default = "first_come")]
    pub order: String,
    /// `TokenDeposit` or `Immediate`.
    #[serde(default = "token_deposit")]
    pub pacing: String,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// File with one API key per line; `None` = open.
    #[serde(default)]
    pub api_keys_file: Option<PathBuf>,
    /// Sockets.
    pub listen: ListenConfig,
    /// Folder for the engine's socket, the admin token and the sidecar's own record; made if absent, 0700.
    pub runtime_dir: PathBuf,
    /// The engine.
    #[serde(default)]
    pub engine: EngineConfig,
    /// Idle time, seconds, after which the tenant gives up its memory until its next request; a directive may
    /// override it. `None` = never.
    #[serde(default)]
    pub hibernate_after_seconds: Option<u32>,
    /// Time for open streams at shutdown, seconds.
    #[serde(default = "thirty")]
    pub drain_seconds: u32,
    /// Records the event queue here.
    #[serde(default)]
    pub journal: Option<PathBuf>,
    /// Numbers of the policy that are not its defaults, by name (`sluice-sim tunables` lists them). Not written
    /// when empty: older sidecars know none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tunables: BTreeMap<String, u64>,
    /// Tests and experiments.
    #[serde(default)]
    pub debug: DebugConfig,
}

/// The GPU of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuConfig {
    /// Name in the pool, for people.
    pub name: String,
    /// The CUDA device; `None` = host memory stands in for a GPU. Not written when absent: older sidecars know none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<CudaConfig>,
    /// Device memory, bytes.
    pub memory_bytes: u64,
    /// Chunk, bytes.
    pub chunk_bytes: u64,
    /// Bandwidth of the link, bytes per second; `None` = as fast as memory copies.
    #[serde(default)]
    pub link_bytes_per_second: Option<u64>,
    /// Bandwidth from the device to the host where it is another; `None` = the same.
    #[serde(default)]
    pub link_to_host_bytes_per_second: Option<u64>,
    /// Host memory that master copies of weights on this GPU may take, bytes; `None` = no limit.
    #[serde(default)]
    pub host_memory_bytes: Option<u64>,
}

/// A CUDA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaConfig {
    /// UUID as `nvidia-smi -L` shows it; `None` = the only device that the process sees, as in a pod.
    #[serde(default)]
    pub uuid: Option<String>,
}

/// A tenant's part of a GPU that it shares. A directive names its peers and the rules of lending and borrowing;
/// before the first directive, every tenant keeps to its share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LedgerConfig {
    /// Folder that the tenants of the GPU share; it exists.
    pub folder: PathBuf,
    /// Names the claim on the GPU: another claim has another ledger.
    pub claim: String,
    /// Memory that the tenant can hold without a loan, bytes; the shares of a GPU sum to at most its memory.
    pub share_bytes: u64,
    /// Among the tenants of the GPU; higher is more important.
    #[serde(default)]
    pub priority: i32,
    /// How the tenants share the GPU's time.
    pub sharing: crate::directive::Sharing,
}

/// Memory of the tenant, bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// KV that it can always hold. `None` = one sequence of `max_model_len`.
    #[serde(default)]
    pub guaranteed_kv_bytes: Option<u64>,
    /// KV that it may hold at most. `None` = no limit.
    #[serde(default)]
    pub kv_limit_bytes: Option<u64>,
    /// Host memory for KV that leaves the device, taken at start. 0 = none: a tenant that hibernates computes its KV
    /// again.
    #[serde(default)]
    pub host_kv_bytes: u64,
    /// Share of the layers that may be remapped, percent.
    #[serde(default = "sixty")]
    pub max_remapped_percent: u32,
}

/// Service level objectives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SloConfig {
    /// Time to first token, milliseconds.
    pub ttft_milliseconds: u32,
    /// Time between tokens, milliseconds.
    pub tbt_milliseconds: u32,
    /// Share of delivered tokens that may be late, permille.
    pub allowed_miss_permille: u32,
    /// Window of the share, seconds.
    pub window_seconds: u32,
    /// Longest total pause of one request, seconds; 0 = no pauses.
    pub max_pause_seconds: u32,
}

impl Default for SloConfig {
    fn default() -> Self {
        SloConfig {
            ttft_milliseconds: 2000,
            tbt_milliseconds: 50,
            allowed_miss_permille: 10,
            window_seconds: 60,
            max_pause_seconds: 10,
        }
    }
}

/// Limits on clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Requests that may wait.
    pub max_queued_requests: u32,
    /// Requests open at once, streamed or not.
    pub max_streams: u32,
    /// Tokens of a prompt; `None` = what the context holds.
    pub max_prompt_tokens: Option<u32>,
    /// How long a request is held while the tenant cannot run, seconds.
    pub hold_seconds: u32,
    /// Body of a request, bytes.
    pub max_body_bytes: u64,
    /// Tokens of one step.
    pub max_step_tokens: u32,
    /// Sequences that run at once.
    pub max_sequences: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        LimitsConfig {
            max_queued_requests: 1024,
            max_streams: 2048,
            max_prompt_tokens: None,
            hold_seconds: 30,
            max_body_bytes: 4 << 20,
            max_step_tokens: 512,
            max_sequences: 64,
        }
    }
}

/// Addresses. Port 0 takes a free port; the sidecar's record has the actual one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenConfig {
    /// OpenAI API.
    pub serve: SocketAddr,
    /// Admin: state, directive, grants. Without `admin_tls` it accepts tokens: the one in the runtime folder opens
    /// everything.
    pub admin: SocketAddr,
    /// Probes and a copy of the metrics.
    pub probes: SocketAddr,
    /// Whether `GET /drain` on the probes' port drains, for a pod's preStop hooks.
    #[serde(default)]
    pub drain_hook: bool,
    /// Value of [`DRAIN_HEADER`] that a hook has to send; `None` = every client of the port can end the tenant's
    /// process. Not written when there is none: older sidecars do not know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_key: Option<String>,
    /// Mutual TLS on the admin port; `None` = tokens. With it, tokens open nothing.
    #[serde(default)]
    pub admin_tls: Option<AdminTls>,
    /// File with the tokens of the peers of one GPU, which give them access to grants and state. A line is `TOKEN`
    /// or `TOKEN NAMESPACE/NAME`: a token that is bound to a tenant is valid for that tenant only. The sidecar
    /// sends its peers the token bound to its own tenant, else the first unbound one. `None` = no peer has a token.
    /// Not used with `admin_tls`.
    #[serde(default, alias = "neighbour_token_file")]
    pub peer_token_file: Option<PathBuf>,
}

/// Mutual TLS of the admin port, TLS 1.3. All files are PEM and are read again when they change.
///
/// A sidecar has one certificate, as a server and as a client. It holds exactly one DNS name of the form
/// `NAME.NAMESPACE.sidecar.sluice` ([`admin_host`]), which names the tenant: clients check it when they connect, and a
/// peer acts for that tenant only. A URI among the alternative names holds the role, which limits a client:
///
/// | URI | may |
/// |---|---|
/// | `spiffe://sluice/role/operator` | everything |
/// | `spiffe://sluice/role/peer/CLAIM` | grants and state, if CLAIM is this sidecar's |
/// | `spiffe://sluice/role/reader` | state |
///
/// `neighbour/CLAIM` is an older word for `peer/CLAIM`. The operator still writes it, because sidecars of the version
/// before know no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminTls {
    /// Certificate and the chain that its peers need.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of the certificates that peers may present; more than one during the replacement of an
    /// authority.
    pub client_ca: PathBuf,
    /// Claim of the GPU, as in the peers' certificates: letters, digits, `-`, `_` and `.`.
    pub claim: String,
}

/// The header with a hook's key.
pub const DRAIN_HEADER: &str = "x-sluice-drain";

/// The name by which a tenant's sidecar is known to its peers on the admin port.
pub fn admin_host(namespace: &str, name: &str) -> String {
    format!("{name}.{namespace}.sidecar.sluice")
}

/// Returns the tenant, namespace and name, of this [`admin_host`]; `None` = it has another form. Namespaces have no
/// dots.
pub fn tenant_of_host(host: &str) -> Option<(&str, &str)> {
    let (name, namespace) = host.strip_suffix(".sidecar.sluice")?.rsplit_once('.')?;
    (!name.is_empty() && !namespace.is_empty()).then_some((namespace, name))
}

/// The engine process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// Which kind of engine it is. Not written for the first kind, which is all that older sidecars know.
    #[serde(skip_serializing_if = "EngineKind::is_native")]
    pub kind: EngineKind,
    /// Where a [`Vllm`](EngineKind::Vllm) engine listens, `http://ADDRESS:PORT` on this host's loopback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Start this binary and keep it alive; `None` = another container does. Only for [`Native`](EngineKind::Native).
    pub spawn: Option<PathBuf>,
    /// Threads; 0 = all cores.
    pub threads: u32,
    /// Least time without progress after which the engine counts as hung, seconds; `None` = the usual one. Not
    /// written then: older sidecars know none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hang_timeout_seconds: Option<u32>,
}

/// Kind of engine. The CRDs have their own type, with a schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum EngineKind {
    /// `sluice-engine`, driven over the link; the sidecar owns its device memory.
    #[default]
    Native,
    /// A server of OpenAI's API that the sidecar stands in front of and does not drive. Its memory is its own.
    Vllm,
}

impl EngineKind {
    fn is_native(&self) -> bool {
        *self == EngineKind::Native
    }
}

/// Switches for tests and experiments. All off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DebugConfig {
    /// Fixed `[alpha, beta]` instead of the controller's choice.
    pub force_remap: Option<(u16, u8)>,
    /// Overwrite every handed-over chunk with NaN.
    pub poison: bool,
    /// Automatic prefix caching off.
    pub no_prefix_cache: bool,
}

/// What a sidecar writes to [`SidecarRecord::FILE`] in its runtime folder once it listens: how others find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecarRecord {
    /// Namespace of the tenant.
    pub namespace: String,
    /// Name of the tenant.
    pub name: String,
    /// Process id of the sidecar, for people.
    pub pid: u32,
    /// OpenAI API.
    pub serve: SocketAddr,
    /// Admin.
    pub admin: SocketAddr,
    /// Probes.
    pub probes: SocketAddr,
    /// File that holds the admin token.
    pub token_file: PathBuf,
    /// Name of the GPU.
    pub gpu: String,
}

impl SidecarRecord {
    /// Name of the file.
    pub const FILE: &str = "sidecar.json";
}

fn first_come() -> String {
    "FirstCome".into()
}

fn token_deposit() -> String {
    "TokenDeposit".into()
}

const fn thirty() -> u32 {
    30
}

const fn sixty() -> u32 {
    60
}
