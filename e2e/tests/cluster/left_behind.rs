//! What a test binary leaves behind when it ends, and when it is killed: nothing, and nothing that runs.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use sluice_e2e::cluster::{self, eventually};

const INNER: &str = "server::a_user_may_do_what_rbac_says_and_the_audit_log_knows_who_asked";

/// This test binary with one test, in a folder for temporary files of its own.
fn inner(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", INNER]).env("TMPDIR", folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Processes of that binary, by the folder in their environment.
fn of_folder(folder: &Path) -> Vec<u32> {
    let mark = format!("TMPDIR={}\0", folder.display());
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let marked = |pid: &u32| {
        // Gone meanwhile, of another user, or ended: none of these runs.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    all.filter(marked).collect()
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The binary, once its API server runs.
async fn running(folder: &Path) -> Child {
    let child = inner(folder).spawn().unwrap();
    eventually("etcd and kube-apiserver", async || (of_folder(folder).len() >= 3).then_some(())).await;
    child
}

#[tokio::test]
async fn a_run_that_ends_leaves_no_process_and_no_file() {
    if cluster::api().await.is_none_or(|server| !server.is_ours()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = running(folder.path()).await;
    assert!(child.wait().unwrap().success());
    assert_eq!((of_folder(folder.path()), entries(folder.path())), (vec![], 0));
}

#[tokio::test]
async fn a_run_that_is_killed_leaves_no_process() {
    if cluster::api().await.is_none_or(|server| !server.is_ours()) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = running(folder.path()).await;
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the end of all", async || of_folder(folder.path()).is_empty().then_some(())).await;
    assert_eq!(entries(folder.path()), 1, "nobody is there to remove the folder");
}
