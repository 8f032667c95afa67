//! Tests which files exist after each call, and after a crash between two calls.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{NodeDirs, Store};
use crate::claim::{AllocatedDevice, PreparedClaim};

struct Node {
    folder: TempDir,
    group: u32,
}

impl Node {
    fn new() -> Node {
        let folder = tempfile::tempdir().unwrap();
        // The test's own group, which needs no privilege to set.
        let group = fs::metadata(folder.path()).unwrap().gid();
        Node { folder, group }
    }

    fn open(&self) -> Store {
        let (own, cdi) = (self.path("own"), self.path("cdi"));
        Store::open(NodeDirs { own, cdi, group: self.group }).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn spec(&self, uid: &str) -> PathBuf {
        self.path("cdi").join(format!("sluice.dev-claim-{uid}.json"))
    }

    fn neighbourhood(&self, uid: &str) -> PathBuf {
        self.path("own/neighbourhoods").join(uid)
    }

    fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.folder.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && !folder.ends_with("neighbourhoods") {
                    folders.push(path);
                } else {
                    found.push(path.strip_prefix(self.folder.path()).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }
}

fn granted(uid: &str) -> PreparedClaim {
    let given = |request: &str, device: &str| AllocatedDevice {
        request: request.into(),
        pool: "one".into(),
        device: device.into(),
    };
    PreparedClaim {
        version: 1,
        namespace: "team".into(),
        name: "chat-0-e1".into(),
        uid: uid.into(),
        devices: vec![given("gpu", "gpu-0"), given("neighbourhood", "neighbourhood-1")],
    }
}

#[test]
fn the_specification_of_a_claim_is_what_the_runtime_expects() {
    let node = Node::new();
    node.open().add(&granted("u-1")).unwrap();
    let spec: Value = serde_json::from_slice(&fs::read(node.spec("u-1")).unwrap()).unwrap();
    let mount = json!({
        "hostPath": node.neighbourhood("u-1"), "containerPath": "/run/sluice-neighbourhood", "type": "bind",
        "options": ["rw", "rbind", "nosuid", "nodev", "noexec"],
    });
    let devices = json!([
        {"name": "u-1-gpu-0", "containerEdits": {"env": ["SLUICE_DEVICE=gpu-0"]}},
        {"name": "u-1-neighbourhood-1",
         "containerEdits": {"mounts": [mount], "additionalGids": [node.group]}},
    ]);
    assert_eq!(spec, json!({"cdiVersion": "0.7.0", "kind": "sluice.dev/claim", "devices": devices}));
}

#[test]
fn ledger_folder_is_accessible_to_its_group_only() {
    let node = Node::new();
    node.open().add(&granted("u-1")).unwrap();
    let metadata = fs::metadata(node.neighbourhood("u-1")).unwrap();
    assert_eq!((metadata.permissions().mode() & 0o7777, metadata.gid()), (0o2770, node.group));
}

#[test]
fn preparing_twice_keeps_what_the_claim_has_written() {
    let node = Node::new();
    let store = node.open();
    store.add(&granted("u-1")).unwrap();
    fs::write(node.neighbourhood("u-1").join("ledger"), "kept").unwrap();
    let before = fs::metadata(node.spec("u-1")).unwrap().ino();
    store.add(&granted("u-1")).unwrap();
    assert_eq!(fs::read_to_string(node.neighbourhood("u-1").join("ledger")).unwrap(), "kept");
    assert_eq!(fs::metadata(node.spec("u-1")).unwrap().ino(), before, "written again for nothing");
}

#[test]
fn removing_leaves_nothing_and_may_be_repeated() {
    let node = Node::new();
    let store = node.open();
    store.add(&granted("u-1")).unwrap();
    fs::write(node.neighbourhood("u-1").join("ledger"), "").unwrap();
    store.add(&granted("u-2")).unwrap();
    store.remove("u-1").unwrap();
    store.remove("u-1").unwrap();
    store.remove("../cdi").unwrap();
    store.stale_files().remove_all().unwrap();
    let kept =
        ["cdi/sluice.dev-claim-u-2.json", "own/claims/u-2.json", "own/neighbourhoods/u-2"].map(str::to_owned);
    assert_eq!(node.files(), kept);
}

#[test]
fn start_after_reboot_rewrites_lost_files() {
    let node = Node::new();
    node.open().add(&granted("u-1")).unwrap();
    let before = fs::read(node.spec("u-1")).unwrap();
    fs::remove_dir_all(node.path("cdi")).unwrap();
    assert_eq!(node.open().claims().unwrap(), [granted("u-1")]);
    assert_eq!(fs::read(node.spec("u-1")).unwrap(), before);
}

#[test]
fn a_start_sweeps_what_has_no_record_and_leaves_foreign_files() {
    let node = Node::new();
    node.open().add(&granted("u-1")).unwrap();
    fs::remove_file(node.path("own/claims/u-1.json")).unwrap();
    fs::write(node.spec("u-2"), "{}").unwrap();
    fs::write(node.path("cdi/nvidia.yaml"), "").unwrap();
    node.open().stale_files().remove_all().unwrap();
    assert_eq!(node.files(), ["cdi/nvidia.yaml"]);
}

#[test]
fn unreadable_record_is_set_aside_and_others_still_load() {
    let node = Node::new();
    let store = node.open();
    for uid in ["u-1", "u-2", "u-3", "u-4"] {
        store.add(&granted(uid)).unwrap();
    }
    let record = |uid: &str| node.path("own/claims").join(format!("{uid}.json"));
    fs::write(record("u-1"), "{\"uid\":").unwrap();
    fs::write(
        record("u-2"),
        fs::read_to_string(record("u-2")).unwrap().replace("\"version\":1", "\"version\":2"),
    )
    .unwrap();
    fs::copy(record("u-4"), record("u-3")).unwrap();
    let newer = fs::read_to_string(record("u-4")).unwrap().replacen('{', "{\"colour\": \"red\", ", 1);
    fs::write(record("u-4"), newer).unwrap();
    let store = node.open();
    assert_eq!(store.claims().unwrap(), [granted("u-4")], "a field that is not known is ignored");
    assert_eq!(store.bad_records().unwrap(), 3);
    assert!(node.spec("u-1").exists(), "its containers may still start");
    store.remove("u-1").unwrap();
    assert_eq!(store.bad_records().unwrap(), 2);
    assert!(!node.spec("u-1").exists());
}

#[test]
fn tenant_files_are_moved_immediately_and_removed_later() {
    let node = Node::new();
    let store = node.open();
    store.add(&granted("u-1")).unwrap();
    let sticky = node.neighbourhood("u-1").join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::set_permissions(&sticky, fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(sticky.join("file"), "").unwrap();
    store.remove("u-1").unwrap();
    assert!(!node.neighbourhood("u-1").exists());
    assert_eq!(fs::read_dir(node.path("own/rubbish")).unwrap().count(), 1);
    store.stale_files().remove_all().unwrap();
    assert_eq!(fs::read_dir(node.path("own/rubbish")).unwrap().count(), 0);
}

#[test]
fn a_claim_without_a_neighbourhood_has_no_folder() {
    let node = Node::new();
    let mut gpu_only = granted("u-1");
    gpu_only.devices.truncate(1);
    node.open().add(&gpu_only).unwrap();
    assert!(node.spec("u-1").exists() && !node.neighbourhood("u-1").exists());
}

#[test]
fn files_that_a_killed_driver_was_writing_are_removed() {
    let node = Node::new();
    drop(node.open());
    for folder in ["cdi", "own/claims"] {
        fs::write(node.path(folder).join(".sluice-abc.new"), "").unwrap();
    }
    node.open();
    assert_eq!(node.files(), [""; 0]);
}
