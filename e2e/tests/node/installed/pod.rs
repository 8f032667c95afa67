//! Pods of slots and their status.

use serde_json::Value;

use super::processes::container;
use super::{Product, TENANTS};

impl Product<'_> {
    /// Returns the pods of a tenant's slots, including terminating ones.
    pub fn pods(&self, tenant: &str) -> Vec<Value> {
        let all = self.kubectl(&["get", "pods", "-l", &slots_of(tenant), "-o", "json"]);
        let mut all: Value = serde_json::from_str(&all).unwrap();
        serde_json::from_value(all["items"].take()).unwrap()
    }

    /// Returns the only pod of a tenant's slots; null if there is none, or also a terminating one.
    pub fn pod(&self, tenant: &str) -> Value {
        let mut all = self.pods(tenant);
        if all.len() == 1 { all.remove(0) } else { Value::Null }
    }

    /// Returns the uids of all pods of [`TENANTS`] and the restarts of their containers.
    pub fn lives(&self) -> Vec<String> {
        let instance = |pod: Value| {
            let restarts = ["sidecar", "engine"].map(|name| container(&pod, name).restarts);
            format!("{} {restarts:?}", pod["metadata"]["uid"])
        };
        TENANTS.iter().flat_map(|name| self.pods(name)).map(instance).collect()
    }

    /// Address of the pod of a tenant's first slot.
    pub fn address(&self, tenant: &str) -> String {
        self.pod(tenant)["status"]["podIP"].as_str().unwrap().to_owned()
    }

    /// Waits until a tenant has one pod that is ready and matches `wanted`, and its Service routes to it.
    pub async fn ready_again(&self, tenant: &str, wanted: &dyn Fn(&Value) -> bool) {
        let ready = async || {
            let pod = self.pod(tenant);
            (pod.is_object() && is_ready(&pod) && wanted(&pod)).then_some(())
        };
        self.wait(&format!("{tenant} is ready again"), ready).await;
        self.pods_of(tenant, 1).await;
        self.reached(tenant).await;
    }

    /// Waits until a tenant has `wanted` pods.
    pub async fn pods_of(&self, tenant: &str, wanted: usize) {
        let selector = slots_of(tenant);
        let left = async || {
            let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"]);
            (names.lines().count() == wanted).then_some(())
        };
        self.wait(&format!("{wanted} pods of {tenant}"), left).await;
    }
}

/// Returns a selector of the pods of a tenant's slots.
pub fn slots_of(tenant: &str) -> String {
    format!("sluice.dev/tenant={tenant},app.kubernetes.io/component=slot")
}

/// Name of the pod.
pub fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Uid of the pod; it differs between pods of the same name.
pub fn uid(pod: &Value) -> &Value {
    &pod["metadata"]["uid"]
}

/// Whether the pod is being deleted.
pub fn is_terminating(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether Services route to the pod, unless it is being deleted.
pub fn is_ready(pod: &Value) -> bool {
    readiness(pod).is_some_and(|ready| ready["status"] == "True")
}

/// Time of the last change of its readiness.
pub fn ready_since(pod: &Value) -> &Value {
    &readiness(pod).expect("a pod has that condition")["lastTransitionTime"]
}

fn readiness(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Ready")
}
