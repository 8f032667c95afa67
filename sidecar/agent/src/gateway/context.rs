//! [`Gateway`]: what all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use sluice_policy::token_deposit::Pacing;
use sluice_wire::config::LimitsConfig;

use super::body::BodyLimits;
use super::endpoint::Endpoint;
use super::keys::ApiKeys;
use super::limits::RequestLimiter;
use crate::metrics::Metrics;
use crate::model::text::Text;
use crate::scheduler_handle::SchedulerHandle;

/// State of the gateway, shared by all requests.
pub struct Gateway {
    /// Tokenizer and chat template of the model.
    pub text: Arc<Text>,
    /// Handle to the scheduler.
    pub service: SchedulerHandle,
    /// Metrics of this sidecar.
    pub metrics: Arc<Metrics>,
    /// Names of the model; responses report the first one.
    pub served_names: Vec<String>,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Longest sequence, tokens.
    pub max_model_tokens: u32,
    /// Limits on clients.
    pub limits: LimitsConfig,
    /// Pacing of streamed responses.
    pub stream_pacing: Pacing,
    /// Keys that authorize requests.
    pub api_keys: ApiKeys,
    /// Limiter of open requests and bodies.
    pub limiter: RequestLimiter,
    /// Unix time of the start, seconds.
    pub started: u64,
    /// Number of the next response, for its id. Starts at random, so that ids differ between tenants and runs.
    pub next_response: AtomicU64,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Omits the keys, which must not be logged.
        f.debug_struct("Gateway")
            .field("names", &self.served_names)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl BodyLimits for Gateway {
    fn max_body_bytes(&self) -> u64 {
        self.limits.max_body_bytes
    }

    fn limiter(&self) -> &RequestLimiter {
        &self.limiter
    }
}

impl Gateway {
    /// Returns the pacing of a response: only streams are paced.
    pub fn pacing(&self, stream: bool) -> Pacing {
        if stream { self.stream_pacing } else { Pacing::Immediate }
    }

    pub(super) fn next_id(&self, kind: Endpoint) -> String {
        let prefix = match kind {
            Endpoint::Completion => "cmpl",
            Endpoint::Chat => "chatcmpl",
        };
        format!("{prefix}-{:016x}", self.next_response.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the current Unix time, seconds.
    pub fn unix_seconds() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }
}
