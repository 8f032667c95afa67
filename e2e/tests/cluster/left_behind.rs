//! Leftovers of a test binary that exits or is killed: no files in the first case and no processes in both. Also
//! its exit status when a check at exit fails.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use sluice_e2e::cluster::leak_check::of_folder;
use sluice_e2e::cluster::{self, eventually};

const INNER: &str = "server::a_user_may_do_what_rbac_says_and_the_audit_log_knows_who_asked";

/// The test that runs this binary again.
const AGAIN: &str = "left_behind::what_must_hold_at_the_end_and_does_not_fails_a_binary_whose_tests_passed";
/// Set in the inner run.
const AGAIN_VAR: &str = "SLUICE_E2E_HOLDS_NOT";

/// Returns this test binary with one test, in its own folder for temporary files.
fn inner(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", INNER]).env("TMPDIR", folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// Starts the binary and waits until its API server runs.
async fn running(folder: &Path) -> Child {
    let child = inner(folder).spawn().unwrap();
    eventually("etcd and kube-apiserver", async || (of_folder(folder).len() >= 3).then_some(())).await;
    child
}

#[tokio::test]
async fn a_run_that_ends_leaves_no_process_and_no_file() {
    if cluster::api().await.is_none_or(|server| !server.is_own_cluster()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = running(folder.path()).await;
    assert!(child.wait().unwrap().success());
    assert_eq!((of_folder(folder.path()), entries(folder.path())), (vec![], 0));
}

#[tokio::test]
async fn external_cluster_is_used_and_none_is_started() {
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "apply::two_managers_of_one_pool_own_each_their_groups", INNER, "--nocapture"])
        .env("TMPDIR", folder.path())
        .env("SLUICE_KUBECONFIG", server.kubeconfig_path());
    let unasked = command.output().unwrap();
    let said = String::from_utf8_lossy(&unasked.stderr).into_owned();
    assert!(!unasked.status.success() && said.contains("SLUICE_KUBECONFIG_OVERWRITE=1"), "{unasked:?}");
    let output = command.env("SLUICE_KUBECONFIG_OVERWRITE", "1").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        said.contains("2 passed") && errors.contains(&format!("SKIPPED {INNER}: an external cluster")),
        "{said}{errors}"
    );
    assert_eq!(entries(folder.path()), 0, "nothing was started there");
    let all = kube::Api::<Namespace>::all(server.client().await).list(&ListParams::default()).await.unwrap();
    let mine = format!("managers-{}-", std::process::id());
    let theirs = all.items.into_iter().map(|namespace| namespace.metadata);
    let theirs = theirs.filter(|one| {
        one.name.as_ref().is_some_and(|name| name.starts_with("managers-") && !name.starts_with(&mine))
    });
    let theirs: Vec<bool> = theirs.map(|one| one.deletion_timestamp.is_some()).collect();
    assert_eq!(theirs, [true], "the other process worked on this server, and had it deleted at its end");
}

#[tokio::test]
async fn a_run_that_is_killed_leaves_no_process() {
    if cluster::api().await.is_none_or(|server| !server.is_own_cluster()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = running(folder.path()).await;
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the end of all", async || of_folder(folder.path()).is_empty().then_some(())).await;
    assert_eq!(entries(folder.path()), 1, "no process is left to remove the folder");
}

#[test]
fn what_must_hold_at_the_end_and_does_not_fails_a_binary_whose_tests_passed() {
    if std::env::var_os(AGAIN_VAR).is_some() {
        return cluster::check_at_exit(|| Err("there is a fault".to_owned()));
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    let output = again.args(["--exact", AGAIN]).env(AGAIN_VAR, "1").output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed") && errors.contains("FAILED: there is a fault"), "{said}{errors}");
    assert_eq!(output.status.code(), Some(101), "as if a test had failed");
}
