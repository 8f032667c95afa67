//! A CRD that an upgrade changes: it adds a rule, which an existing tenant breaks, and a field.

use std::path::Path;

use serde_json::{Value, json};
use sluice_types::rules::POD_ANNOTATIONS;

use super::PodInstances;
use crate::installed::tenant;

/// The CRD of tenants, in the chart.
const CRD: &str = "templates/generated/sluice.dev_modeltenants.yaml";
/// Start of the rule that the older CRD lacks, and the text after it.
const RULE: [&str; 2] = [
    "                x-kubernetes-validations:\n                - message: \"podAnnotations must",
    "              podLabels:\n",
];
/// Start of the field that the older CRD lacks, and the text after it.
const FIELD: [&str; 2] = ["              podPriorityClassName:\n", "              poolRef:\n"];
/// The existing tenant.
const EARLY: &str = "early";

/// Changes the CRD of tenants in a chart into that of a previous release.
pub fn make_older(chart: &Path) {
    let file = chart.join(CRD);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, without(&without(&text, RULE), FIELD)).unwrap();
}

/// Returns a text without the part from the first string up to the second.
fn without(text: &str, [first, next]: [&str; 2]) -> String {
    let (before, rest) = text.split_once(first).unwrap_or_else(|| panic!("{CRD} has no {first:?}"));
    let (_, after) = rest.split_once(next).unwrap_or_else(|| panic!("{CRD}: no {next:?} after {first:?}"));
    [before, next, after].concat()
}

/// Returns a tenant that breaks the rule. Its pool does not exist, so nothing runs, and the operator drops such
/// annotations.
fn rule_breaker(name: &str) -> Value {
    let mut tenant = tenant(name, "http://hub.invalid");
    tenant["spec"]["poolRef"]["name"] = "nowhere".into();
    tenant["spec"]["podAnnotations"] = json!({"sluice.dev/of-before": "true"});
    tenant
}

impl PodInstances<'_> {
    /// The older CRD accepts the tenant and does not know the field.
    pub(super) fn a_tenant_comes_before_the_rule_that_it_breaks(&self) {
        self.product.apply(&[rule_breaker(EARLY)]);
        assert_eq!(self.edited(101), Value::Null, "the field comes later");
    }

    /// The rule is for new objects. An existing tenant that breaks it can change in other fields, and the operator
    /// can write its status: unchanged fields are not validated again.
    pub(super) async fn the_upgrade_brought_the_rule_and_a_field_and_shut_nobody_out(&self) {
        let refused = async || {
            let output = self.product.try_apply(&[rule_breaker("late")], &["--dry-run=server"]);
            (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let words = self.product.wait("the rule is in force", refused).await;
        assert!(words.contains(POD_ANNOTATIONS.message), "{words}");
        assert_eq!(self.edited(102), "urgent", "the field is kept");
        let observed = async || self.is_observed(EARLY).then_some(());
        self.product.wait("its status is about the change", observed).await;
        self.product.kubectl(&["delete", "modeltenant", EARLY]);
    }

    /// Changes one field of the existing tenant and sets the new one. Returns the value of the new field.
    fn edited(&self, priority: u32) -> Value {
        let spec = json!({"priority": priority, "podPriorityClassName": "urgent"});
        self.product.change("modeltenant", EARLY, &spec);
        let mut spec = self.product.tenant(EARLY)["spec"].take();
        assert_eq!(spec["priority"], priority);
        assert!(spec["podAnnotations"].is_object(), "it breaks the rule still: {spec}");
        spec["podPriorityClassName"].take()
    }
}
