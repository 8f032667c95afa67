//! Rights that the rendered chart grants to its service accounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{ACCOUNTS, Right};
use crate::installed::{Product, SYSTEM, chart};

/// Returns the rights of all accounts by the chart's bindings, with the values of the tests.
///
/// # Panics
/// On a wildcard, and on a binding without its role.
pub fn by_chart(product: &Product<'_>) -> BTreeSet<Right> {
    let chart = chart();
    let values = product.values();
    let rendered = product.helm(&[
        "template",
        "sluice",
        chart.to_str().unwrap(),
        "--namespace",
        SYSTEM,
        "--set",
        values,
    ]);
    let objects: Vec<Value> = rendered
        .split("\n---")
        .filter(|document| document.contains("kind:"))
        .map(|document| serde_yaml::from_str(document).unwrap())
        .collect();
    let bindings = objects.iter().filter(|object| text(&object["kind"]).ends_with("RoleBinding"));
    bindings.flat_map(|binding| of_binding(binding, &objects)).collect()
}

fn of_binding(binding: &Value, objects: &[Value]) -> BTreeSet<Right> {
    let wanted = &binding["roleRef"];
    let is_it = |one: &&Value| one["kind"] == wanted["kind"] && one["metadata"]["name"] == wanted["name"];
    let role = objects.iter().find(is_it).unwrap_or_else(|| panic!("no role {wanted}"));
    let subjects = list(&binding["subjects"]);
    let accounts =
        subjects.iter().map(|subject| text(&subject["name"])).filter(|name| ACCOUNTS.contains(name));
    accounts
        .flat_map(|account| list(&role["rules"]).iter().flat_map(move |rule| of_rule(account, rule)))
        .collect()
}

fn of_rule(account: &str, rule: &Value) -> Vec<Right> {
    let mut rights = Vec::new();
    for group in list(&rule["apiGroups"]) {
        for resource in list(&rule["resources"]) {
            let resource = format!("{}/{}", text(group), text(resource));
            for verb in list(&rule["verbs"]) {
                assert!(!resource.contains('*') && verb != "*", "a wildcard: {rule}");
                rights.push(Right::new(account, text(verb), &resource));
            }
        }
    }
    rights
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
