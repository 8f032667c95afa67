//! The chart's NetworkPolicy and those of the operator admit each other's pods by the labels of running pods. The
//! bridge of the node enforces none.

use serde_json::Value;
use sluice_e2e::cluster::network_policies::{Pod, allows};

use crate::installed::{Product, SYSTEM, TENANTS};

/// Admin port of sidecars.
const ADMIN: u16 = 8001;

impl Product<'_> {
    /// The operator reaches a slot's admin port. A pod with its labels in another namespace does not.
    pub fn the_operator_may_reach_slots(&self) {
        let slot = self.pod(TENANTS[0]);
        let operators = self.list(SYSTEM, "pods");
        let is_operator =
            |pod: &&Value| pod["metadata"]["labels"]["app.kubernetes.io/name"] == "sluice-operator";
        let operator = operators.iter().find(is_operator).expect("an operator");
        let policies = [SYSTEM, &self.namespace].map(|home| self.list(home, "networkpolicies")).concat();
        let (operator, slot) = (&operator["metadata"]["labels"], &slot["metadata"]["labels"]);
        assert!(slot.is_object(), "one pod");
        let slot = Pod { namespace: &self.namespace, labels: slot };
        let flows = |namespace| allows(&policies, Pod { namespace, labels: operator }, slot, ("TCP", ADMIN));
        assert!(flows(SYSTEM), "{policies:#?}");
        assert!(!flows(&self.namespace), "{policies:#?}");
    }

    fn list(&self, namespace: &str, kind: &str) -> Vec<Value> {
        let list = ["get", kind, "-n", namespace, "-o", "json"];
        let mut all: Value = serde_json::from_str(&self.kubectl_anywhere(&list)).unwrap();
        serde_json::from_value(all["items"].take()).unwrap()
    }
}
