//! The container of a proxied engine: vLLM on the pod's loopback interface, which only its sidecar reaches.

use k8s_openapi::api::core::v1::{Container, EnvVar};
use sluice_types::tenant::{ModelTenant, WeightType};

use super::container_parts::{
    ClaimUse, TERMINATION_MESSAGE_POLICY, env_var, mps_thread_percentage, pre_stop_hook, resources,
    restricted_security_context,
};
use super::name;
use super::placed_slot::PlacedSlot;
use super::volumes::{SCRATCH, model_folder, proxied_mounts};

/// Port of vLLM. Not in the API, because only the sidecar connects to it.
const PORT: u16 = 8010;

/// Returns the URL for the sidecar.
pub fn url() -> String {
    format!("http://127.0.0.1:{PORT}")
}

/// Renders the engine. The command is set, so that the image's entry point does not matter. Defaults precede the
/// tenant's arguments, because vLLM uses the last value; the listen address follows them.
pub fn engine(placed: &PlacedSlot<'_>) -> Container {
    let engine = &placed.tenant.spec.engine;
    let local = ["--host".to_owned(), "127.0.0.1".into(), "--port".into(), PORT.to_string()];
    let args = default_args(placed.tenant).into_iter().chain(engine.args.iter().cloned()).chain(local);
    Container {
        name: "engine".into(),
        // A proxied tenant without an image is rejected.
        image: engine.image.clone(),
        command: Some(vec!["vllm".into(), "serve".into()]),
        args: Some(args.collect()),
        env: Some(env(placed)),
        resources: Some(resources(
            engine.resources.as_ref(),
            ("4", placed.demand.pod.engine_bytes),
            Some(ClaimUse::Gpu),
        )),
        lifecycle: Some(pre_stop_hook(placed, "/drain")),
        volume_mounts: Some(proxied_mounts(placed)),
        termination_message_policy: Some(TERMINATION_MESSAGE_POLICY.into()),
        security_context: Some(restricted_security_context()),
        ..Container::default()
    }
}

/// Returns the model, its served names, and the sleep mode option.
fn default_args(tenant: &ModelTenant) -> Vec<String> {
    let model = &tenant.spec.model;
    let own = vec![name(tenant).to_owned()];
    let names = if model.served_names.is_empty() { own } else { model.served_names.clone() };
    let mut args = vec![model_folder(&tenant.spec).display().to_string(), "--served-model-name".into()];
    args.extend(names);
    args.push("--enable-sleep-mode".into());
    let length = model.max_model_len.map(|tokens| ["--max-model-len".to_owned(), tokens.to_string()]);
    args.extend(length.into_iter().flatten());
    let dtype = match model.dtype {
        WeightType::Auto => None,
        WeightType::Float32 => Some("float32"),
        WeightType::Float16 => Some("float16"),
        WeightType::BFloat16 => Some("bfloat16"),
    };
    args.extend(dtype.into_iter().flat_map(|dtype| ["--dtype".to_owned(), dtype.into()]));
    args
}

/// Returns the variables for the sleep API, the share of a GPU in mode `Spatial`, and writable folders, because the
/// root file system is read-only. A variable that the tenant sets takes precedence.
fn env(placed: &PlacedSlot<'_>) -> Vec<EnvVar> {
    let written = &placed.tenant.spec.engine.env;
    let ours = [
        ("VLLM_SERVER_DEV_MODE", "1"),
        ("VLLM_NO_USAGE_STATS", "1"),
        ("HF_HUB_OFFLINE", "1"),
        // The image's /etc/passwd has no user with this id.
        ("USER", "sluice"),
        ("HOME", SCRATCH),
        ("TMPDIR", SCRATCH),
    ];
    let ours =
        ours.into_iter().map(|(name, value)| env_var(name, value)).chain(mps_thread_percentage(placed));
    let ours = ours.filter(|own| written.iter().all(|env| env.name != own.name));
    ours.chain(written.iter().map(|env| env_var(&env.name, &env.value))).collect()
}
