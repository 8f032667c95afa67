//! A refused `helm uninstall`: the printed commands of the chart's Job are run unchanged, and helm upgrades the
//! release again.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use sluice_e2e::cluster;

use super::hook::product;
use super::{Helm, INSTALLED, chart, output_text};
use crate::fixture::{api_of, create, tenant};

/// Cluster-wide policies would affect other tests.
const VALUES: &str = "admission.enabled=false";
const JOB: &str = "sluice-uninstall";
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// Waits until helm has created the Job.
async fn job(jobs: &Api<Job>) -> Job {
    let end = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(job) = jobs.get_opt(JOB).await.unwrap() {
            return job;
        }
        assert!(Instant::now() < end, "helm makes no Job");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs the program of the Job with the Job's arguments and rights, since no controller runs here. Returns its
/// output and exit status.
fn run(server: &cluster::Api, namespace: &str, job: &Job) -> Option<(String, Option<i32>)> {
    let mut program = product("sluice-devices")?;
    let pod = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    program.args(&pod.containers[0].command.as_ref().unwrap()[1..]);
    let user = format!("system:serviceaccount:{namespace}:{}", pod.service_account_name.as_ref().unwrap());
    let output = program.env("KUBECONFIG", server.kubeconfig_of(&user, None)).output().unwrap();
    Some((String::from_utf8(output.stderr).unwrap(), output.status.code()))
}

/// Sets the Job's status as its controller would at the end.
async fn end(jobs: &Api<Job>, well: bool) {
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    let conditions: &[&str] =
        if well { &["SuccessCriteriaMet", "Complete"] } else { &["FailureTarget", "Failed"] };
    let condition = |kind: &&str| json!({"type": kind, "status": "True", "reason": "PodFailurePolicy", "lastProbeTime": now, "lastTransitionTime": now});
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let mut status = json!({"startTime": now, "conditions": conditions});
    if well {
        (status["completionTime"], status["succeeded"]) = (json!(now), json!(1));
    } else {
        status["failed"] = json!(1);
    }
    let patch = Patch::Merge(json!({"status": status}));
    jobs.patch_status(JOB, &PatchParams::default(), &patch).await.unwrap();
}

struct Release<'a> {
    helm: Helm,
    server: &'a cluster::Api,
    namespace: String,
}

impl Release<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.helm.command(arguments);
        command.arg("--kubeconfig").arg(self.server.kubeconfig_path());
        command
    }

    fn call(&self, arguments: &[&str]) -> Result<String, String> {
        output_text(self.command(&[arguments, &["--namespace", &self.namespace]].concat()).output().unwrap())
    }

    fn upgrade(&self, more: &[&str]) -> Result<String, String> {
        let arguments = ["upgrade", "kept", &chart(), "--reset-then-reuse-values"];
        self.call(&[&arguments[..], more].concat())
    }

    fn status(&self) -> String {
        let status: Value =
            serde_json::from_str(&self.call(&["status", "kept", "-o", "json"]).unwrap()).unwrap();
        status["info"]["status"].as_str().unwrap().to_owned()
    }

    fn uninstalling(&self) -> Child {
        let mut command =
            self.command(&["uninstall", "kept", "--namespace", &self.namespace, "--timeout", "2m"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs `helm uninstall` while a tenant exists and returns the output of the Job.
    async fn refused(&self, client: &Client) -> Option<String> {
        let jobs: Api<Job> = Api::namespaced(client.clone(), &self.namespace);
        let uninstalling = self.uninstalling();
        let ran = run(self.server, &self.namespace, &job(&jobs).await);
        end(&jobs, false).await;
        let refused = output_text(uninstalling.wait_with_output().unwrap()).unwrap_err();
        assert!(refused.contains(JOB), "{refused}");
        let (words, status) = ran?;
        assert_eq!(status, Some(78), "{words}");
        Some(words)
    }
}

/// Returns the commands in a text after this line, split into words.
fn printed_error<'a>(text: &'a str, after: &str) -> Vec<Vec<&'a str>> {
    let lines = text.lines().skip_while(|line| *line != after).skip(1);
    let commands = lines.map_while(|line| line.strip_prefix("  helm "));
    let commands: Vec<Vec<_>> = commands.map(|command| command.split(' ').collect()).collect();
    assert!(!commands.is_empty(), "no command after {after:?} in {text}");
    commands
}

#[tokio::test]
async fn a_refused_uninstall_leaves_a_release_that_is_upgraded_by_the_path_that_is_printed() {
    let Some(helm) = Helm::find() else { return };
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let _installed = INSTALLED.lock().await;
    let (client, namespace) = (server.client().await, server.namespace("refused").await);
    let release = Release { helm, server, namespace };
    let own = ["--take-ownership", "--force-conflicts", "--set", VALUES];
    release.call(&[&["install", "kept", &chart()], &own[..]].concat()).unwrap();
    // The revision is neither the first one nor the second last.
    release.upgrade(&["--set", "operator.replicas=1"]).unwrap();
    let tenants = api_of(client.clone(), "ModelTenant", &release.namespace);
    create(&tenants, &tenant()).await;

    let Some(words) = release.refused(&client).await else { return };
    assert_eq!(release.status(), "uninstalling");
    let wedged = release.upgrade(&[]).unwrap_err();
    assert!(wedged.contains("has no deployed releases"), "{wedged}");
    let keep = printed_error(&words, "To keep it:");
    assert_eq!(keep.len(), 1, "{words}");
    output_text(release.command(&keep[0]).output().unwrap()).unwrap();
    assert_eq!(release.status(), "deployed");
    let values = release.call(&["get", "values", "kept", "-o", "json"]).unwrap();
    assert!(values.contains("\"replicas\":1"), "it is another revision's release: {values}");
    release.upgrade(&["--set", "operator.replicas=2"]).unwrap();

    // After another refusal, the printed commands uninstall it without its tenants.
    let words = release.refused(&client).await.expect("the program was there before");
    let leave = printed_error(&words, "To uninstall it and keep the tenants:");
    assert_eq!(leave.len(), 3, "{words}");
    let chart = chart();
    for command in &leave[..2] {
        let words: Vec<_> =
            command.iter().map(|word| if *word == "CHART" { chart.as_str() } else { word }).collect();
        output_text(release.command(&words).output().unwrap()).unwrap();
    }
    assert_eq!(leave[2], ["uninstall", "kept", "--namespace", &release.namespace]);
    let jobs: Api<Job> = Api::namespaced(client.clone(), &release.namespace);
    let uninstalling = release.uninstalling();
    let (said_by_job, status) = run(server, &release.namespace, &job(&jobs).await).unwrap();
    assert_eq!(status, Some(0), "{said_by_job}");
    end(&jobs, true).await;
    output_text(uninstalling.wait_with_output().unwrap()).unwrap();
    assert!(release.call(&["status", "kept"]).unwrap_err().contains("not found"));
    tenants.delete("one", &DeleteParams::default()).await.expect("tenants stay when the chart goes");
}
