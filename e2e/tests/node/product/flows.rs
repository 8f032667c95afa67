//! The chart's NetworkPolicy and those that the operator makes let each other in: by labels of pods that run. The bridge of the
//! node enforces none.

use serde_json::Value;

use crate::installed::{Product, SYSTEM, TENANTS};

/// Where the operator asks sidecars.
const ADMIN: u64 = 8001;

impl Product<'_> {
    /// The operator may go to a slot's admin port, and is let in there.
    pub fn the_operator_may_reach_slots(&self) {
        let slot = self.pod(TENANTS[0]);
        let out = self.list(SYSTEM, "networkpolicies");
        let out = out.iter().find(|policy| policy["metadata"]["name"] == "sluice-operator").unwrap();
        let to = rules(&out["spec"]["egress"], "to");
        assert!(to.iter().any(|peer| is_peer(peer, SYSTEM, &self.namespace, &slot)), "{out}");

        let operators = self.list(SYSTEM, "pods");
        let operator = operators.iter().find(|pod| selects(&out["spec"]["podSelector"], pod)).unwrap();
        let policies = self.list(&self.namespace, "networkpolicies");
        let own: Vec<_> =
            policies.iter().filter(|policy| selects(&policy["spec"]["podSelector"], &slot)).collect();
        assert!(own.len() >= 2, "of its clients and of its neighbours: {own:?}");
        let mut from = own.iter().flat_map(|policy| rules(&policy["spec"]["ingress"], "from"));
        assert!(from.any(|peer| is_peer(&peer, &self.namespace, SYSTEM, operator)), "{own:?}");
    }

    fn list(&self, namespace: &str, kind: &str) -> Vec<Value> {
        let list = ["get", kind, "-n", namespace, "-o", "json"];
        let mut all: Value = serde_json::from_str(&self.kubectl_anywhere(&list)).unwrap();
        serde_json::from_value(all["items"].take()).unwrap()
    }
}

/// The peers of those rules that are about the admin port.
fn rules(rules: &Value, peers: &str) -> Vec<Value> {
    let about = |rule: &&Value| {
        let mut ports = rule["ports"].as_array().into_iter().flatten();
        ports.any(|port| port["port"] == ADMIN && port["protocol"] == "TCP")
    };
    let about = rules.as_array().into_iter().flatten().filter(about);
    about.flat_map(|rule| rule[peers].as_array().cloned().unwrap_or_default()).collect()
}

/// Whether a peer of a policy of `home` is `pod`, which is in `namespace`.
fn is_peer(peer: &Value, home: &str, namespace: &str, pod: &Value) -> bool {
    assert!(peer["ipBlock"].is_null(), "{peer}");
    let near = match peer.get("namespaceSelector") {
        None => namespace == home,
        Some(selector) => {
            let name = &selector["matchLabels"]["kubernetes.io/metadata.name"];
            name.is_null() || name == namespace
        }
    };
    near && selects(&peer["podSelector"], pod)
}

fn selects(selector: &Value, pod: &Value) -> bool {
    assert!(selector["matchExpressions"].is_null(), "{selector}");
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| pod["metadata"]["labels"][key] == *value)
}
