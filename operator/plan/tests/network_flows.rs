//! Allowed connections, by an evaluator of NetworkPolicies that is independent of the code that builds them.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};
use sluice_plan::objects::{clients_policy, deployment, peers_policy};
use sluice_types::ModelTenant;

use super::fixtures::{first_gpu, host_pool, placed, pool, release, tenant};

type Labels = BTreeMap<String, String>;

/// A pod: its namespace, and its labels.
#[derive(Clone, Debug)]
struct Pod {
    namespace: &'static str,
    labels: Labels,
}

fn chosen(selector: &LabelSelector, labels: &Labels) -> bool {
    assert!(selector.match_expressions.is_none(), "the evaluator knows labels only");
    let wanted = selector.match_labels.iter().flatten();
    wanted.into_iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn is_peer(peer: &NetworkPolicyPeer, home: &str, pod: &Pod) -> bool {
    let name = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), pod.namespace.to_owned())]);
    let namespace = match &peer.namespace_selector {
        Some(selector) => chosen(selector, &name),
        None => pod.namespace == home,
    };
    namespace && peer.pod_selector.as_ref().is_none_or(|selector| chosen(selector, &pod.labels))
}

/// A port and its protocol.
type PortSpec = (&'static str, i32);

fn on_port(ports: Option<&Vec<NetworkPolicyPort>>, (protocol, number): PortSpec) -> bool {
    let opens = |port: &NetworkPolicyPort| {
        let one = matches!(port.port, Some(IntOrString::Int(_))) && port.end_port.is_none();
        assert!(one, "the evaluator knows neither names nor ranges: {port:?}");
        port.protocol.as_deref().unwrap_or("TCP") == protocol && port.port == Some(IntOrString::Int(number))
    };
    ports.is_none_or(|ports| ports.iter().any(opens))
}

/// Whether the policies of `pod` for `direction` permit connections with `other` at `door`.
fn allows(policies: &[NetworkPolicy], direction: &str, pod: &Pod, other: &Pod, door: PortSpec) -> bool {
    let specs = policies
        .iter()
        .filter_map(|policy| Some((policy.metadata.namespace.as_deref()?, policy.spec.as_ref()?)));
    let about = specs.filter(|(home, spec)| {
        *home == pod.namespace
            && spec.policy_types.as_ref().is_some_and(|types| types.iter().any(|kind| kind == direction))
            && spec.pod_selector.as_ref().is_none_or(|selector| chosen(selector, &pod.labels))
    });
    let about: Vec<_> = about.collect();
    about.is_empty()
        || about.iter().any(|(home, spec)| {
            let peers = |list: &Option<Vec<NetworkPolicyPeer>>| {
                list.as_ref().is_none_or(|peers| peers.iter().any(|peer| is_peer(peer, home, other)))
            };
            if direction == "Ingress" {
                spec.ingress
                    .iter()
                    .flatten()
                    .any(|rule| on_port(rule.ports.as_ref(), door) && peers(&rule.from))
            } else {
                spec.egress.iter().flatten().any(|rule| on_port(rule.ports.as_ref(), door) && peers(&rule.to))
            }
        })
}

struct FlowTest {
    policies: Vec<NetworkPolicy>,
    pods: BTreeMap<&'static str, Pod>,
}

impl FlowTest {
    /// Tenants a and b on one GPU, c on another; the operator; a client, a stranger.
    fn new(access: Value) -> FlowTest {
        FlowTest::with_tenant(json!({"access": access}))
    }

    /// The same, with the spec of tenant a.
    fn with_tenant(spec: Value) -> FlowTest {
        let pool = pool(json!({"gpus": [{"name": "chat", "count": 2}], "deviceClassName": "host.sluice.dev",
            "device": {"host": {"memory": "96Mi"}}}));
        let gpus = sluice_plan::gpu::gpus(&pool, &|_| sluice_plan::gpu::GpuSizes::default());
        let hub = json!({"model": {"source": {
            "type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": {"repo": "a/b"}}}});
        let tenants = [tenant("a", spec), tenant("b", json!({})), tenant("c", hub)];
        let on = [&gpus[0], &gpus[0], &gpus[1]];
        let mut world = FlowTest { policies: Vec::new(), pods: BTreeMap::new() };
        world.policies.extend(gpus.iter().map(|gpu| peers_policy(&pool, gpu, &release())));
        for ((tenant, gpu), name) in tenants.iter().zip(on).zip(["a", "b", "c"]) {
            world.policies.extend(clients_policy(tenant));
            let template = deployment(&placed(&pool, tenant, gpu), &release()).spec.unwrap().template;
            world
                .pods
                .insert(name, Pod { namespace: "ns", labels: template.metadata.unwrap().labels.unwrap() });
        }
        let label = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let rest = [
            ("operator", "sluice-system", label("app", "sluice-operator")),
            ("impostor", "ns", label("app", "sluice-operator")),
            ("client", "ns", label("team", "web")),
            ("stranger", "elsewhere", Labels::new()),
        ];
        world.pods.extend(rest.map(|(name, namespace, labels)| (name, Pod { namespace, labels })));
        world
    }

    fn flows(&self, from: &str, to: &str, port: i32) -> bool {
        let (from, to, door) = (&self.pods[from], &self.pods[to], ("TCP", port));
        allows(&self.policies, "Egress", from, to, door) && allows(&self.policies, "Ingress", to, from, door)
    }
}

#[test]
fn admin_ports_accept_peers_and_operator_only() {
    let world = FlowTest::new(json!({}));
    for (from, to, allowed) in [
        ("b", "a", true),
        ("a", "b", true),
        ("operator", "a", true),
        ("c", "a", false),
        ("a", "c", false),
        ("impostor", "a", false),
        ("client", "a", false),
        ("stranger", "a", false),
    ] {
        assert_eq!(world.flows(from, to, 8001), allowed, "{from} to {to}");
    }
}

#[test]
fn clients_are_all_pods_or_listed_ones() {
    let open = FlowTest::new(json!({}));
    assert!(open.flows("client", "a", 8000) && open.flows("stranger", "a", 8000));
    let listed = FlowTest::new(json!({"from": [{"podSelector": {"matchLabels": {"team": "web"}}}]}));
    assert!(listed.flows("client", "a", 8000));
    assert!(!listed.flows("stranger", "a", 8000));
    assert!(listed.flows("stranger", "b", 8000), "another tenant's list is its own");
    let everyone_here = FlowTest::new(json!({"from": [{}]}));
    assert!(everyone_here.flows("client", "a", 8000));
    assert!(!everyone_here.flows("stranger", "a", 8000));
    assert!(!open.flows("client", "a", 8002), "probes are for the kubelet, which no policy stops");
}

#[test]
fn pods_reach_only_peers_unless_downloading() {
    let world = FlowTest::new(json!({}));
    assert!(!world.flows("a", "stranger", 443));
    assert!(world.flows("c", "stranger", 443), "its model comes over the network");
    let mut arrived = FlowTest::new(json!({}));
    arrived.pods.get_mut("c").unwrap().labels.remove("sluice.dev/fetching");
    assert!(!arrived.flows("c", "stranger", 443));
    for protocol in ["UDP", "TCP"] {
        let asks = |pod: &str, port| {
            allows(&world.policies, "Egress", &world.pods[pod], &world.pods["stranger"], (protocol, port))
        };
        assert!(asks("a", 53) && asks("c", 53), "names, by {protocol}");
        assert!(!asks("a", 54), "{protocol}");
    }
    assert!(!allows(&world.policies, "Ingress", &world.pods["a"], &world.pods["b"], ("UDP", 8001)));
}

#[test]
fn labels_of_a_tenant_open_nothing() {
    // Created before the API server rejected such keys.
    let labels = json!({"sluice.dev/fetching": "true", "sluice.dev/gpu": "p-chat-1", "sluice.dev/x": "y", "team": "a"});
    let world = FlowTest::with_tenant(json!({"podLabels": labels}));
    assert!(!world.flows("a", "stranger", 443));
    assert!(!world.flows("a", "c", 8001), "it is on another GPU");
    let of_a = &world.pods["a"].labels;
    assert_eq!((of_a.get("team").map(String::as_str), of_a.get("sluice.dev/x")), (Some("a"), None));
}

#[test]
fn every_policy_is_owned_by_protected_object() {
    let (pool, tenant): (_, ModelTenant) = (host_pool(), tenant("a", json!({})));
    let mut policies = clients_policy(&tenant);
    policies.push(peers_policy(&pool, &first_gpu(&pool), &release()));
    let owners: Vec<_> = policies
        .iter()
        .map(|policy| policy.metadata.owner_references.as_ref().unwrap()[0].kind.as_str())
        .collect();
    assert_eq!(owners, ["ModelTenant", "ModelTenant", "GpuPool"]);
}
