//! The Deployment of a slot: exactly one pod, on its GPU's claim.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    LocalObjectReference, PodResourceClaim, PodSecurityContext, PodSpec, PodTemplateSpec, SeccompProfile,
    Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_common::hash::fnv1a;
use sluice_types::rules::{is_own_annotation, is_own_label};
use sluice_types::shared::{Label, Toleration as Written};
use sluice_types::tenant::{EngineKind, ModelTenantSpec};
use sluice_wire::config::SidecarConfig;

use super::container_parts::CLAIM;
use super::containers::{engine, fetch, sidecar};
use super::volumes::volumes;
use super::{
    CLAIM_NAME, COMPONENT, FETCHING, GPU, PlacedSlot, Release, SLOT, claim, label, object_meta, service,
    sidecar_config,
};
use crate::model_source::fetches;

/// Annotation of a pod: digest of the configuration that needs a new pod to take effect.
const DIGEST: &str = "sluice.dev/config-digest";
/// Termination grace period of a pod beyond the drain time of its open streams, seconds.
const GRACE_SECONDS: i64 = 15;
/// User and group of every process of the pod.
const USER: i64 = 65_532;

/// Renders the Deployment of a placed slot.
pub fn deployment(placed: &PlacedSlot<'_>, release: &Release) -> Deployment {
    let mut selector = service::selector(placed.tenant);
    selector.insert(SLOT.into(), placed.index.to_string());
    // The GPU has memory for one instance of a slot only.
    let one_life = RollingUpdateDeployment {
        max_surge: Some(IntOrString::Int(0)),
        max_unavailable: Some(IntOrString::Int(1)),
    };
    let mut metadata = object_meta(placed.tenant, placed.name(), placed.labels());
    let on = claim::claim_name(placed.gpu, placed.epoch);
    metadata.annotations = Some(BTreeMap::from([(CLAIM_NAME.to_owned(), on)]));
    Deployment {
        metadata,
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            // Old ReplicaSets are not needed: the template follows from the specs.
            revision_history_limit: Some(1),
            selector: LabelSelector { match_labels: Some(selector), match_expressions: None },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(one_life),
            }),
            template: template(placed, release),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn template(placed: &PlacedSlot<'_>, release: &Release) -> PodTemplateSpec {
    let spec = &placed.tenant.spec;
    // Policies and the Service select by Sluice's labels. A tenant older than the CRD's validation may have such
    // keys.
    let written = spec.pod_labels.iter().filter(|(key, _)| !is_own_label(key));
    let written = written.map(|(key, value)| (key.clone(), value.0.clone()));
    let labels: BTreeMap<_, _> = written.chain(pod_labels(placed)).collect();
    let written = spec.pod_annotations.iter().filter(|(key, _)| !is_own_annotation(key));
    let written = written.map(|(key, value)| (key.clone(), value.0.clone()));
    let digest = (DIGEST.to_owned(), config_digest(sidecar_config(placed)));
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels),
            annotations: Some(written.chain([digest]).collect()),
            ..ObjectMeta::default()
        }),
        spec: Some(pod(placed, release)),
    }
}

fn pod_labels(placed: &PlacedSlot<'_>) -> BTreeMap<String, String> {
    let mut labels = placed.labels();
    labels.insert(GPU.into(), label(&placed.gpu.name));
    labels.insert(COMPONENT.into(), service::SLOT_COMPONENT.into());
    if fetches(&placed.tenant.spec) {
        // Removed once the model is downloaded.
        labels.insert(FETCHING.into(), "true".into());
    }
    labels
}

fn pod(placed: &PlacedSlot<'_>, release: &Release) -> PodSpec {
    let (spec, settings) = (&placed.tenant.spec, &placed.gpu.settings);
    let claim = PodResourceClaim {
        name: CLAIM.into(),
        resource_claim_name: Some(claim::claim_name(placed.gpu, placed.epoch)),
        resource_claim_template_name: None,
    };
    PodSpec {
        init_containers: Some(fetch(placed, release).into_iter().chain([sidecar(placed, release)]).collect()),
        containers: vec![engine(placed, release)],
        resource_claims: Some(vec![claim]),
        volumes: Some(volumes(placed)),
        security_context: Some(non_root_security_context()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        // The sidecar kills an engine that does not answer, and waits for its exit, through a pidfd: the kernel
        // delivers a signal through one only within the sender's process namespace. A proxied engine has no link and
        // keeps its own namespace.
        share_process_namespace: (spec.engine.kind == EngineKind::Native).then_some(true),
        termination_grace_period_seconds: Some(i64::from(spec.drain_seconds) + GRACE_SECONDS),
        service_account_name: spec.service_account_name.clone(),
        priority_class_name: spec.pod_priority_class_name.clone(),
        image_pull_secrets: pull_secrets(spec, release),
        node_selector: node_selector(&settings.node_selector),
        tolerations: tolerations(&settings.tolerations),
        runtime_class_name: settings.runtime_class_name.clone(),
        ..PodSpec::default()
    }
}

pub(super) fn non_root_security_context() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

/// Returns the pull secrets of the tenant, then those of the release, each once: the API server rejects duplicates.
pub(super) fn pull_secrets(spec: &ModelTenantSpec, release: &Release) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<&String> = spec.image_pull_secrets.iter().map(|secret| &secret.name).collect();
    for name in &release.pull_secrets {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let secrets: Vec<_> = names.into_iter().map(|name| LocalObjectReference { name: name.clone() }).collect();
    Some(secrets).filter(|secrets| !secrets.is_empty())
}

pub(super) fn node_selector(written: &BTreeMap<String, Label>) -> Option<BTreeMap<String, String>> {
    let labels = written.iter().map(|(key, value)| (key.clone(), value.0.clone()));
    Some(labels.collect()).filter(|labels: &BTreeMap<_, _>| !labels.is_empty())
}

pub(super) fn tolerations(written: &[Written]) -> Option<Vec<Toleration>> {
    let tolerations = written.iter().map(toleration).collect();
    Some(tolerations).filter(|tolerations: &Vec<_>| !tolerations.is_empty())
}

fn toleration(written: &Written) -> Toleration {
    Toleration {
        key: written.key.clone(),
        operator: Some(format!("{:?}", written.operator)),
        value: written.value.clone(),
        effect: written.effect.map(|effect| format!("{effect:?}")),
        toleration_seconds: written.toleration_seconds.map(i64::from),
    }
}

/// Returns the digest of the configuration without the values that a directive changes in a running sidecar: a new or
/// removed peer, or another priority, policy, share or cap, restarts no pod. The sharing settings are included: a
/// sidecar rejects a directive with other ones.
fn config_digest(mut config: SidecarConfig) -> String {
    config.policy = String::new();
    // Known only once the claim has a device, and never a reason for a new pod.
    config.gpu.memory_bytes = 0;
    config.hibernate_after_seconds = None;
    config.memory.max_remapped_percent = 0;
    if let Some(place) = &mut config.gpu_ledger {
        (place.share_bytes, place.priority) = (0, 0);
    }
    let text = serde_json::to_string(&config).expect("a configuration serialises");
    format!("{:016x}", fnv1a(text.bytes()))
}
