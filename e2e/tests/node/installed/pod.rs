//! Pods of slots, and what they say of themselves.

use serde_json::Value;

use super::processes::container;
use super::{Product, TENANTS};

impl Product<'_> {
    /// The pods of a tenant's slots, those that are ending too.
    pub fn pods(&self, tenant: &str) -> Vec<Value> {
        let all = self.kubectl(&["get", "pods", "-l", &slots_of(tenant), "-o", "json"]);
        let mut all: Value = serde_json::from_str(&all).unwrap();
        serde_json::from_value(all["items"].take()).unwrap()
    }

    /// The only pod of a tenant's slots; nothing where there is none, or another one that is ending.
    pub fn pod(&self, tenant: &str) -> Value {
        let mut all = self.pods(tenant);
        if all.len() == 1 { all.remove(0) } else { Value::Null }
    }

    /// Uids of all pods of [`TENANTS`], and how often their containers were restarted.
    pub fn lives(&self) -> Vec<String> {
        let told = |pod: Value| {
            let restarts = ["sidecar", "engine"].map(|name| container(&pod, name).restarts);
            format!("{} {restarts:?}", pod["metadata"]["uid"])
        };
        TENANTS.iter().flat_map(|name| self.pods(name)).map(told).collect()
    }

    /// Address of the pod of a tenant's first slot.
    pub fn address(&self, tenant: &str) -> String {
        self.pod(tenant)["status"]["podIP"].as_str().unwrap().to_owned()
    }

    /// Waits until a tenant has one pod, which is ready and as wanted, and its Service leads there.
    pub async fn ready_again(&self, tenant: &str, wanted: &dyn Fn(&Value) -> bool) {
        let ready = async || {
            let pod = self.pod(tenant);
            (pod.is_object() && is_ready(&pod) && wanted(&pod)).then_some(())
        };
        self.wait(&format!("{tenant} is ready again"), ready).await;
        self.pods_of(tenant, 1).await;
        self.reached(tenant).await;
    }

    /// Waits until a tenant has so many pods.
    pub async fn pods_of(&self, tenant: &str, wanted: usize) {
        let selector = slots_of(tenant);
        let left = async || {
            let names = self.kubectl(&["get", "pods", "-l", &selector, "-o", "name"]);
            (names.lines().count() == wanted).then_some(())
        };
        self.wait(&format!("{wanted} pods of {tenant}"), left).await;
    }
}

/// Selects the pods of a tenant's slots.
pub fn slots_of(tenant: &str) -> String {
    format!("sluice.dev/tenant={tenant},app.kubernetes.io/component=slot")
}

/// Its name.
pub fn name(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Another one for each pod, also of the same name.
pub fn uid(pod: &Value) -> &Value {
    &pod["metadata"]["uid"]
}

/// Whether it was told to go.
pub fn is_going(pod: &Value) -> bool {
    !pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether Services lead there, as long as it is not going.
pub fn is_ready(pod: &Value) -> bool {
    readiness(pod).is_some_and(|ready| ready["status"] == "True")
}

/// When it became ready, or ceased to be.
pub fn ready_since(pod: &Value) -> &Value {
    &readiness(pod).expect("a pod has that condition")["lastTransitionTime"]
}

fn readiness(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Ready")
}
