//! The Service and the disruption budget of a tenant.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_types::ModelTenant;

use super::{COMPONENT, SERVE_PORT, TENANT, name, object_meta, tenant_labels};

/// Component label of every slot's pod.
pub(super) const SLOT_COMPONENT: &str = "slot";

/// Returns the labels that select exactly the slot pods of a tenant.
pub(super) fn selector(tenant: &ModelTenant) -> BTreeMap<String, String> {
    let component = (COMPONENT.to_owned(), SLOT_COMPONENT.to_owned());
    BTreeMap::from([(TENANT.to_owned(), name(tenant).to_owned()), component])
}

/// Returns the same selector as text for the scale subresource, so that an autoscaler on pod metrics counts slots
/// only.
pub fn selector_text(tenant: &ModelTenant) -> String {
    let pairs: Vec<_> = selector(tenant).into_iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(",")
}

/// Renders the Service of a tenant. A hibernated pod is ready: it holds requests while it wakes.
pub fn service(tenant: &ModelTenant) -> Service {
    let port = ServicePort {
        name: Some("http".into()),
        port: SERVE_PORT,
        target_port: Some(IntOrString::String("serve".into())),
        protocol: Some("TCP".into()),
        app_protocol: Some("http".into()),
        ..ServicePort::default()
    };
    Service {
        metadata: object_meta(tenant, name(tenant).to_owned(), tenant_labels(tenant)),
        spec: Some(ServiceSpec {
            selector: Some(selector(tenant)),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Renders a budget that permits the eviction of one pod at a time. An unready pod never blocks a drain.
pub fn budget(tenant: &ModelTenant) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: object_meta(tenant, name(tenant).to_owned(), tenant_labels(tenant)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector { match_labels: Some(selector(tenant)), match_expressions: None }),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            min_available: None,
        }),
        status: None,
    }
}
