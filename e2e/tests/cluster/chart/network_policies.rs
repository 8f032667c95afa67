//! Flows that the chart's NetworkPolicies allow.

use serde_json::{Value, json};
use sluice_e2e::cluster::network_policies::{Pod, PortRef, allows};

use super::{Helm, NAMESPACE, named};

/// The admin port of sidecars, the metrics of operator and driver, and the operator's read API.
const ADMIN: PortRef = ("TCP", 8001);
const METRICS: PortRef = ("TCP", 8080);
const READ: PortRef = ("TCP", 8003);

/// The policies of an installation, and its pods among other pods.
struct PolicyCluster {
    policies: Vec<Value>,
    pods: Vec<(&'static str, &'static str, Value)>,
}

impl PolicyCluster {
    fn new(values: &[&str]) -> Option<PolicyCluster> {
        let objects = Helm::find()?.render(values);
        let of = |title: &str| named(&objects, title)["spec"]["template"]["metadata"]["labels"].clone();
        let pods = vec![
            ("operator", NAMESPACE, of("Deployment/sluice-operator")),
            ("devices", NAMESPACE, of("DaemonSet/sluice-devices")),
            ("hook", NAMESPACE, named(&objects, "Pod/sluice-test")["metadata"]["labels"].clone()),
            ("neighbour", NAMESPACE, json!({"app": "another"})),
            // Labels that the operator gives a slot, and a pod that is not a slot.
            (
                "slot",
                "team",
                json!({"app.kubernetes.io/managed-by": "sluice-operator", "sluice.dev/gpu": "p-chat-0"}),
            ),
            ("other", "team", json!({"app.kubernetes.io/managed-by": "Helm"})),
            ("scraper", "monitoring", json!({"app": "prometheus"})),
            ("stranger", "team", json!({})),
        ];
        let policies = objects.iter().filter(|object| object["kind"] == "NetworkPolicy").cloned();
        let policies = policies.chain([slots_policy(&objects)]).collect();
        Some(PolicyCluster { policies, pods })
    }

    fn pod(&self, wanted: &str) -> Pod<'_> {
        let (_, namespace, labels) = self.pods.iter().find(|(name, ..)| *name == wanted).unwrap();
        Pod { namespace, labels }
    }

    fn check(&self, rows: &[(&str, &str, PortRef, bool)]) {
        for (from, to, door, allowed) in rows {
            let found = allows(&self.policies, self.pod(from), self.pod(to), *door);
            assert_eq!(found, *allowed, "{from} to {to} at {door:?}");
        }
    }
}

/// Returns the policy of a GPU as the operator makes it, from the labels that the chart passes to it.
fn slots_policy(objects: &[Value]) -> Value {
    let operator = named(objects, "Deployment/sluice-operator");
    let env = operator["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let own =
        env.iter().find(|one| one["name"] == "SLUICE_OPERATOR_LABELS").unwrap()["value"].as_str().unwrap();
    let own: serde_json::Map<String, Value> = own
        .split(',')
        .map(|pair| pair.split_once('=').unwrap())
        .map(|(key, value)| (key.into(), value.into()))
        .collect();
    let home = json!({"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}});
    let from = json!([{"namespaceSelector": home, "podSelector": {"matchLabels": own}}]);
    json!({
        "metadata": {"namespace": "team"},
        "spec": {
            "podSelector": {"matchLabels": {"sluice.dev/gpu": "p-chat-0"}}, "policyTypes": ["Ingress"],
            "ingress": [{"from": from, "ports": [{"port": ADMIN.1, "protocol": "TCP"}]}],
        },
    })
}

/// Flows with every setting of the access to metrics.
const ALWAYS: [(&str, &str, PortRef, bool); 15] = [
    ("operator", "slot", ADMIN, true),
    ("operator", "slot", ("TCP", 8000), false),
    ("operator", "other", ADMIN, false),
    ("operator", "neighbour", ADMIN, false),
    ("operator", "stranger", ("UDP", 53), true),
    // The address of the API server is unknown.
    ("operator", "stranger", ("TCP", 6443), true),
    ("operator", "stranger", ("TCP", 80), false),
    ("neighbour", "slot", ADMIN, false),
    ("devices", "slot", ADMIN, false),
    ("devices", "stranger", ("TCP", 443), true),
    ("stranger", "operator", READ, false),
    ("neighbour", "operator", READ, false),
    ("slot", "operator", ADMIN, false),
    ("hook", "operator", METRICS, true),
    ("hook", "devices", METRICS, true),
];

#[test]
fn unlisted_pods_reach_only_metrics() {
    let Some(world) = PolicyCluster::new(&[]) else { return };
    world.check(&ALWAYS);
    world.check(&[
        ("stranger", "operator", METRICS, true),
        ("scraper", "operator", METRICS, true),
        ("stranger", "devices", METRICS, true),
        ("stranger", "operator", ("UDP", 8080), false),
    ]);
}

#[test]
fn only_listed_peers_reach_metrics() {
    let from = "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring";
    let Some(world) = PolicyCluster::new(&["--set", from]) else { return };
    world.check(&ALWAYS);
    world.check(&[
        ("scraper", "operator", METRICS, true),
        ("scraper", "devices", METRICS, true),
        ("scraper", "operator", READ, false),
        ("stranger", "operator", METRICS, false),
        ("slot", "operator", METRICS, false),
        ("neighbour", "devices", METRICS, false),
    ]);
}
