//! Pools and tenants, and the work of all other components for them: inspections, the scheduler, the Deployment
//! controller, kubelets. All objects have a realistic size, because the operator has to read them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_e2e::cluster::{self, within};
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::config::admin_host;

use super::sizes::Sizes;
use super::stub::{Credentials, Sidecar, Stub};

/// Limit of a wait whose duration grows with the number of tenants.
pub const WAIT_LIMIT: Duration = Duration::from_secs(3600);

/// Concurrent requests.
const AT_ONCE: usize = 16;
/// Objects per page of a list.
const PAGE: u32 = 250;
/// GPUs per node.
const OF_A_NODE: usize = 8;
/// Name of every pool and of its only group.
const POOL: &str = "p";
const GROUP: &str = "chat";
const DRIVER: &str = "sluice.dev";

/// A pool in its own namespace.
#[derive(Clone, Debug)]
struct PopulationSpec {
    namespace: String,
    /// Its tenants and its GPUs, by their numbers in the cluster.
    tenants: std::ops::Range<usize>,
    gpus: std::ops::Range<usize>,
}

/// All pools and tenants of the cluster.
pub struct TenantPopulation {
    client: Client,
    places: Vec<PopulationSpec>,
    stub: Arc<Stub>,
}

impl TenantPopulation {
    /// Creates namespaces, and nodes with their devices.
    pub async fn new(server: &cluster::Api, sizes: &Sizes, stub: Arc<Stub>) -> TenantPopulation {
        let pools = sizes.pools;
        let part = |all: usize, pool: usize| all * pool / pools..all * (pool + 1) / pools;
        let mut places = Vec::new();
        for pool in 0..pools {
            let (tenants, gpus) = (part(sizes.tenants, pool), part(sizes.gpus, pool));
            places.push(PopulationSpec { namespace: server.namespace("pool").await, tenants, gpus });
        }
        let population = TenantPopulation { client: server.client().await, places, stub };
        let nodes = 0..sizes.gpus.div_ceil(OF_A_NODE);
        each(nodes, async |node| population.node(node).await).await;
        population
    }

    /// Creates pools and tenants, and all dependent objects, until all tenants serve.
    pub async fn create_all(&self) {
        for place in &self.places {
            let host = json!({"memory": "256Mi"});
            let group = json!({"name": GROUP, "count": place.gpus.len()});
            let spec = json!({"deviceClassName": "host.sluice.dev", "device": {"host": host}, "gpus": [group],
                "hostMemoryPerGPU": "8Gi"});
            self.create::<GpuPool>(&place.namespace, own("GpuPool", POOL, spec)).await;
        }
        let all = self.places.iter().flat_map(|place| place.tenants.clone().map(move |one| (place, one)));
        each(all, async |(place, tenant)| self.tenant(place, tenant).await).await;
        eprintln!("tenants are there");
        for place in &self.places {
            let (slots, gpus) = (place.tenants.len(), place.gpus.len());
            self.count::<Deployment>(&place.namespace, slots).await;
            self.count::<ResourceClaim>(&place.namespace, gpus).await;
            self.schedule(place).await;
            self.run(place).await;
            eprintln!("pods of {} run", place.namespace);
        }
    }

    /// Waits until every tenant is ready.
    pub async fn all_ready(&self) {
        for place in &self.places {
            within(WAIT_LIMIT, "all tenants ready", async || {
                let tenants = self.list::<ModelTenant>(&place.namespace).await;
                let ready = |tenant: &ModelTenant| {
                    let conditions = tenant.status.iter().flat_map(|status| &status.conditions);
                    conditions.clone().any(|one| one.type_ == "Ready" && one.status == "True")
                };
                tenants.iter().all(ready).then_some(())
            })
            .await;
        }
    }

    async fn node(&self, number: usize) {
        let name = node_name(number);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = typed(json!({"metadata": {"name": name}}));
        nodes.create(&PostParams::default(), &node).await.expect("a node");
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let status = json!({"conditions": [ready], "allocatable": {"memory": "512Gi"}});
        let patch = Patch::Merge(json!({"status": status}));
        nodes.patch_status(&name, &PatchParams::default(), &patch).await.expect("its status");
        let device = |index: usize| {
            json!({"name": format!("gpu-{index}"), "capacity": {"memory": {"value": "256Mi"}},
                "attributes": {"uuid": {"string": format!("GPU-{number}-{index}")}}})
        };
        let devices: Vec<Value> = (0..OF_A_NODE).map(device).collect();
        let pool = json!({"name": name, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": DRIVER, "nodeName": name, "pool": pool, "devices": devices});
        let slices: Api<ResourceSlice> = Api::all(self.client.clone());
        let slice = typed(json!({"metadata": {"name": name}, "spec": spec}));
        slices.create(&PostParams::default(), &slice).await.expect("a slice");
    }

    /// Creates a tenant with an inspected model.
    async fn tenant(&self, place: &PopulationSpec, number: usize) {
        let (name, mib) = (tenant_name(number), 1_i64 << 20);
        let source =
            json!({"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "models"}});
        let spec = json!({"poolRef": {"name": POOL}, "model": {"source": source},
            "access": {"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}});
        self.create::<ModelTenant>(&place.namespace, own("ModelTenant", &name, spec)).await;
        let model = json!({"weightsBytes": 9 * mib, "layers": 8, "kvBytesPerToken": 1024, "globalBytes": mib,
            "layerBytes": mib, "maxModelLen": 1024, "activationBytes": 65536, "stepActivationBytes": 65536,
            "threadBytes": 0, "stagingBytes": 0});
        self.set_status::<ModelTenant>(&place.namespace, &name, json!({"model": model})).await;
    }

    /// Acts as the scheduler: allocates a device for each claim.
    async fn schedule(&self, place: &PopulationSpec) {
        let claims = self.list::<ResourceClaim>(&place.namespace).await;
        each(claims, async |claim| {
            let gpu = gpu_of(&claim.name_any(), place);
            let node = node_name(gpu / OF_A_NODE);
            let result = |request: &str, device: String| {
                json!({"request": request, "driver": DRIVER, "pool": node, "device": device})
            };
            let own = format!("gpu-{}", gpu % OF_A_NODE);
            let results = [result("gpu", own), result("neighbourhood", format!("neighbourhood-{gpu}"))];
            let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
            let allocation = json!({"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": terms}});
            let status = json!({"allocation": allocation});
            self.set_status::<ResourceClaim>(&place.namespace, &claim.name_any(), status).await;
        })
        .await;
    }

    /// Acts as controller and kubelet: creates a running pod for each Deployment.
    async fn run(&self, place: &PopulationSpec) {
        let secrets = self.list::<Secret>(&place.namespace).await;
        let secrets: BTreeMap<String, Secret> =
            secrets.into_iter().map(|one| (one.name_any(), one)).collect();
        let deployments = self.list::<Deployment>(&place.namespace).await;
        each(deployments, async |deployment| {
            let name = deployment.name_any();
            let gpu = gpu_of(&deployment.annotations()["sluice.dev/claim"], place);
            let tenant = name.strip_suffix("-0").expect("the only slot").to_owned();
            let sidecar = Sidecar { namespace: place.namespace.clone(), tenant: tenant.clone(), gpu };
            let host = admin_host(&place.namespace, &tenant);
            self.stub.add(host, sidecar, &credentials(&secrets[&format!("sluice-{name}")]));
            self.pod(place, deployment, gpu).await;
        })
        .await;
    }

    async fn pod(&self, place: &PopulationSpec, deployment: Deployment, gpu: usize) {
        let name = format!("{}-7d9c5b8f6d-x2x4z", deployment.name_any());
        let template = deployment.spec.expect("a Deployment has a spec").template;
        let mut pod = json!({"metadata": template.metadata, "spec": template.spec});
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["nodeName"] = json!(node_name(gpu / OF_A_NODE));
        self.create::<Pod>(&place.namespace, pod).await;
        let number: usize =
            deployment.metadata.name.and_then(|name| name.split('-').nth(1)?.parse().ok()).expect("t-N-0");
        let address = format!("127.1.{}.{}", number / 250, number % 250 + 1);
        let yes = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        let status = json!({"phase": "Running", "podIP": address, "conditions": kinds.map(yes)});
        self.set_status::<Pod>(&place.namespace, &name, status).await;
    }

    async fn create<K: Object>(&self, namespace: &str, object: Value) {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let made = api.create(&PostParams::default(), &typed(object)).await;
        made.unwrap_or_else(|e| panic!("{}: {e}", K::kind(&())));
    }

    async fn set_status<K: Object>(&self, namespace: &str, name: &str, status: Value) {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({"status": status}));
        let set = api.patch_status(name, &PatchParams::default(), &patch).await;
        set.unwrap_or_else(|e| panic!("status of {} {name}: {e}", K::kind(&())));
    }

    /// Waits until there are `wanted` objects. Lists one and reads the number of remaining ones from the response.
    async fn count<K: Object>(&self, namespace: &str, wanted: usize) {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        within(WAIT_LIMIT, &format!("{wanted} of {}", K::kind(&())), async || {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            let first = api.list_metadata(&ListParams::default().limit(1)).await.expect("a list");
            let more = first.metadata.remaining_item_count.unwrap_or(0);
            (first.items.len() + usize::try_from(more).unwrap_or(0) >= wanted).then_some(())
        })
        .await;
    }

    async fn list<K: Object>(&self, namespace: &str) -> Vec<K> {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let (mut all, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
        loop {
            let page = api.list(&params).await.expect("a list");
            all.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return all,
            }
        }
    }
}

/// An object that can be created, listed and printed.
trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + Serialize + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

async fn each<T>(all: impl IntoIterator<Item = T>, work: impl AsyncFn(T)) {
    stream::iter(all).for_each_concurrent(AT_ONCE, |one| work(one)).await;
}

fn credentials(secret: &Secret) -> Credentials<'_> {
    let data = secret.data.as_ref().expect("a Secret has data");
    Credentials { cert: &data["tls.crt"].0, key: &data["tls.key"].0, bundle: &data["ca.crt"].0 }
}

/// Returns the GPU's number in the cluster from a claim's name, `POOL-GROUP-INDEX-eEPOCH`.
fn gpu_of(claim: &str, place: &PopulationSpec) -> usize {
    let index = claim.rsplit('-').nth(1).and_then(|index| index.parse::<usize>().ok());
    place.gpus.start + index.unwrap_or_else(|| panic!("{claim} is no claim's name"))
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

fn tenant_name(number: usize) -> String {
    format!("t-{number}")
}

fn own(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn typed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("it is of this kind")
}
