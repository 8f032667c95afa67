//! The Job that determines a tenant's sizes before placement, and the parser of its report.
//!
//! Its pod mounts the slot's model volume if the model is on one. For a network model it has the download's
//! credential and reads only headers. It has no GPU.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sluice_types::conditions::Reason;
use sluice_types::tenant::{EngineKind, ModelTenant, ModelTenantSpec};
use sluice_types::{GpuPool, HOST_DEVICE_CLASS};
use sluice_wire::geometry::{Geometry, GeometryError, GeometryErrorKind, GeometryReport};

use super::container_parts::{TERMINATION_MESSAGE_POLICY, resources, restricted_security_context};
use super::containers::source_args;
use super::pod::{node_selector, non_root_security_context, pull_secrets, tolerations};
use super::volumes::{model_folder, model_mount, model_volume};
use super::{COMPONENT, FETCHING, Release, TENANT_UID, name, object_meta, tenant_labels};
use crate::conditions::ConditionResult;
use crate::model_source::fetches;
use crate::sizes::SMALL_PROCESS_BYTES;

/// Name of the only container.
const CONTAINER: &str = "inspect";
/// Path where the kubelet reads a container's termination message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Exit status of a sidecar for errors that a retry cannot fix.
const EXIT_CONFIG: i32 = 78;
/// Pods that may fail before the Job fails.
const MAX_TRIES: i32 = 4;
/// Maximum time of the whole Job, seconds.
const DEADLINE_SECONDS: i64 = 600;
/// Time until an ended Job is deleted, seconds: enough for the operator to read its report.
const TTL_SECONDS: i32 = 600;

/// Returns the name of a tenant's Job. Tenant names have at most 40 characters.
pub fn job_name(tenant: &ModelTenant) -> String {
    format!("{}-inspect", name(tenant))
}

/// Renders the Job that inspects the model of `tenant`. It runs on nodes of the tenant's pool, so that a volume that
/// it can mount can also be mounted in a slot.
pub fn job(pool: &GpuPool, tenant: &ModelTenant, release: &Release) -> Job {
    let mut labels = tenant_labels(tenant);
    // Another tenant of the same name may have another model.
    labels.insert(TENANT_UID.into(), tenant.metadata.uid.clone().unwrap_or_default());
    // Excludes the pod from the Service and the disruption budget, which are for slots.
    labels.insert(COMPONENT.into(), "inspect".into());
    Job {
        metadata: object_meta(tenant, job_name(tenant), labels.clone()),
        spec: Some(JobSpec {
            backoff_limit: Some(MAX_TRIES - 1),
            active_deadline_seconds: Some(DEADLINE_SECONDS),
            ttl_seconds_after_finished: Some(TTL_SECONDS),
            pod_failure_policy: Some(pod_failure_policy()),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(pod_labels(tenant, labels)),
                    ..ObjectMeta::default()
                }),
                spec: Some(pod(pool, tenant, release)),
            },
            ..JobSpec::default()
        }),
        status: None,
    }
}

/// Returns the labels of a Job, plus the one that permits downloads.
fn pod_labels(tenant: &ModelTenant, mut labels: BTreeMap<String, String>) -> BTreeMap<String, String> {
    if fetches(&tenant.spec) {
        labels.insert(FETCHING.into(), "true".into());
    }
    labels
}

fn pod_failure_policy() -> PodFailurePolicy {
    let status = PodFailurePolicyOnExitCodesRequirement {
        container_name: Some(CONTAINER.into()),
        operator: "In".into(),
        values: vec![EXIT_CONFIG],
    };
    PodFailurePolicy {
        rules: vec![PodFailurePolicyRule {
            action: "FailJob".into(),
            on_exit_codes: Some(status),
            on_pod_conditions: None,
        }],
    }
}

fn pod(pool: &GpuPool, tenant: &ModelTenant, release: &Release) -> PodSpec {
    let mounted = !fetches(&tenant.spec);
    PodSpec {
        containers: vec![container(pool, tenant, release)],
        restart_policy: Some("Never".into()),
        volumes: mounted.then(|| vec![model_volume(&tenant.spec, None)]),
        security_context: Some(non_root_security_context()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        service_account_name: tenant.spec.service_account_name.clone(),
        image_pull_secrets: pull_secrets(&tenant.spec, release),
        node_selector: node_selector(&pool.spec.node_selector),
        tolerations: tolerations(&pool.spec.tolerations),
        ..PodSpec::default()
    }
}

fn container(pool: &GpuPool, tenant: &ModelTenant, release: &Release) -> Container {
    let spec = &tenant.spec;
    let (at, env) = match source_args(&spec.model.source) {
        Some((at, env)) => (at, Some(env)),
        None => (vec!["folder".to_owned(), model_folder(spec).display().to_string()], None),
    };
    let report = ["--report", TERMINATION_LOG].map(str::to_owned);
    let options = std::iter::once("inspect".to_owned()).chain(size_options(pool, spec)).chain(report);
    Container {
        name: CONTAINER.into(),
        image: Some(release.sidecar_image.clone()),
        args: Some(options.chain(at).collect()),
        env,
        resources: Some(resources(None, ("50m", SMALL_PROCESS_BYTES), None)),
        termination_message_path: Some(TERMINATION_LOG.into()),
        // Without a report the kubelet records why the container ended.
        termination_message_policy: Some(TERMINATION_MESSAGE_POLICY.into()),
        volume_mounts: (!fetches(spec)).then(|| vec![model_mount(true)]),
        security_context: Some(restricted_security_context()),
        ..Container::default()
    }
}

/// Returns the options of `sluice-sidecar inspect` on which the sizes of a tenant depend: on a CUDA device a step takes
/// more memory the longer its sequences may become.
pub fn size_options(pool: &GpuPool, spec: &ModelTenantSpec) -> Vec<String> {
    let mut options = vec!["--dtype".to_owned(), format!("{:?}", spec.model.dtype)];
    if pool.spec.device_class_name != HOST_DEVICE_CLASS && spec.engine.kind == EngineKind::Native {
        options.extend(["--device", "cuda"].map(str::to_owned));
        let longest =
            spec.model.max_model_len.map(|tokens| ["--max-model-len".to_owned(), tokens.to_string()]);
        options.extend(longest.into_iter().flatten());
    }
    options
}

/// Returns the error for an inspection pod that cannot start. It is temporary, and replaced by the pod's own report.
pub fn startup_failure(message: String) -> GeometryError {
    GeometryError {
        reason: GeometryErrorKind::Unavailable,
        message: format!("the inspection pod does not start: {message}"),
    }
}

/// Returns the report of an inspection pod; `None` = its container has not ended.
pub fn report(pod: &Pod) -> Option<Result<Geometry, GeometryError>> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ended =
        statuses.iter().find(|status| status.name == CONTAINER)?.state.as_ref()?.terminated.as_ref()?;
    let message = ended.message.as_deref().unwrap_or_default();
    Some(parse_termination(message, ended.exit_code, ended.reason.as_deref().unwrap_or_default()))
}

/// Parses a termination message. A message that is no report (the kernel killed the process, another image) is a
/// temporary error.
fn parse_termination(message: &str, exit_code: i32, reason: &str) -> Result<Geometry, GeometryError> {
    GeometryReport::from_json(message.trim().as_bytes()).unwrap_or_else(|error| {
        let message = match message.trim() {
            "" => format!("the inspection ended with status {exit_code} ({reason}) without a message"),
            said => format!("the inspection ended with status {exit_code} ({reason}): {said:.400} ({error})"),
        };
        Err(GeometryError { reason: GeometryErrorKind::Unavailable, message })
    })
}

/// Returns the conditions `Accepted` (`None` = unchanged) and `Placed` for an inspection error.
pub fn inspection_conditions(refusal: &GeometryError) -> (Option<ConditionResult>, ConditionResult) {
    let message = &refusal.message;
    let last_word = |reason| {
        let accepted = ConditionResult::not_met(reason, format!("spec.model: {message}"));
        (Some(accepted), ConditionResult::not_met(Reason::InspectionFailed, message.clone()))
    };
    match refusal.reason {
        GeometryErrorKind::Unreadable => last_word(Reason::ModelUnreadable),
        GeometryErrorKind::Unsupported => last_word(Reason::ModelUnsupported),
        GeometryErrorKind::Unavailable => {
            (None, ConditionResult::unknown(Reason::InspectionFailed, message.clone()))
        }
    }
}
