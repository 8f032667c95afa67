//! Claims of a pool of NVIDIA GPUs: a scheduler allocates a whole GPU or an instance of one. The test writes the
//! devices into a ResourceSlice, and the kubelet rejects the claims because it has no such driver. Classes,
//! attributes and capacities have the names of NVIDIA's driver (github.com/NVIDIA/k8s-dra-driver-gpu, its chart and
//! README).

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sluice_e2e::cluster::on_node_exclusive;

use crate::installed::{Product, pool, tenant};

const DRIVER: &str = "gpu.nvidia.com";

/// Groups of the pool, each with a tenant of its name, and their sharing modes.
fn groups() -> [(&'static str, Value); 3] {
    [
        ("whole", json!({"mode": "Temporal"})),
        ("spatial", json!({"mode": "Spatial"})),
        ("part", json!({"mode": "Isolated", "isolated": {"profile": "3g.71gb"}})),
    ]
}

/// Devices that NVIDIA's driver offers on a node: two GPUs, and two instances of a third.
fn slice(node: &str) -> Value {
    let text = |value: &str| json!({"string": value});
    let device = |name: &str, attributes: Value, memory: &str| json!({"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}});
    let gpu = |name: &str| device(name, json!({"type": text("gpu"), "uuid": text(name)}), "141Gi");
    let instance = |name: &str, profile: &str| {
        device(name, json!({"type": text("mig"), "profile": text(profile), "uuid": text(name)}), "70Gi")
    };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "nvidia"}, "spec": {
        "driver": DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [instance("mig-1g", "1g.18gb"), gpu("gpu-0"), gpu("gpu-1"), instance("mig-3g", "3g.71gb")]}})
}

/// Returns the class of a kind of device, as in the driver's chart.
fn class(name: &str, kind: &str) -> Value {
    let expression = format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'");
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]}})
}

/// Objects of the cluster. Dropping this value deletes them.
struct Offered<'a>(&'a Product<'a>);

impl<'a> Offered<'a> {
    fn new(product: &'a Product<'a>) -> Offered<'a> {
        let node = product.kubectl_anywhere(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
        product.apply(&[class(DRIVER, "gpu"), class("mig.nvidia.com", "mig"), slice(&node)]);
        Offered(product)
    }
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        for of in [["deviceclass", DRIVER], ["deviceclass", "mig.nvidia.com"], ["resourceslice", "nvidia"]] {
            // A failed test has reported its error already.
            let _ = self.0.node.api().kubectl(&["delete", of[0], of[1], "--ignore-not-found"]).output();
        }
    }
}

fn nvidias() -> Value {
    let mut pool = pool(1);
    let group = |(name, sharing): (&str, Value)| json!({"name": name, "count": 1, "sharing": sharing});
    pool["spec"]["gpus"] = groups().map(group).into();
    pool["spec"]["deviceClassName"] = DRIVER.into();
    pool["spec"].as_object_mut().unwrap().remove("device");
    pool
}

/// Returns a tenant of the group of its name. It states its memory, so no model is inspected.
fn of_group(name: &str) -> Value {
    let mut tenant = tenant(name, "http://127.0.0.1:1");
    tenant["spec"]["gpuGroup"] = name.into();
    let resources = json!({"requests": {"cpu": "20m"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    tenant["spec"]["engine"] =
        json!({"kind": "Vllm", "image": "engines.example/vllm:1", "resources": resources});
    tenant
}

impl Product<'_> {
    /// Returns the device that the scheduler allocated to the claim of a group's GPU.
    async fn given(&self, group: &str) -> String {
        let allocated = async || {
            // The claim may not exist yet.
            let claims: Value =
                serde_json::from_str(&self.kubectl(&["get", "resourceclaims", "-o", "json"])).unwrap();
            let name = format!("trial-{group}-0-e1");
            let claim =
                claims["items"].as_array()?.iter().find(|one| one["metadata"]["name"] == name.as_str())?;
            let results = claim["status"]["allocation"]["devices"]["results"].as_array()?.clone();
            let gpu = results.into_iter().find(|result| result["request"] == "gpu")?;
            gpu["device"].as_str().map(str::to_owned)
        };
        self.wait(&format!("a device for {group}"), allocated).await
    }

    /// Waits until the tenant reports that the kubelet does not know the driver.
    async fn has_no_driver(&self, tenant: &str) {
        let is_refused = async || {
            let allocated = self.condition_of(tenant, "DevicesAllocated")?;
            let words = allocated["message"].as_str().filter(|_| allocated["reason"] == "DriverRefused")?;
            words.contains(DRIVER).then_some(())
        };
        self.wait(&format!("{tenant}: the node's word"), is_refused).await;
    }
}

#[test]
fn pools_of_nvidias_gpus_are_given_whole_ones_and_instances_by_the_scheduler() {
    on_node_exclusive(async |node| {
        // Classes and slices of that name may exist on an external cluster.
        if !node.api().is_own_cluster() {
            return;
        }
        let Some(product) = Product::install(node).await else { return };
        {
            let _offered = Offered::new(&product);
            let tenants = groups().map(|(name, _)| of_group(name));
            product.apply(&[&[nvidias()], &tenants[..]].concat());
            let mut given = BTreeMap::new();
            for (name, _) in groups() {
                given.insert(name, product.given(name).await);
                product.has_no_driver(name).await;
            }
            let claim = product.get("resourceclaim", "trial-spatial-0-e1");
            let config = &claim["spec"]["devices"]["config"][0]["opaque"];
            assert_eq!(
                (&config["driver"], &config["parameters"]["sharing"]["strategy"]),
                (&json!(DRIVER), &json!("MPS"))
            );
            assert_eq!(given["part"], "mig-3g", "an instance of the profile that is asked for");
            let mut whole = [&given["whole"], &given["spatial"]];
            whole.sort();
            assert_eq!(whole, ["gpu-0", "gpu-1"], "each its own, and no instance");
        }
        product.end();
    });
}
