//! How a tenant is served: objectives, order, pacing, idleness, processes, limits, access.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::rules;
use crate::shared::{EnvVar, LabelSelector, Resources, SecretKeyRef};

// `SloConfig` of sluice-wire is what sidecars read: `sluice_plan::spec_convert` converts.
/// Service level objectives of delivered tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Slo {
    /// Time to the first token, milliseconds. Default 2000.
    #[schemars(range(min = 1, max = 3_600_000))]
    pub ttft_milliseconds: i32,
    /// Time between tokens, milliseconds; also the pace of a stream. Default 50.
    #[schemars(range(min = 1, max = 60_000))]
    pub tbt_milliseconds: i32,
    /// Share of tokens in a window that may be late, permille. Default 10.
    #[schemars(range(min = 0, max = 1000))]
    pub allowed_miss_permille: i32,
    /// Length of the window, seconds. Default 60.
    #[schemars(range(min = 1, max = 3600))]
    pub window_seconds: i32,
    /// Longest total pause of a request, seconds. Under Unified, time in which its client reads from the deposit does not
    /// count, and a late request goes behind others once, by this time. 0: no pauses. Default 10.
    #[schemars(range(min = 0, max = 3600))]
    pub max_pause_seconds: i32,
}

impl Default for Slo {
    fn default() -> Self {
        Slo {
            ttft_milliseconds: 2000,
            tbt_milliseconds: 50,
            allowed_miss_permille: 10,
            window_seconds: 60,
            max_pause_seconds: 10,
        }
    }
}

/// Order of a tenant's requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Scheduling {
    /// FirstCome, or ShortestRemaining (least work left first). Default FirstCome.
    pub order: QueueOrder,
}

// The sidecar's file has the name of the value, which sluice-agent reads as the scheduler's `QueueOrder`.
/// Order of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    FirstCome,
    /// Least work left first.
    ShortestRemaining,
}

/// How tokens are written to clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Pacing {
    /// TokenDeposit (early tokens wait in the sidecar and are written at the pace of slo.tbtMilliseconds) or Immediate.
    /// Default TokenDeposit.
    pub mode: PacingMode,
}

/// Pacing of streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PacingMode {
    /// OrbitFlow's Token-Deposit.
    #[default]
    TokenDeposit,
    /// A token is written when it is produced.
    Immediate,
}

/// When a tenant without requests is idle, and when it hibernates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Idle {
    /// Time without a request after which the tenant counts as idle, seconds. Default 30.
    #[schemars(range(min = 1, max = 86_400))]
    pub after_seconds: i32,
    /// Time without a request after which the tenant hibernates and releases all its device memory, seconds; larger
    /// than afterSeconds.
    /// Default 600.
    #[schemars(range(min = 2, max = 604_800))]
    pub hibernate_after_seconds: i32,
}

impl Default for Idle {
    fn default() -> Self {
        Idle { after_seconds: 30, hibernate_after_seconds: 600 }
    }
}

/// The process that runs the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Engine {
    /// Native (Sluice's engine, which lends its memory) or Vllm (vLLM behind a proxy with pacing, holding of requests
    /// and sleep; vLLM lends no memory). Immutable. Default Native.
    pub kind: EngineKind,
    /// Image of the engine. Default: the operator's for Native; Vllm needs one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// Arguments added to the engine's own. Default: none; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 1024)), extend("x-kubernetes-list-type" = "atomic"))]
    pub args: Vec<String>,
    /// Environment variables added. Default: none; at most 64.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub env: Vec<EnvVar>,
    /// CPUs and memory of the engine's container. Default: computed by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Shortest time without progress after which a native engine counts as hung and is replaced, seconds; longer where
    /// its steps take longer. Default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub hang_timeout_seconds: Option<i32>,
}

// That of sluice-wire is what sidecars read; `sluice_plan::objects::config` converts.
/// Kind of engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EngineKind {
    /// `sluice-engine`.
    #[default]
    Native,
    /// vLLM behind the proxy.
    Vllm,
}

/// The process that owns the memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Sidecar {
    /// CPUs and memory of the sidecar's container. Default: computed by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

/// Limits on clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Limits {
    /// Requests that may wait; one more is answered 429. Default 1024.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_queued_requests: i32,
    /// Requests that may be open at once, streamed or not; one more is answered 429. Default 2048.
    #[schemars(range(min = 1, max = 100_000))]
    pub max_streams: i32,
    /// Longest prompt, tokens. Default: model.maxModelLen.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_prompt_tokens: Option<i32>,
    /// Longest time a request is held while the tenant wakes or its engine restarts, seconds; then 503. Default 30.
    #[schemars(range(min = 0, max = 600))]
    pub hold_seconds: i32,
    /// Largest body of a request, bytes as a quantity. Default 4Mi.
    pub max_body_bytes: Quantity,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_queued_requests: 1024,
            max_streams: 2048,
            max_prompt_tokens: None,
            hold_seconds: 30,
            max_body_bytes: Quantity::from_bytes(4 << 20),
        }
    }
}

/// Which clients may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Access {
    /// Pods that may connect, enforced by a NetworkPolicy. Default: all pods; at most 32 entries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub from: Vec<AccessPeer>,
    /// Key of a Secret that holds the API keys, one a line. Default: none, requests need no key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_keys_secret_ref: Option<SecretKeyRef>,
    /// File that holds the API keys, one a line, only for `sluice up`; a relative path starts at the folder of the YAML
    /// file. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096), extend("pattern" = rules::PATH))]
    pub api_keys_file: Option<String>,
}

/// Pods that may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AccessPeer {
    /// Namespaces, by labels. Default: the tenant's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Pods in them, by labels. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
}
