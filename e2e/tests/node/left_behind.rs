//! Leftovers of a node when its test binary exits or is killed: no process remains, and the next run removes the
//! rest.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use sluice_e2e::cluster::leak_check::{cgroups, of_folder, of_pods};
use sluice_e2e::cluster::{eventually, on_node};

const INNER: &str = "pods::a_command_in_a_pod_is_reached_through_the_api_server";

/// Starts this test binary with a test whose pod keeps running, with its own folder for temporary files.
fn inner(folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", INNER]).env("TMPDIR", folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn mounts() -> usize {
    std::fs::read_to_string("/proc/self/mounts").unwrap().lines().count()
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
#[ignore = "cargo xtask nightly: it is about the node of these tests alone"]
fn stopped_or_killed_node_leaves_no_processes() {
    on_node(async |node| {
        if !node.api().is_own_cluster() || node.image("engine").is_none() {
            return;
        }
        let (killed_in, ended_in, before) =
            (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), mounts());
        let mut killed = inner(killed_in.path());
        eventually("a pod", async || (of_pods(killed.id()).len() >= 2).then_some(())).await;
        assert!(
            of_folder(killed_in.path()).len() >= 9 && !cgroups(killed.id()).is_empty(),
            "the check can fail"
        );
        killed.kill().unwrap();
        killed.wait().unwrap();
        eventually("the end of all", async || {
            (of_pods(killed.id()).is_empty() && of_folder(killed_in.path()).is_empty()).then_some(())
        })
        .await;
        let mut ended = inner(ended_in.path());
        assert!(ended.wait().unwrap().success());
        assert_eq!(
            (of_pods(ended.id()), of_folder(ended_in.path()), entries(ended_in.path())),
            (vec![], vec![], 0)
        );
        assert_eq!((cgroups(ended.id()), cgroups(killed.id())), (vec![], vec![]));
        assert_eq!(mounts(), before);
    });
}
