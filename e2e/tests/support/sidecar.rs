//! One sidecar with its engine, started from its own configuration, as the operator starts it: for fields that
//! `sluice up` does not have.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use reqwest::StatusCode;
use rustix::process::Signal;
use serde_json::json;
use sluice_common::metrics_text;
use sluice_wire::config::SidecarConfig;

use super::http::CLIENT;
use super::tenant::Tenant;
use super::wait::eventually;
use super::{TestEnv, model};

/// Unit of memory.
pub const CHUNK: u64 = 64 << 10;
/// Device memory without pressure.
const AMPLE_BYTES: u64 = 64 << 20;

/// Returns a tenant over `model` without pacing; all memory that changes its owner is poisoned.
pub fn config(world: &TestEnv, model: &Path, policy: &str) -> SidecarConfig {
    let free = "127.0.0.1:0";
    let value = json!({
        "namespace": "default", "name": "tenant", "model_path": model, "policy": policy,
        "gpu": {"name": "gpu", "memory_bytes": AMPLE_BYTES, "chunk_bytes": CHUNK},
        "memory": {}, "limits": {"max_sequences": 8}, "pacing": "Immediate",
        "listen": {"serve": free, "admin": free, "probes": free},
        "runtime_dir": world.path("run").join("default.tenant"),
        "engine": {"spawn": model::binary("sluice-engine"), "threads": 1},
        "drain_seconds": 1, "debug": {"poison": true},
    });
    serde_json::from_value(value).unwrap()
}

/// A sidecar that serves.
#[derive(Debug)]
pub struct Sidecar<'a> {
    child: Child,
    world: &'a TestEnv,
    /// Its tenant.
    pub tenant: Tenant,
}

impl<'a> Sidecar<'a> {
    /// Starts it and waits until it is ready.
    pub async fn start(world: &'a TestEnv, config: &SidecarConfig) -> Sidecar<'a> {
        Sidecar::start_as(world, config, "sluice-sidecar", &[]).await
    }

    /// As [`Sidecar::start`], by another program of the build, with more arguments.
    pub async fn start_as(
        world: &'a TestEnv,
        config: &SidecarConfig,
        program: &str,
        arguments: &[&str],
    ) -> Sidecar<'a> {
        let text = serde_json::to_vec_pretty(config).unwrap();
        let log = std::fs::File::create(world.path("stderr")).unwrap();
        let mut child = Command::new(model::binary(program))
            .args(arguments)
            .arg("--config")
            .arg(world.write("config.json", text))
            .env("SLUICE_RUNTIME_DIR", world.path("run"))
            .env("TMPDIR", world.path("tmp"))
            .env("SLUICE_LOG", "info")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let tenant = eventually("the sidecar is ready", async || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the sidecar ended ({status}) before it was ready");
            }
            let tenant = Tenant::find(&config.runtime_dir)?;
            (tenant.readiness().await == Some(200)).then_some(tenant)
        });
        let tenant = tenant.await;
        Sidecar { child, world, tenant }
    }

    /// Returns `config` with device memory for the whole model, its activations and `kv_bytes` of KV, measured with
    /// a large device.
    pub async fn fitting(world: &TestEnv, config: &SidecarConfig, kv_bytes: u64) -> SidecarConfig {
        let mut ample = config.clone();
        (ample.gpu.memory_bytes, ample.policy) = (AMPLE_BYTES, "Recompute".into());
        let sidecar = Sidecar::start(world, &ample).await;
        let owners = sidecar.tenant.state().await.memory.owners;
        sidecar.end_cleanly().await;
        let fixed = owners.weights_global_bytes + owners.weights_layers_bytes + owners.activation_bytes;
        let mut config = config.clone();
        config.gpu.memory_bytes = fixed + kv_bytes;
        config
    }

    /// Returns its Prometheus metrics.
    pub async fn metrics(&self) -> Metrics {
        let response = CLIENT.get(self.tenant.url("/metrics")).send().await.unwrap();
        Metrics(response.text().await.unwrap())
    }

    /// Sets another policy; `number` increases with every directive.
    pub async fn order(&self, number: u64, policy: &str, most_remapped_percent: u32) {
        let directive = json!({
            "version": 2, "epoch": 1, "sequence": number, "policy": policy,
            "tenant": {
                "priority": 100, "max_remapped_percent": most_remapped_percent,
                "hibernate_after_seconds": null, "idle_after_seconds": 30,
            },
            "sharing": "Spatial", "victim": "MostRecentlyUsed", "min_residence_ms": 0, "revoke_bound_ms": 200,
            "peers": [], "fallback_order": [],
        });
        let token = std::fs::read_to_string(&self.tenant.record.token_file).unwrap();
        let url = format!("http://{}/v1/directive", self.tenant.record.admin);
        let answer = CLIENT.put(url).bearer_auth(token).json(&directive).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{policy}: {text}");
    }

    /// Sends SIGTERM; it must exit with status 0 and leave only its configuration.
    pub async fn end_cleanly(mut self) {
        super::processes::signal(self.child.id(), Signal::TERM);
        let status = eventually("the sidecar ends", async || self.child.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0), "{}", self.world.stderr());
        // The creator of the folder removes it; here that is this test.
        let folder: PathBuf = self.world.path("run").join("default.tenant");
        std::fs::remove_dir_all(folder).unwrap();
        self.world.assert_no_leftovers().await;
    }
}

/// An answer of `/metrics`.
#[derive(Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Sum over the series of `name` that have `labels`; 0 when there is none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        metrics_text::sum(&self.0, name, labels).unwrap_or(0.0)
    }
}
