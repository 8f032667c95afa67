//! The containers of a slot's pod.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Probe, SecretKeySelector,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_types::tenant::{EngineKind, HuggingFaceSource, S3Source, Source};

use super::container_parts::{
    ClaimUse, TERMINATION_MESSAGE_POLICY, env_var, http_get, mps_thread_percentage, pre_stop_hook, resources,
    restricted_security_context,
};
use super::placed_slot::PlacedSlot;
use super::volumes::{RUN, engine_mounts, fetch_folder, fetch_mounts, sidecar_mounts};
use super::{ADMIN_PORT, ENGINE_PORT, PROBE_PORT, Release, SERVE_PORT, config, cuda, vllm};

/// Timeout of a probe, seconds.
const PROBE_SECONDS: i32 = 2;
/// Period and timeout of a sidecar's liveness probe, seconds. A slow node alone does not delay six probes by that
/// much.
const LIVENESS_SECONDS: i32 = 5;
/// Seconds from SIGTERM to SIGKILL for a sidecar that hangs.
const HUNG_GRACE_SECONDS: i64 = 3;
/// Environment variable of a native engine: the address where its supervisor answers liveness probes.
const ENGINE_LIVENESS_ENV: &str = "SLUICE_ENGINE_LIVE";
/// Period and timeout of the liveness probe of an engine's supervisor, seconds. The supervisor answers from one loop
/// that needs microseconds of CPU; a slow node alone does not cause six failures in a row.
const ENGINE_LIVENESS_SECONDS: (i32, i32) = (10, 5);
/// Maximum time until a sidecar's socket listens, seconds. It listens before it loads weights.
const START_SECONDS: i32 = 60;

/// Renders the sidecar, as a native sidecar container: it starts before the engine and ends after it.
pub fn sidecar(placed: &PlacedSlot<'_>, release: &Release) -> Container {
    let ports = [("serve", SERVE_PORT), ("admin", ADMIN_PORT), ("probes", PROBE_PORT)];
    let port = |(name, number): (&str, i32)| ContainerPort {
        name: Some(name.into()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    Container {
        name: "sidecar".into(),
        image: Some(release.sidecar_image.clone()),
        args: Some(vec!["--config".into(), config::config_path(), "--log-format".into(), "json".into()]),
        env: sidecar_env(placed),
        restart_policy: Some("Always".into()),
        ports: Some(ports.map(port).into()),
        resources: Some(resources(
            placed.tenant.spec.sidecar.resources.as_ref(),
            ("500m", placed.demand.pod.sidecar_bytes),
            sidecar_claim_use(placed),
        )),
        startup_probe: Some(probe("/startup", 1, START_SECONDS)),
        readiness_probe: Some(probe("/ready", 2, 1)),
        liveness_probe: Some(liveness(placed.tenant.spec.engine.kind)),
        lifecycle: Some(pre_stop_hook(placed, "/drain")),
        volume_mounts: Some(sidecar_mounts(&placed.tenant.spec)),
        termination_message_policy: Some(TERMINATION_MESSAGE_POLICY.into()),
        security_context: Some(restricted_security_context()),
        ..Container::default()
    }
}

fn sidecar_env(placed: &PlacedSlot<'_>) -> Option<Vec<EnvVar>> {
    let native = placed.tenant.spec.engine.kind == EngineKind::Native;
    let env = if native { cuda::sidecar_env(placed) } else { Vec::new() };
    Some(env).filter(|env| !env.is_empty())
}

/// The sidecar of a proxied engine uses no device and has no peers.
fn sidecar_claim_use(placed: &PlacedSlot<'_>) -> Option<ClaimUse> {
    match placed.tenant.spec.engine.kind {
        EngineKind::Native => Some(ClaimUse::AllRequests),
        EngineKind::Vllm => None,
    }
}

/// Renders the engine. It has no readiness probe, because the sidecar holds requests until the engine is ready.
pub fn engine(placed: &PlacedSlot<'_>, release: &Release) -> Container {
    match placed.tenant.spec.engine.kind {
        EngineKind::Native => native_engine(placed, release),
        EngineKind::Vllm => vllm::engine(placed),
    }
}

fn native_engine(placed: &PlacedSlot<'_>, release: &Release) -> Container {
    let engine = &placed.tenant.spec.engine;
    let own = ["--socket".to_owned(), format!("{RUN}/engine.sock")];
    let written = engine.env.iter().map(|env| env_var(&env.name, &env.value));
    // A variable that the tenant sets takes precedence; a list must contain each name once.
    let named = |name: &str| engine.env.iter().any(|env| env.name == name);
    let ours = cuda::engine_env(placed).into_iter().chain(mps_thread_percentage(placed));
    let live = env_var(ENGINE_LIVENESS_ENV, &format!("0.0.0.0:{ENGINE_PORT}"));
    // A custom image may be of a release without the probe; without a supervisor no process answers it.
    let without_supervisor = engine.args.iter().any(|arg| arg == "--no-supervisor");
    // The argument has the same meaning as the variable and takes precedence.
    let elsewhere = engine.args.iter().any(|arg| arg == "--live" || arg.starts_with("--live="));
    let probed = engine.image.is_none() && !named(ENGINE_LIVENESS_ENV) && !elsewhere && !without_supervisor;
    let ours = ours.filter(|own| !named(&own.name));
    let env: Vec<EnvVar> = ours.chain(probed.then_some(live)).chain(written).collect();
    Container {
        name: "engine".into(),
        image: Some(engine.image.clone().unwrap_or_else(|| release.engine_image.clone())),
        args: Some(own.into_iter().chain(engine.args.iter().cloned()).collect()),
        env: Some(env).filter(|env| !env.is_empty()),
        resources: Some(resources(
            engine.resources.as_ref(),
            ("1", placed.demand.pod.engine_bytes),
            Some(ClaimUse::Gpu),
        )),
        liveness_probe: probed.then(engine_liveness),
        lifecycle: Some(pre_stop_hook(placed, "/drained")),
        volume_mounts: Some(engine_mounts(placed)),
        termination_message_policy: Some(TERMINATION_MESSAGE_POLICY.into()),
        security_context: Some(restricted_security_context()),
        ..Container::default()
    }
}

/// Renders the download of a network model: the only container of a slot that receives a credential for it.
pub fn fetch(placed: &PlacedSlot<'_>, release: &Release) -> Option<Container> {
    let (from, env) = source_args(&placed.tenant.spec.model.source)?;
    let to = fetch_folder(&placed.tenant.spec).display().to_string();
    let args = ["fetch".to_owned()].into_iter().chain(from).chain(["--to".to_owned(), to]);
    Some(Container {
        name: "fetch".into(),
        image: Some(release.sidecar_image.clone()),
        args: Some(args.collect()),
        env: Some(env),
        resources: Some(resources(None, ("100m", placed.demand.pod.fetch_bytes), None)),
        volume_mounts: Some(fetch_mounts()),
        termination_message_policy: Some(TERMINATION_MESSAGE_POLICY.into()),
        security_context: Some(restricted_security_context()),
        ..Container::default()
    })
}

/// Returns a network model's source as arguments, with its credential; `None` = the model is on a volume.
pub(super) fn source_args(source: &Source) -> Option<(Vec<String>, Vec<EnvVar>)> {
    match (&source.hugging_face, &source.s3) {
        (Some(hub), _) => Some(hugging_face(hub)),
        (None, Some(bucket)) => Some(s3(bucket)),
        (None, None) => None,
    }
}

fn hugging_face(hub: &HuggingFaceSource) -> (Vec<String>, Vec<EnvVar>) {
    let args = ["hugging-face", "--repo", &hub.repo, "--revision", &hub.revision];
    let rest = ["--endpoint", &hub.endpoint];
    let token = hub.token_secret_ref.iter().map(|token| secret_env_var("HF_TOKEN", &token.name, &token.key));
    (args.into_iter().chain(rest).map(str::to_owned).collect(), token.collect())
}

fn s3(bucket: &S3Source) -> (Vec<String>, Vec<EnvVar>) {
    let args = ["s3", "--bucket", &bucket.bucket, "--prefix", &bucket.prefix, "--region", &bucket.region];
    let endpoint = bucket.endpoint.iter().flat_map(|endpoint| ["--endpoint", endpoint.as_str()]);
    let args = args.into_iter().chain(endpoint).map(str::to_owned).collect();
    let keys = [("AWS_ACCESS_KEY_ID", "accessKeyId"), ("AWS_SECRET_ACCESS_KEY", "secretAccessKey")];
    let secret = bucket.credentials_secret_ref.iter();
    (
        args,
        secret.flat_map(|secret| keys.map(|(name, key)| secret_env_var(name, &secret.name, key))).collect(),
    )
}

fn secret_env_var(name: &str, secret: &str, key: &str) -> EnvVar {
    let selector = SecretKeySelector { name: secret.into(), key: key.into(), optional: None };
    let value_from = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name: name.into(), value: None, value_from: Some(value_from) }
}

fn probe(path: &str, period_seconds: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(http_get(path)),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failures),
        timeout_seconds: Some(PROBE_SECONDS),
        ..Probe::default()
    }
}

/// Returns the sidecar's liveness probe. A sidecar of a native engine fails after 30 s without an answer and is
/// killed soon after: a stopped process never handles SIGTERM, and a blocked scheduler never ends its open streams,
/// so neither gets the drain time. The sidecar of a proxied engine schedules nothing.
fn liveness(engine: EngineKind) -> Probe {
    match engine {
        EngineKind::Native => Probe {
            timeout_seconds: Some(LIVENESS_SECONDS),
            termination_grace_period_seconds: Some(HUNG_GRACE_SECONDS),
            ..probe("/live", LIVENESS_SECONDS, 6)
        },
        EngineKind::Vllm => probe("/live", 10, 6),
    }
}

/// Returns a native engine's liveness probe: the kubelet restarts engine and supervisor after a minute without an
/// answer. The sidecar ends a worker that hangs, and the supervisor ends a sidecar that hangs; if every process of a
/// pod is stopped, only this probe ends it. The supervisor answers before it starts the first worker, so no startup
/// probe is needed.
fn engine_liveness() -> Probe {
    let (period, timeout) = ENGINE_LIVENESS_SECONDS;
    let get = HTTPGetAction { port: IntOrString::Int(ENGINE_PORT), ..http_get("/") };
    Probe {
        http_get: Some(get),
        timeout_seconds: Some(timeout),
        termination_grace_period_seconds: Some(HUNG_GRACE_SECONDS),
        ..probe("/", period, 6)
    }
}
