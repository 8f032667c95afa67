//! Properties of the rendered objects with all values: no excess right, and no container with unneeded privileges.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Helm, named, title};

const ALL: &str = "trial.enabled=true,monitoring.podMonitors=true,monitoring.serviceMonitor=true";

fn pod(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Pod" => Some(&object["spec"]),
        "Deployment" | "DaemonSet" | "Job" => Some(&object["spec"]["template"]["spec"]),
        _ => None,
    }
}

#[test]
fn every_pod_is_restricted_but_the_driver_which_is_root_with_four_capabilities() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", ALL]);
    let pods: Vec<_> = objects.iter().filter_map(|object| Some((title(object), pod(object)?))).collect();
    assert_eq!(pods.len(), 4);
    for (title, pod) in pods {
        for forbidden in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(pod[forbidden].is_null(), "{title} {forbidden}");
        }
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{title}");
        for container in pod["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{title}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{title}");
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{title}");
            assert!(context["privileged"].is_null(), "{title}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{title}");
            if title == "DaemonSet/sluice-devices" {
                assert_eq!(
                    context["capabilities"]["add"],
                    json!(["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"])
                );
            } else {
                assert!(context["capabilities"]["add"].is_null(), "{title}");
                assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{title}");
                assert!(pod["volumes"].is_null(), "{title}");
            }
        }
    }
}

#[test]
fn the_driver_has_three_folders_of_the_node_under_their_own_paths() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", "devices.kubeletFolder=/k,devices.cdiFolder=/etc/cdi"]);
    let pod = pod(named(&objects, "DaemonSet/sluice-devices")).unwrap();
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let volumes = pod["volumes"].as_array().unwrap();
    for (mount, volume) in mounts.iter().zip(volumes) {
        assert_eq!(mount["name"], volume["name"]);
        assert_eq!(mount["mountPath"], volume["hostPath"]["path"]);
    }
    let paths: Vec<_> = mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/k/plugins_registry", "/k/plugins/sluice.dev", "/etc/cdi"]);
}

fn rules<'a>(objects: &'a [Value]) -> Vec<(String, &'a Value)> {
    let roles =
        objects.iter().filter(|object| matches!(object["kind"].as_str(), Some("Role" | "ClusterRole")));
    let rules =
        |role: &'a Value| role["rules"].as_array().unwrap().iter().map(move |rule| (title(role), rule));
    roles.flat_map(rules).collect()
}

fn has(rule: &Value, key: &str, wanted: &str) -> bool {
    rule[key].as_array().unwrap().iter().any(|one| one == wanted)
}

#[test]
fn no_role_has_wildcards_or_lists_secrets_or_execs() {
    let Some(helm) = Helm::find() else { return };
    for values in [ALL, "operator.namespaces={a,b}"] {
        let objects = helm.render(&["--set", values]);
        for (role, rule) in rules(&objects) {
            for key in ["apiGroups", "resources", "verbs"] {
                assert!(!has(rule, key, "*"), "{role}: {rule}");
            }
            for resource in ["pods/exec", "pods/attach", "serviceaccounts/token"] {
                assert!(!has(rule, "resources", resource), "{role}: {rule}");
            }
            // A right of users, not of a program: for port forwarding to the operator's leader.
            let forwards = has(rule, "resources", "pods/portforward");
            assert!(!forwards || role == "Role/sluice-cli", "{role}: {rule}");
            for verb in ["escalate", "bind", "impersonate"] {
                assert!(!has(rule, "verbs", verb), "{role}: {rule}");
            }
            if has(rule, "resources", "secrets") {
                assert!(
                    ["list", "watch", "update"].iter().all(|verb| !has(rule, "verbs", verb)),
                    "{role}: {rule}"
                );
            }
        }
    }
}

/// Rights of the chart's programs on objects of its own namespace name these objects.
#[test]
fn secrets_leases_and_scales_of_the_release_are_named() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", ALL]);
    let own = ["Role/sluice-operator-own", "Role/sluice-uninstall", "Role/sluice-cli"];
    let mut named = BTreeSet::new();
    for (role, rule) in rules(&objects).into_iter().filter(|(role, _)| own.contains(&role.as_str())) {
        for resource in ["secrets", "leases", "deployments/scale"] {
            let touches = ["get", "update", "patch", "delete"].iter().any(|verb| has(rule, "verbs", verb));
            if has(rule, "resources", resource) && touches {
                let names = rule["resourceNames"].as_array().map_or(0, Vec::len);
                assert!(names > 0, "{role} without resourceNames: {rule}");
                named.insert((role.clone(), resource));
            }
        }
    }
    assert!(named.len() >= 4, "{named:?}");
}

#[test]
fn an_operator_of_some_namespaces_has_rights_there_and_sees_nodes() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", "operator.namespaces={a,b}"]);
    let everywhere = named(&objects, "ClusterRole/sluice-operator")["rules"].to_string();
    let read = |group: &str, kind: &str| json!({"apiGroups": [group], "resources": [kind], "verbs": ["list", "watch"]});
    assert_eq!(everywhere, json!([read("", "nodes"), read("resource.k8s.io", "resourceslices")]).to_string());
    let roles = objects.iter().filter(|object| title(object) == "Role/sluice-operator");
    let namespaces: Vec<_> = roles.map(|role| role["metadata"]["namespace"].as_str().unwrap()).collect();
    assert_eq!(namespaces, ["a", "b"]);
}

#[test]
fn the_job_before_uninstalling_ends_within_a_minute() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&[]);
    let job = named(&objects, "Job/sluice-uninstall");
    assert_eq!(job["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
    assert_eq!(job["spec"]["activeDeadlineSeconds"], 60);
    assert!(helm.template(super::NAMESPACE, &["--set", "hooks.timeoutSeconds=61"]).is_err());
}
