//! The chart's Jobs, with the rights that the chart gives them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use sluice_e2e::cluster;

use super::server::apply;
use super::{Helm, named, output_text, title};
use crate::fixture::{api_of, create, pool, tenant, with};

/// Returns a command for a built binary of the product. Without a folder of binaries, prints the reason and returns
/// `None`.
pub fn product(name: &str) -> Option<Command> {
    let folder = std::env::var_os("SLUICE_BIN_DIR").filter(|folder| !folder.is_empty());
    if folder.is_none() {
        cluster::skipped(
            "no binaries of the product: SLUICE_BIN_DIR is not set; `cargo xtask test` builds them",
        );
    }
    Some(Command::new(std::path::Path::new(&folder?).join(name)))
}

#[tokio::test]
async fn the_operator_is_stopped_and_its_finalizers_are_taken_off() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let Some(mut hook) = product("sluice-devices") else { return };
    let (client, namespace) = (server.client().await, server.namespace("hook").await);
    let objects = helm.template(&namespace, &[]).unwrap();
    let needed = |object: &&Value| {
        let title = title(object);
        title.contains("Role") && title.ends_with("/sluice-uninstall")
            || title == "Deployment/sluice-operator"
    };
    let needed: Vec<_> = objects.iter().filter(needed).cloned().collect();
    assert_eq!(needed.len(), 5);
    apply(server, &needed, &[]).unwrap();
    let pools = api_of(client.clone(), "GpuPool", &namespace);
    let finalizers = json!(["sluice.dev/pool", "example.com/other"]);
    create(&pools, &with(&pool(), "/metadata/finalizers", finalizers)).await;

    let user = format!("system:serviceaccount:{namespace}:sluice-uninstall");
    hook.env("KUBECONFIG", server.kubeconfig_of(&user, None));
    // The arguments of the Job, from the chart itself.
    let job = named(&objects, "Job/sluice-uninstall");
    let words = job["spec"]["template"]["spec"]["containers"][0]["command"].as_array().unwrap();
    hook.args(words[1..].iter().map(|word| word.as_str().unwrap()));
    create(&api_of(client.clone(), "ModelTenant", &namespace), &tenant()).await;
    let refused = hook.output().unwrap();
    let failed_for_good = &job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"];
    assert_eq!(*failed_for_good, json!([refused.status.code()]));
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(words.contains("ModelTenants exist"), "{words}");
    assert!(words.contains(&format!("  helm rollback sluice 1 --namespace {namespace}\n")), "{words}");
    let left = pools.get("one").await.unwrap().metadata.finalizers.unwrap();
    assert_eq!(left.len(), 2, "nothing is done");
    let said = output_text(hook.arg("--keep-tenants").output().unwrap()).unwrap();
    assert!(said.starts_with("removed the finalizers of "), "{said}");

    let left = pools.get("one").await.unwrap().metadata.finalizers;
    assert_eq!(left, Some(vec!["example.com/other".to_owned()]));
    let deployments: Api<Deployment> = Api::namespaced(client, &namespace);
    assert_eq!(deployments.get("sluice-operator").await.unwrap().spec.unwrap().replicas, Some(0));
    let free = json!({"metadata": {"finalizers": null}});
    pools.patch("one", &PatchParams::default(), &Patch::Merge(free)).await.unwrap();
}

const READY: &str = "200 OK";
const WAITS: &str = "503 Service Unavailable";

/// Starts an operator that gives these answers in order.
fn operator(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for status in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 64];
            let count = stream.read(&mut asked).unwrap();
            assert!(asked[..count].starts_with(b"GET /readyz "));
            write!(stream, "HTTP/1.0 {status}\r\n\r\n").unwrap();
        }
    });
    address
}

#[tokio::test]
async fn helm_test_reports_failures() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = server.namespace("check").await;
    let objects = helm.template(&namespace, &[]).unwrap();
    let rights = objects
        .iter()
        .filter(|object| title(object).contains("Role") && title(object).ends_with("/sluice-test"));
    apply(server, &rights.cloned().collect::<Vec<_>>(), &[]).unwrap();
    let config = server.kubeconfig_of(&format!("system:serviceaccount:{namespace}:sluice-test"), None);
    let check = |answers, seconds: &str| {
        let mut check = product("sluice-devices")?;
        check.args(["check", "--operator", &operator(answers), "--timeout-seconds", seconds]);
        Some(output_text(check.env("KUBECONFIG", &config).output().unwrap()))
    };
    let well = Ok("the installation works\n".to_owned());
    let Some(at_once) = check(&[READY], "0") else { return };
    assert_eq!(at_once, well);
    let waits = check(&[WAITS, READY], "0").unwrap().unwrap_err();
    assert!(waits.contains("/readyz answers 503, not 200"), "{waits}");
    assert_eq!(check(&[WAITS, WAITS, READY], "60").unwrap(), well, "it looks again");
    let pod = &named(&objects, "Pod/sluice-test")["spec"]["containers"][0]["command"];
    assert_eq!(pod[2], format!("--operator=sluice-operator.{namespace}.svc:8080"));
    assert_eq!(pod[3], "--timeout-seconds=60");
}
