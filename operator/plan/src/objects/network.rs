//! NetworkPolicies of a GPU and of a tenant.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
    NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_types::shared::LabelSelector as Written;
use sluice_types::tenant::AccessPeer;
use sluice_types::{GpuPool, ModelTenant};

use super::service::selector;
use super::{
    ADMIN_PORT, FETCHING, GPU, Release, SERVE_PORT, TENANT, gpu_labels, label, name, object_meta,
    tenant_labels,
};
use crate::gpu::Gpu;

/// Label that every namespace has: its name.
const NAMESPACE: &str = "kubernetes.io/metadata.name";
const DNS: i32 = 53;

/// Renders the policy for the pods of a GPU. Only peers on the GPU and the operator reach the admin ports; the pods
/// themselves reach only peers and DNS.
pub fn peers_policy(pool: &GpuPool, gpu: &Gpu, release: &Release) -> NetworkPolicy {
    let here = BTreeMap::from([(GPU.to_owned(), label(&gpu.name))]);
    let peers = policy_peer(None, Some(here.clone()));
    let namespace = BTreeMap::from([(NAMESPACE.to_owned(), release.operator_namespace.clone())]);
    let operator = policy_peer(Some(namespace), Some(release.operator.clone()));
    let spec = NetworkPolicySpec {
        pod_selector: Some(label_selector(here)),
        policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
        ingress: Some(vec![NetworkPolicyIngressRule {
            from: Some(vec![peers.clone(), operator]),
            ports: Some(vec![policy_port(ADMIN_PORT, "TCP")]),
        }]),
        egress: Some(vec![
            NetworkPolicyEgressRule {
                to: Some(vec![peers]),
                ports: Some(vec![policy_port(ADMIN_PORT, "TCP")]),
            },
            NetworkPolicyEgressRule {
                to: None,
                ports: Some(vec![policy_port(DNS, "UDP"), policy_port(DNS, "TCP")]),
            },
        ]),
    };
    NetworkPolicy {
        metadata: object_meta(pool, label(&format!("{}-peers", gpu.name)), gpu_labels(pool, gpu)),
        spec: Some(spec),
    }
}

/// Renders the policies of a tenant: its clients reach it, and its pods reach any address while they download the
/// model.
pub fn clients_policy(tenant: &ModelTenant) -> Vec<NetworkPolicy> {
    let clients = NetworkPolicySpec {
        pod_selector: Some(label_selector(selector(tenant))),
        policy_types: Some(vec!["Ingress".into()]),
        ingress: Some(vec![NetworkPolicyIngressRule {
            from: access_peers(&tenant.spec.access.from),
            ports: Some(vec![policy_port(SERVE_PORT, "TCP")]),
        }]),
        egress: None,
    };
    // Selects slots that download, and inspections.
    let fetching =
        [(TENANT, name(tenant)), (FETCHING, "true")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let downloads = NetworkPolicySpec {
        pod_selector: Some(label_selector(fetching.into())),
        policy_types: Some(vec!["Egress".into()]),
        ingress: None,
        egress: Some(vec![NetworkPolicyEgressRule { to: None, ports: None }]),
    };
    let policy = |what: &str, spec| NetworkPolicy {
        metadata: object_meta(tenant, format!("{}-{what}", name(tenant)), tenant_labels(tenant)),
        spec: Some(spec),
    };
    vec![policy("clients", clients), policy("downloads", downloads)]
}

/// Returns the listed peers; `None`, which admits all, if the list is empty.
fn access_peers(peers: &[AccessPeer]) -> Option<Vec<NetworkPolicyPeer>> {
    let written = |labels: &Written| {
        labels.match_labels.iter().map(|(key, value)| (key.clone(), value.0.clone())).collect()
    };
    let one = |listed: &AccessPeer| {
        let namespace = listed.namespace_selector.as_ref().map(written);
        // The API server rejects a peer without selectors. It means all pods of the tenant's own namespace.
        let pods =
            listed.pod_selector.as_ref().map(written).or_else(|| namespace.is_none().then(BTreeMap::new));
        policy_peer(namespace, pods)
    };
    (!peers.is_empty()).then(|| peers.iter().map(one).collect())
}

fn policy_peer(
    namespaces: Option<BTreeMap<String, String>>,
    pods: Option<BTreeMap<String, String>>,
) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: namespaces.map(label_selector),
        pod_selector: pods.map(label_selector),
        ip_block: None,
    }
}

fn label_selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), match_expressions: None }
}

fn policy_port(number: i32, protocol: &str) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(number)),
        protocol: Some(protocol.into()),
        end_port: None,
    }
}
