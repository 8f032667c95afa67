//! The parent cgroup of a node's pods, in every hierarchy of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "sluice-e2e-";
/// Limit for killed processes to disappear.
const LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A cgroup, removed with this value.
pub struct Cgroup {
    name: String,
}

impl Cgroup {
    /// Creates the cgroup, and removes those of runs that were killed.
    pub fn make() -> Cgroup {
        remove_stale();
        Cgroup::named(format!("{PREFIX}{}", std::process::id()))
    }

    /// Creates the cgroup of another node, below the first node's.
    pub fn below(name: &str) -> Cgroup {
        Cgroup::named(format!("{PREFIX}{}/{name}", std::process::id()))
    }

    fn named(name: String) -> Cgroup {
        for hierarchy in hierarchies() {
            let folder = hierarchy.join(&name);
            fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            let above = folder.parent().expect("it is below the hierarchy's root");
            // A new cpuset is empty, and no process can run in it until it has CPUs and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(all) = fs::read_to_string(above.join(file)) {
                    let _ = fs::write(folder.join(file), all.trim());
                }
            }
            // cgroup v2: enables all controllers for child cgroups. Enabling one twice changes nothing.
            if let Ok(controllers) = fs::read_to_string(above.join("cgroup.controllers")) {
                for controller in controllers.split_whitespace() {
                    let _ = fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
        }
        Cgroup { name }
    }

    /// Freezes or thaws every process in the cgroup.
    ///
    /// # Panics
    /// If there is no freezer.
    pub fn freeze(&self, frozen: bool) {
        assert!(freeze(&self.name, frozen), "the cgroup {} cannot be frozen", self.name);
    }

    /// The name for the kubelet's configuration, without the leading slash.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// Returns the root of cgroup v2, or the roots of all v1 hierarchies.
fn hierarchies() -> Vec<PathBuf> {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        return vec![ROOT.into()];
    }
    let entries = fs::read_dir(ROOT).unwrap_or_else(|e| panic!("{ROOT}: {e}"));
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    folders.filter(|folder| folder.is_dir() && !folder.is_symlink()).collect()
}

fn remove_stale() {
    for hierarchy in hierarchies() {
        for entry in fs::read_dir(&hierarchy).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(pid) = name.strip_prefix(PREFIX) else { continue };
            if !Path::new("/proc").join(pid).exists() {
                remove(&name);
            }
        }
    }
}

/// Freezes or thaws a cgroup. `false` if no hierarchy has a freezer.
fn freeze(name: &str, frozen: bool) -> bool {
    let (first, second) = if frozen { ("1", "FROZEN") } else { ("0", "THAWED") };
    hierarchies().iter().map(|hierarchy| hierarchy.join(name)).any(|folder| {
        // `write` must not create the file: cgroupfs refuses it in a hierarchy without that file.
        let set = |file: &str, value: &str| fs::write(folder.join(file), value).is_ok();
        set("cgroup.freeze", first) || set("freezer.state", second)
    })
}

fn remove(name: &str) {
    // A frozen process does not handle SIGKILL.
    freeze(name, false);
    for hierarchy in hierarchies() {
        let (folder, begun) = (hierarchy.join(name), Instant::now());
        while folder.exists() {
            remove_tree(&folder);
            if begun.elapsed() > LIMIT {
                eprintln!("the cgroup {} stays behind", folder.display());
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Removes only folders, innermost first: files of a cgroup cannot be removed, and its folder can once it is empty.
fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
