//! Invalid values and their messages.

use super::{Helm, NAMESPACE};

/// Returns helm's error about a value; empty if the value is valid.
fn error_text(helm: &Helm, value: &str) -> String {
    helm.template(NAMESPACE, &["--set-json", value]).err().unwrap_or_default()
}

#[test]
fn an_unknown_value_is_refused_by_its_name() {
    let Some(helm) = Helm::find() else { return };
    for (value, path, name) in [
        ("operater={}", "", "operater"),
        ("operator.replica=3", "/operator", "replica"),
        ("images.operator.repo=\"x\"", "/images/operator", "repo"),
        ("operator.resources.request={}", "/operator/resources", "request"),
        ("trial.gpu=1", "/trial", "gpu"),
    ] {
        let said = error_text(&helm, value);
        assert!(
            said.contains("additional properties") && said.contains(&format!("'{name}'")),
            "{value}: {said}"
        );
        assert!(said.contains(&format!("at '{path}'")), "{value}: {said}");
    }
}

#[test]
fn a_wrong_value_is_refused_with_its_path_and_what_would_be_right() {
    let Some(helm) = Helm::find() else { return };
    for (value, path, right) in [
        ("operator.replicas=0", "/operator/replicas", "minimum: got 0, want 1"),
        ("operator.replicas=\"2\"", "/operator/replicas", "got string, want integer"),
        ("trial.enabled=\"yes\"", "/trial/enabled", "got string, want boolean"),
        ("trial.memory=\"much\"", "/trial/memory", "does not match pattern"),
        ("images.pullPolicy=\"Sometimes\"", "/images/pullPolicy", "'Always', 'IfNotPresent', 'Never'"),
        ("images.operator.digest=\"sha256:0a\"", "/images/operator/digest", "does not match pattern"),
        ("operator.namespaces=[\"A\"]", "/operator/namespaces/0", "does not match pattern"),
        ("devices.neighbourhoods=129", "/devices/neighbourhoods", "maximum: got 129, want 128"),
        ("devices.kubeletFolder=\"kubelet\"", "/devices/kubeletFolder", "does not match pattern"),
        ("networkPolicy.apiServerPorts=[0]", "/networkPolicy/apiServerPorts/0", "minimum: got 0, want 1"),
    ] {
        let said = error_text(&helm, value);
        assert!(said.contains(&format!("at '{path}'")) && said.contains(right), "{value}: {said}");
    }
}

#[test]
fn conflicting_values_are_refused() {
    let Some(helm) = Helm::find() else { return };
    let trial = helm.template(NAMESPACE, &["--set", "trial.enabled=true,devices.enabled=false"]).unwrap_err();
    assert!(trial.contains("trial.enabled needs devices.enabled"), "{trial}");
    let many = helm.template(NAMESPACE, &["--set", "trial.enabled=true,trial.gpus=65"]).unwrap_err();
    assert!(many.contains("devices.neighbourhoods 64 and trial.gpus 65 are more than 128"), "{many}");
}

#[test]
fn a_cluster_without_dra_is_refused() {
    let Some(helm) = Helm::find() else { return };
    let old = helm.template(NAMESPACE, &["--kube-version", "1.33.0"]).unwrap_err();
    assert!(old.contains("chart requires kubeVersion: >=1.34.0-0"), "{old}");
}
