//! The YAML of a run: `--print-yaml` prints exactly the text that is loaded and run. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use sluice_types::pool::Policy;
use sluice_types::rules::is_yaml11_boolean;
use sluice_types::{ModelTenantSpec, Quantity};

use super::memory::MemoryPlan;
use super::model_ref::ModelRef;

/// Longest name of a tenant that is derived from a model's name, characters.
const MAX_NAME_LEN: usize = 40;
/// Time for open streams to finish, seconds: a user who presses Ctrl-C waits for it.
const DRAIN_SECONDS: u32 = 5;
/// Name of the manifest in the loader's messages.
pub const MANIFEST_NAME: &str = "sluice run --print-yaml";

/// A model of the command line, and its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunModel {
    /// The model that the user named.
    pub reference: ModelRef,
    /// Folder of its files, which may still be missing.
    pub folder: PathBuf,
    /// Name of its tenant, a DNS label.
    pub tenant: String,
    /// Name in requests of clients.
    pub served_name: String,
}

impl RunModel {
    /// Assigns unique names to models with their folders.
    pub fn assign_names(references: Vec<(ModelRef, PathBuf)>) -> Vec<RunModel> {
        let (mut tenants, mut served) = (BTreeSet::new(), BTreeSet::new());
        let named = references.into_iter().map(|(reference, folder)| {
            let name = reference.served_name();
            RunModel {
                tenant: unique_name(&dns_label(&name), &mut tenants),
                served_name: unique_name(&name, &mut served),
                reference,
                folder,
            }
        });
        named.collect()
    }

    /// Returns the spec of its tenant, without a `maxModelLen`.
    ///
    /// # Errors
    /// The path is not UTF-8.
    pub fn spec(&self) -> anyhow::Result<ModelTenantSpec> {
        Ok(serde_json::from_value(self.spec_json(None)?)?)
    }

    fn spec_json(&self, context_tokens: Option<u32>) -> anyhow::Result<Value> {
        let path = self
            .folder
            .to_str()
            .with_context(|| format!("{}: the path is not valid UTF-8", self.folder.display()))?;
        let mut spec = serde_json::json!({
            "poolRef": {"name": POOL_NAME},
            "model": {"source": {"type": "File", "file": {"path": path}}, "servedNames": [self.served_name]},
            "pacing": {"mode": "Immediate"},
            "drainSeconds": DRAIN_SECONDS,
        });
        if let Some(tokens) = context_tokens {
            spec["model"]["maxModelLen"] = tokens.into();
        }
        Ok(spec)
    }
}

/// Name of the pool.
const POOL_NAME: &str = "run";

/// Returns the YAML of `models` on one GPU by `plan`.
///
/// # Errors
/// A path is not UTF-8.
pub fn to_yaml(models: &[RunModel], plan: &MemoryPlan, policy: Policy, gpu: &str) -> anyhow::Result<String> {
    let quantity = |bytes| Quantity::from_bytes(bytes).as_str().to_owned();
    let pool = serde_json::json!({
        "deviceClassName": sluice_types::HOST_DEVICE_CLASS,
        "device": {"host": {"memory": quantity(plan.gpu_bytes), "chunkBytes": quantity(plan.chunk_bytes)}},
        "hostMemoryPerGPU": quantity(plan.host_bytes),
        "gpus": [{"name": gpu, "sharing": {"mode": "Temporal"}}],
        "policy": policy.as_str(),
    });
    let mut text = String::from("# Written by `sluice run --print-yaml`; `sluice up -f FILE` runs it.\n");
    write_object(&mut text, "GpuPool", POOL_NAME, &pool);
    for (model, tokens) in models.iter().zip(&plan.context_tokens) {
        text.push_str("---\n");
        if let ModelRef::Hub(hub) = &model.reference {
            let source = serde_json::json!({
                "type": "HuggingFace",
                "huggingFace": {"repo": hub.repo, "revision": hub.revision, "endpoint": hub.endpoint},
            });
            writeln!(text, "# In a cluster, where pods download it themselves: source: {source}")?;
        }
        write_object(&mut text, "ModelTenant", &model.tenant, &model.spec_json(Some(*tokens))?);
    }
    Ok(text)
}

fn write_object(text: &mut String, kind: &str, name: &str, spec: &Value) {
    text.push_str("apiVersion: sluice.dev/v1alpha1\n");
    text.push_str(&format!("kind: {kind}\nmetadata:\n  name: {}\nspec:\n", scalar(&name.into())));
    write_fields(text, spec, 2);
}

/// Formats `value` on one line: JSON, which is also YAML, without quotes around plain words.
fn scalar(value: &Value) -> String {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-./".contains(&byte);
    let plain = |text: &&str| {
        let reserved = is_yaml11_boolean(text)
            || ["true", "false", "null"].iter().any(|word| word.eq_ignore_ascii_case(text));
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            && text.bytes().all(inner)
            && !reserved
    };
    value.as_str().filter(plain).map_or_else(|| value.to_string(), str::to_owned)
}

/// Writes the fields of `value`, indented.
fn write_fields(text: &mut String, value: &Value, indent: usize) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let pad = " ".repeat(indent);
        match value {
            Value::Object(_) => {
                text.push_str(&format!("{pad}{key}:\n"));
                write_fields(text, value, indent + 2);
            }
            flat => text.push_str(&format!("{pad}{key}: {}\n", scalar(flat))),
        }
    }
}

/// Returns `name`, or `name-2` and so on if it is taken.
fn unique_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.to_owned()).chain(numbered).find(|name| !taken.contains(name));
    let free = free.expect("numbers do not end");
    taken.insert(free.clone());
    free
}

/// Derives a DNS label that begins with a letter from the last part of a model's name.
fn dns_label(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let text: String = last.chars().map(plain).collect();
    let text = text.trim_matches('-');
    let text = if text.starts_with(|c: char| c.is_ascii_lowercase()) {
        text.to_owned()
    } else {
        format!("m-{text}")
    };
    let text: String = text.chars().take(MAX_NAME_LEN).collect();
    text.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use sluice_types::load::{self, ManifestObject};

    use super::*;
    use crate::models::hub_model::{DEFAULT_ENDPOINT, HubModel};

    fn models() -> Vec<RunModel> {
        let hub = |text| ModelRef::Hub(HubModel::parse(text, DEFAULT_ENDPOINT).unwrap());
        RunModel::assign_names(vec![
            (hub("org/Tiny-1.5B"), "/cache/a".into()),
            (hub("other/tiny-1.5b"), "/cache/b".into()),
            (ModelRef::Folder("/m/it's: \"x\"".into()), "/m/it's: \"x\"".into()),
            (ModelRef::Folder("/n/7b".into()), "/n/7b".into()),
        ])
    }

    #[test]
    fn each_model_has_a_tenant_and_a_served_name_of_its_own() {
        let models = models();
        let tenants: Vec<_> = models.iter().map(|model| model.tenant.as_str()).collect();
        assert_eq!(tenants, ["tiny-1-5b", "tiny-1-5b-2", "it-s---x", "m-7b"]);
        let served: Vec<_> = models.iter().map(|model| model.served_name.as_str()).collect();
        assert_eq!(served, ["org/Tiny-1.5B", "other/tiny-1.5b", "it's: \"x\"", "7b"]);
        let twice = RunModel::assign_names(vec![
            (ModelRef::Folder("/a/m".into()), "/a/m".into()),
            (ModelRef::Folder("/b/m".into()), "/b/m".into()),
        ]);
        assert_eq!([&twice[0].served_name, &twice[1].served_name], ["m", "m-2"]);
        assert_eq!(dns_label(&"x".repeat(80)).len(), MAX_NAME_LEN);
        assert_eq!(dns_label("___"), "m");
        let scalars = ["word", "/a/b.c", "no", "null", "64Ki", "a: b"].map(|text| scalar(&text.into()));
        assert_eq!(scalars, ["word", "/a/b.c", "\"no\"", "\"null\"", "\"64Ki\"", "\"a: b\""]);
    }

    #[test]
    fn yaml_round_trips_through_loader() {
        let plan = MemoryPlan {
            chunk_bytes: 1 << 20,
            gpu_bytes: 3 << 29,
            host_bytes: (1 << 30) + 1,
            total_bytes: 0,
            context_tokens: vec![8192, 4096, 2048, 1024],
            sequences: 4,
        };
        let text = to_yaml(&models(), &plan, Policy::Unified, "gpu").unwrap();
        let objects = load::load_located_str(&text, MANIFEST_NAME)
            .unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
        assert_eq!(objects.len(), 5);
        let ManifestObject::Pool(pool) = &objects[0].object else { panic!("{text}") };
        let host = pool.spec.device.as_ref().unwrap().host.as_ref().unwrap();
        assert_eq!((host.memory.bytes(), host.chunk_bytes.bytes()), (3 << 29, 1 << 20));
        assert_eq!(pool.spec.host_memory_per_gpu.bytes(), (1 << 30) + 1);
        for (object, (model, tokens)) in objects[1..].iter().zip(models().iter().zip(plan.context_tokens)) {
            let ManifestObject::Tenant(tenant) = &object.object else { panic!("{text}") };
            assert_eq!(tenant.spec.model.served_names, std::slice::from_ref(&model.served_name));
            assert_eq!(tenant.spec.model.source.file.as_ref().unwrap().path, model.folder.to_str().unwrap());
            assert_eq!(tenant.spec.model.max_model_len, Some(i32::try_from(tokens).unwrap()));
        }
        assert!(text.contains("# In a cluster, where pods download it themselves: source: {"), "{text}");
    }
}
