//! Every rendered object on a real API server.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;
use sluice_e2e::cluster::{self, Api};

use super::{Helm, output_text, title};

/// Applies objects with server-side apply. Returns kubectl's output, or its error output.
pub fn apply(server: &Api, objects: &[Value], further: &[&str]) -> Result<String, String> {
    let arguments = [&["apply", "--server-side", "--force-conflicts", "-f", "-"], further].concat();
    let mut command = server.kubectl(&arguments);
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap();
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects});
    child.stdin.take().unwrap().write_all(list.to_string().as_bytes()).unwrap();
    output_text(child.wait_with_output().unwrap())
}

#[tokio::test]
async fn every_rendered_object_is_accepted() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("chart").await;
    let namespaced = format!("operator.namespaces={{{namespace}}}");
    for values in [
        "operator.priorityClassName=".to_owned(),
        "trial.enabled=true,operator.replicas=1,images.pullSecrets={registry}".into(),
        "operator.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null".into(),
        namespaced,
    ] {
        let objects = helm.template(&namespace, &["--set", &values]).unwrap();
        let answer = apply(server, &objects, &["--dry-run=server", "--validate=strict", "-o", "name"]);
        let answer = answer.unwrap_or_else(|error| panic!("{values}: {error}"));
        assert_eq!(answer.lines().count(), objects.len(), "{values}: {answer}");
    }
}

#[tokio::test]
async fn the_examples_are_accepted() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("examples").await;
    let files =
        std::fs::read_dir(format!("{}/examples", super::chart())).unwrap().map(|file| file.unwrap().path());
    let files: Vec<_> = files.collect();
    assert!(files.len() >= 3);
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let file = file.display();
        let objects = super::documents(&text);
        assert!(!objects.is_empty());
        let answer = apply(server, &objects, &["--dry-run=server", "--validate=strict", "-n", &namespace]);
        answer.unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(objects.iter().all(|object| !title(object).ends_with('/')));
    }
}
