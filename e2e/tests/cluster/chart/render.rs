//! Rendered objects by values.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Helm, named, output_text, title};

const OFF: [&str; 2] = ["--set", "devices.enabled=false,networkPolicy.enabled=false,admission.enabled=false"];

#[test]
fn the_chart_has_nothing_that_helm_complains_of() {
    let Some(helm) = Helm::find() else { return };
    output_text(helm.command(&["lint", "--strict", &super::chart()]).output().unwrap()).unwrap();
}

#[test]
fn a_plain_installation_is_these_objects() {
    let Some(helm) = Helm::find() else { return };
    let titles: BTreeSet<_> = helm.render(&[]).iter().map(title).collect();
    let expected = "\
        ClusterRole/sluice-devices ClusterRole/sluice-edit ClusterRole/sluice-operator ClusterRole/sluice-test \
        ClusterRole/sluice-uninstall ClusterRole/sluice-view ClusterRoleBinding/sluice-devices \
        ClusterRoleBinding/sluice-operator ClusterRoleBinding/sluice-test ClusterRoleBinding/sluice-uninstall \
        CustomResourceDefinition/gpupools.sluice.dev CustomResourceDefinition/modeltenants.sluice.dev \
        DaemonSet/sluice-devices Deployment/sluice-operator DeviceClass/neighbourhood.sluice.dev Job/sluice-uninstall \
        NetworkPolicy/sluice-devices NetworkPolicy/sluice-operator Pod/sluice-test PodDisruptionBudget/sluice-operator \
        Role/sluice-cli Role/sluice-operator-own Role/sluice-uninstall RoleBinding/sluice-operator-own RoleBinding/sluice-uninstall \
        Service/sluice-operator ServiceAccount/sluice-devices ServiceAccount/sluice-operator ServiceAccount/sluice-test \
        ServiceAccount/sluice-uninstall ValidatingAdmissionPolicy/sluice-devices-slices \
        ValidatingAdmissionPolicy/sluice-operator-pods ValidatingAdmissionPolicy/sluice-operator-secrets ValidatingAdmissionPolicy/sluice-tenant-priority \
        ValidatingAdmissionPolicyBinding/sluice-devices-slices ValidatingAdmissionPolicyBinding/sluice-operator-pods ValidatingAdmissionPolicyBinding/sluice-operator-secrets \
        ValidatingAdmissionPolicyBinding/sluice-tenant-priority";
    let expected: BTreeSet<_> = expected.split_whitespace().map(str::to_owned).collect();
    assert_eq!(titles, expected);
}

#[test]
fn disabled_parts_are_not_rendered() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&[&OFF[..], &["--set", "crds.install=false,hooks.uninstall=false"]].concat());
    let kinds: BTreeSet<_> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    for kind in [
        "DaemonSet",
        "DeviceClass",
        "NetworkPolicy",
        "ValidatingAdmissionPolicy",
        "CustomResourceDefinition",
        "Job",
        "PodMonitor",
        "ServiceMonitor",
    ] {
        assert!(!kinds.contains(kind), "{kind}");
    }
}

#[test]
fn crds_survive_uninstall() {
    let Some(helm) = Helm::find() else { return };
    for name in ["gpupools", "modeltenants"] {
        let objects = helm.render(&[]);
        let crd = named(&objects, &format!("CustomResourceDefinition/{name}.sluice.dev"));
        assert_eq!(crd["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
}

#[test]
fn gpus_of_host_memory_are_only_for_trials() {
    let Some(helm) = Helm::find() else { return };
    let arguments = |objects: &[Value]| {
        let set = named(objects, "DaemonSet/sluice-devices");
        set["spec"]["template"]["spec"]["containers"][0]["args"].to_string()
    };
    assert!(!arguments(&helm.render(&[])).contains("--host"));
    let trial = helm.render(&["--set", "trial.enabled=true,trial.gpus=3,trial.memory=96Mi"]);
    assert!(arguments(&trial).contains(r#""--host-gpus=3","--host-memory=96Mi""#), "{}", arguments(&trial));
    named(&trial, "DeviceClass/host.sluice.dev");
}

#[test]
fn a_digest_wins_over_a_tag_and_the_version_stands_in_for_both() {
    let Some(helm) = Helm::find() else { return };
    let image = |values: &[&str]| {
        let objects = helm.render(values);
        let pod = &named(&objects, "Deployment/sluice-operator")["spec"]["template"]["spec"];
        pod["containers"][0]["image"].as_str().unwrap().to_owned()
    };
    assert_eq!(image(&[]), "sluice.dev/operator:0.1.0");
    assert_eq!(image(&["--set", "images.operator.tag=next"]), "sluice.dev/operator:next");
    let digest = format!("sha256:{}", "0a".repeat(32));
    let both = format!("images.operator.tag=next,images.operator.digest={digest}");
    assert_eq!(image(&["--set", &both]), format!("sluice.dev/operator@{digest}"));
}

#[test]
fn a_secret_for_the_registry_reaches_the_chart_s_pods_and_by_the_operator_those_of_tenants() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", "images.pullSecrets={one,two}"]);
    for workload in ["Deployment/sluice-operator", "DaemonSet/sluice-devices", "Job/sluice-uninstall"] {
        let pod = &named(&objects, workload)["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]), "{workload}");
    }
    let pull_secrets = |objects: &[Value]| {
        let pod = &named(objects, "Deployment/sluice-operator")["spec"]["template"]["spec"];
        let env = pod["containers"][0]["env"].as_array().unwrap();
        env.iter().find(|one| one["name"] == "SLUICE_IMAGE_PULL_SECRETS").map(|one| one["value"].clone())
    };
    assert_eq!(pull_secrets(&objects), Some(json!("one,two")));
    assert_eq!(pull_secrets(&helm.render(&[])), None);
}

#[test]
fn cli_users_are_bound_to_cli_role() {
    let Some(helm) = Helm::find() else { return };
    let someone = r#"people.cli=[{"kind":"Group","name":"helpers","apiGroup":"rbac.authorization.k8s.io"}]"#;
    let objects = helm.render(&["--set-json", someone]);
    let binding = named(&objects, "RoleBinding/sluice-cli");
    assert_eq!(
        (&binding["subjects"][0]["name"], &binding["roleRef"]["name"]),
        (&json!("helpers"), &json!("sluice-cli"))
    );
    assert!(helm.render(&[]).iter().all(|object| title(object) != "RoleBinding/sluice-cli"));
}

#[test]
fn selectors_find_the_pods_whatever_labels_are_added() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", "operator.podLabels.team=a,devices.podLabels.team=b"]);
    for workload in ["Deployment/sluice-operator", "DaemonSet/sluice-devices"] {
        let spec = &named(&objects, workload)["spec"];
        let labels = &spec["template"]["metadata"]["labels"];
        assert!(labels["team"].is_string());
        let name = workload.split_once('/').unwrap().1;
        let policy = named(&objects, &format!("NetworkPolicy/{name}"));
        let mut selectors =
            vec![&spec["selector"]["matchLabels"], &policy["spec"]["podSelector"]["matchLabels"]];
        if name == "sluice-operator" {
            selectors.push(&named(&objects, "Service/sluice-operator")["spec"]["selector"]);
            selectors.push(
                &named(&objects, "PodDisruptionBudget/sluice-operator")["spec"]["selector"]["matchLabels"],
            );
        }
        for (key, value) in selectors.iter().flat_map(|selector| selector.as_object().unwrap()) {
            assert_eq!(&labels[key], value, "{workload}");
        }
        assert!(selectors.iter().all(|selector| !selector.as_object().unwrap().is_empty()));
    }
}

#[test]
fn operator_gets_labels_and_images() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", "operator.namespaces={a,b},images.engine.tag=next"]);
    let template = &named(&objects, "Deployment/sluice-operator")["spec"]["template"];
    let env = template["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| env.iter().find(|one| one["name"] == name).unwrap()["value"].as_str().unwrap();
    assert_eq!(value("SLUICE_NAMESPACES"), "a,b");
    assert_eq!(value("SLUICE_ENGINE_IMAGE"), "sluice.dev/engine:next");
    for pair in value("SLUICE_OPERATOR_LABELS").split(',') {
        let (key, value) = pair.split_once('=').unwrap();
        assert_eq!(template["metadata"]["labels"][key], value);
    }
}

#[test]
fn traces_go_to_collector_and_network_policy_allows_them() {
    let Some(helm) = Helm::find() else { return };
    let rendered = |endpoint: &str| {
        let objects = helm.render(&["--set", &format!("operator.otlpEndpoint={endpoint}")]);
        let pod = &named(&objects, "Deployment/sluice-operator")["spec"]["template"]["spec"];
        let env = pod["containers"][0]["env"].as_array().unwrap();
        let endpoint_variable = env.iter().find(|one| one["name"] == "OTEL_EXPORTER_OTLP_ENDPOINT");
        let policy = &named(&objects, "NetworkPolicy/sluice-operator")["spec"]["egress"];
        let anywhere = policy.as_array().unwrap().iter().filter(|rule| rule.get("to").is_none());
        let ports = anywhere.map(|rule| rule["ports"][0]["port"].clone()).collect::<Vec<_>>();
        (endpoint_variable.map(|one| one["value"].clone()), ports)
    };
    let (endpoint_variable, without) = rendered("");
    assert_eq!(endpoint_variable, None);
    for (endpoint, port) in [("http://c.obs:4318", 4318), ("http://c.obs", 80), ("https://c.obs", 443)] {
        let (endpoint_variable, ports) = rendered(endpoint);
        assert_eq!(endpoint_variable, Some(json!(endpoint)));
        assert_eq!(ports, [without.as_slice(), &[json!(port)]].concat());
    }
}

#[test]
fn monitors_carry_the_labels_by_which_a_prometheus_finds_them() {
    let Some(helm) = Helm::find() else { return };
    let on = "monitoring.podMonitors=true,monitoring.serviceMonitor=true,monitoring.labels.release=prom";
    let objects = helm.render(&["--set", on]);
    for title in ["PodMonitor/sluice-devices", "PodMonitor/sluice-tenants", "ServiceMonitor/sluice-operator"]
    {
        assert_eq!(named(&objects, title)["metadata"]["labels"]["release"], "prom", "{title}");
    }
    let service = named(&objects, "Service/sluice-operator");
    let selector = &named(&objects, "ServiceMonitor/sluice-operator")["spec"]["selector"]["matchLabels"];
    for (key, value) in selector.as_object().unwrap() {
        assert_eq!(&service["metadata"]["labels"][key], value);
    }
    assert_eq!(service["spec"]["ports"][0]["name"], json!("metrics"));
}
