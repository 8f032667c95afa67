//! An independent evaluator of NetworkPolicies. No network of these tests enforces them.

use serde_json::Value;

/// A pod: its namespace, and its labels as an object.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Namespace of the pod.
    pub namespace: &'a str,
    /// Labels of the pod.
    pub labels: &'a Value,
}

/// Protocol and port.
pub type PortRef = (&'static str, u16);

/// Side of a flow to which a policy applies.
#[derive(Clone, Copy)]
enum Side {
    Egress,
    Ingress,
}

impl Side {
    /// Returns the policy type, the field of its rules, and the field of their peers.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Side::Egress => ("Egress", "egress", "to"),
            Side::Ingress => ("Ingress", "ingress", "from"),
        }
    }
}

/// Whether `policies` (all of the cluster) allow a flow `from` one pod `to` port `door` of another.
///
/// # Panics
/// On unsupported fields: expressions, address blocks, named ports, port ranges, and namespace labels other than
/// the name.
pub fn allows(policies: &[Value], from: Pod<'_>, to: Pod<'_>, door: PortRef) -> bool {
    allows_port(policies, Side::Egress, from, to, door)
        && allows_port(policies, Side::Ingress, to, from, door)
}

fn allows_port(policies: &[Value], side: Side, pod: Pod<'_>, other: Pod<'_>, door: PortRef) -> bool {
    let (kind, rules, peers) = side.words();
    let about = |policy: &&Value| {
        let kinds = policy["spec"]["policyTypes"].as_array().expect("its types");
        policy["metadata"]["namespace"] == pod.namespace
            && kinds.iter().any(|known| known == kind)
            && is_selected(&policy["spec"]["podSelector"], pod.labels)
    };
    let about: Vec<&Value> = policies.iter().filter(about).collect();
    let allows = |rule: &Value| {
        let peers = rule[peers].as_array();
        let known = peers.is_none_or(|all| all.iter().any(|peer| is_peer(peer, pod.namespace, other)));
        on_port(&rule["ports"], door) && known
    };
    let rules = |policy: &&Value| policy["spec"][rules].as_array().is_some_and(|all| all.iter().any(allows));
    about.is_empty() || about.iter().any(rules)
}

fn on_port(ports: &Value, (protocol, number): PortRef) -> bool {
    let opens = |port: &Value| {
        assert!(port["port"].is_u64() && port["endPort"].is_null(), "neither names nor ranges: {port}");
        port["protocol"].as_str().unwrap_or("TCP") == protocol && port["port"] == number
    };
    ports.as_array().is_none_or(|all| all.iter().any(opens))
}

/// Whether a peer of a policy in namespace `home` matches `pod`.
fn is_peer(peer: &Value, home: &str, pod: Pod<'_>) -> bool {
    assert!(peer["ipBlock"].is_null(), "no blocks of addresses: {peer}");
    let near = match peer.get("namespaceSelector") {
        None => pod.namespace == home,
        Some(selector) => {
            is_selected(selector, &serde_json::json!({"kubernetes.io/metadata.name": pod.namespace}))
        }
    };
    near && peer.get("podSelector").is_none_or(|selector| is_selected(selector, pod.labels))
}

fn is_selected(selector: &Value, labels: &Value) -> bool {
    assert!(selector["matchExpressions"].is_null(), "labels only: {selector}");
    let wanted = selector["matchLabels"].as_object().into_iter().flatten();
    wanted.into_iter().all(|(key, value)| labels[key] == *value)
}
