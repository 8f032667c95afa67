//! Defines the command line. Every flag has an environment variable, so that a chart sets either.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use sluice_plan::objects::ADMIN_PORT;
use sluice_wire::overview;

use crate::api_keys;
use crate::sidecars::poller::POLL_INTERVAL;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let (api, wire) = (sluice_types::API_VERSION, sluice_wire::state::VERSION);
    format!("{} (commit {}, API {api}, wire {wire})", env!("CARGO_PKG_VERSION"), env!("SLUICE_COMMIT"))
});

/// The operator of Sluice: places tenants on GPUs and manages their objects.
#[derive(Clone, Debug, Parser)]
#[command(name = "sluice-operator", version = VERSION.as_str())]
pub struct Args {
    /// Namespaces to watch, separated by commas. Default: all.
    #[arg(long, env = "SLUICE_NAMESPACES", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// Namespace of the operator itself: of its Lease and its certificate authority.
    #[arg(long, env = "POD_NAMESPACE", default_value = "sluice-system")]
    pub own_namespace: String,
    /// Name of this replica. Default: the name of the host, which in a pod is the name of the pod.
    #[arg(long, env = "POD_NAME")]
    pub identity: Option<String>,
    /// Labels of the operator's pods, as KEY=VALUE. NetworkPolicies let these pods reach every admin port.
    #[arg(
        long,
        env = "SLUICE_OPERATOR_LABELS",
        value_delimiter = ',',
        value_parser = parse_label,
        default_value = "app.kubernetes.io/name=sluice-operator"
    )]
    pub own_labels: Vec<(String, String)>,
    /// Image of `sluice-sidecar`.
    #[arg(long, env = "SLUICE_SIDECAR_IMAGE")]
    pub sidecar_image: String,
    /// Image of `sluice-engine`.
    #[arg(long, env = "SLUICE_ENGINE_IMAGE")]
    pub engine_image: String,
    /// Names of Secrets with which all pods of tenants pull their images, in addition to a tenant's own, separated by
    /// commas. A namespace may lack them.
    #[arg(long, env = "SLUICE_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub image_pull_secrets: Vec<String>,
    /// Name of the Lease that makes one replica the leader.
    #[arg(long, env = "SLUICE_LEASE_NAME", default_value = "sluice-operator")]
    pub lease_name: String,
    /// Time after which a leader that does not renew its Lease is replaced, seconds.
    #[arg(long, env = "SLUICE_LEASE_SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(3..=300))]
    pub lease_seconds: u32,
    /// Time after which a node that is not ready counts as lost, seconds.
    #[arg(long, env = "SLUICE_NODE_GRACE_SECONDS", default_value_t = 60, value_parser = clap::value_parser!(i64).range(0..=3600))]
    pub node_grace_seconds: i64,
    /// Shortest time between two writes of one object's status while none of its conditions changes, seconds.
    #[arg(long, env = "SLUICE_STATUS_SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub status_seconds: u64,
    /// Address of /healthz, /readyz and /metrics.
    #[arg(long, env = "SLUICE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: SocketAddr,
    /// OpenTelemetry collector that takes traces by OTLP over HTTP, such as http://collector:4318. It gets a span for
    /// each reconciliation of a pool. Default: no traces.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Address of the read API, which serves the states of all tenants. A user with the right to forward ports to the
    /// pod can read them.
    #[arg(long, env = "SLUICE_READ_LISTEN", default_value_t = SocketAddr::from(([127, 0, 0, 1], overview::PORT)))]
    pub read_listen: SocketAddr,
    /// Time between two readings of a GPU's sidecars, seconds. For measurements.
    #[arg(long, hide = true, default_value_t = POLL_INTERVAL.as_secs(), value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub poll_seconds: u64,
    /// Time between two checks of a Secret that may have changed, seconds, in place of both built-in ones. For tests.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub secret_seconds: Option<u32>,
    /// Read no sidecar. For a test that shows that budgets fail without readings.
    #[arg(long, hide = true)]
    pub no_polling: bool,
    /// Port on which sidecars are called. For measurements in which one listener serves all sidecars.
    #[arg(long, hide = true, default_value_t = ADMIN_PORT.unsigned_abs() as u16)]
    pub sidecar_port: u16,
    /// How log lines are written.
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
    /// Which log lines are written, in the syntax of `RUST_LOG`.
    #[arg(long, env = "SLUICE_LOG", default_value = "info,kube=warn,kube_client::client::builder=off")]
    pub log: String,
}

/// Formats of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Args {
    /// Returns the name of this replica.
    pub fn identity(&self) -> String {
        let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.identity.clone().unwrap_or_else(|| host().trim().to_owned())
    }

    /// Returns the time between two readings of a GPU; `None` = no sidecar is read.
    pub fn poll_interval(&self) -> Option<Duration> {
        (!self.no_polling).then(|| Duration::from_secs(self.poll_seconds))
    }

    /// Returns the time between two checks of the Secrets with API keys.
    pub fn api_key_interval(&self) -> Duration {
        self.secret_seconds.map_or(api_keys::POLL_INTERVAL, |seconds| Duration::from_secs(u64::from(seconds)))
    }

    /// See [`Args::status_seconds`].
    pub const fn status_interval(&self) -> Duration {
        Duration::from_secs(self.status_seconds)
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{text}` is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}
