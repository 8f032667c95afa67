//! The cgroup that a node's pods live below, in every hierarchy of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "sluice-e2e-";
/// For processes that were killed to be gone.
const LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A cgroup, removed with this value.
pub struct Cgroup {
    name: String,
}

impl Cgroup {
    /// Makes it, and removes those of runs that were killed.
    pub fn make() -> Cgroup {
        remove_stale();
        Cgroup::named(format!("{PREFIX}{}", std::process::id()))
    }

    /// Another node's, below the first one's.
    pub fn below(name: &str) -> Cgroup {
        Cgroup::named(format!("{PREFIX}{}/{name}", std::process::id()))
    }

    fn named(name: String) -> Cgroup {
        for hierarchy in hierarchies() {
            let folder = hierarchy.join(&name);
            fs::create_dir_all(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            let above = folder.parent().expect("it is below the hierarchy's root");
            // A new cpuset is empty, and nothing runs in it until it is told where.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(all) = fs::read_to_string(above.join(file)) {
                    let _ = fs::write(folder.join(file), all.trim());
                }
            }
            // Of cgroup v2: what is below may use what is above. Where it does already, this changes nothing.
            if let Ok(controllers) = fs::read_to_string(above.join("cgroup.controllers")) {
                for controller in controllers.split_whitespace() {
                    let _ = fs::write(above.join("cgroup.subtree_control"), format!("+{controller}"));
                }
            }
        }
        Cgroup { name }
    }

    /// Stops every process in it, or lets them go on.
    ///
    /// # Panics
    /// If there is no freezer.
    pub fn freeze(&self, frozen: bool) {
        assert!(freeze(&self.name, frozen), "the cgroup {} cannot be frozen", self.name);
    }

    /// As the kubelet is told it, without the slash.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

/// The root of cgroup v2, or those of all hierarchies of v1.
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

/// Whether there is a freezer that did it.
fn freeze(name: &str, frozen: bool) -> bool {
    let (first, second) = if frozen { ("1", "FROZEN") } else { ("0", "THAWED") };
    hierarchies().iter().map(|hierarchy| hierarchy.join(name)).any(|folder| {
        // Opened, not made: a file of that name in another hierarchy would be an error.
        let set = |file: &str, value: &str| fs::write(folder.join(file), value).is_ok();
        set("cgroup.freeze", first) || set("freezer.state", second)
    })
}

fn remove(name: &str) {
    // A frozen process does not even die.
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

/// Cgroups hold files that nobody can remove: only the folders go, from the innermost out, once they are empty.
fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}
