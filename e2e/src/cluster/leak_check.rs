//! Finds leftovers of a run: processes by their inherited environment and by their cgroup.

use std::path::{Path, PathBuf};

/// Returns the processes whose `TMPDIR` is `folder`: a test binary that was started with it, and its components.
pub fn of_folder(folder: &Path) -> Vec<u32> {
    let mark = format!("TMPDIR={}\0", folder.display());
    let marked = |pid: &u32| {
        // The read fails for a process that has exited or belongs to another user: neither is of this run.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    processes().filter(marked).collect()
}

/// Returns the processes of pods on the node of the test binary `pid`.
pub fn of_pods(pid: u32) -> Vec<u32> {
    let mark = format!("/sluice-e2e-{pid}/");
    let marked = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|all| all.contains(&mark))
    };
    processes().filter(marked).collect()
}

/// Returns the cgroups of the node of the test binary `pid`, one per hierarchy.
pub fn cgroups(pid: u32) -> Vec<PathBuf> {
    let hierarchies =
        std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    let folders = hierarchies
        .chain([PathBuf::from("/sys/fs/cgroup")])
        .map(|folder| folder.join(format!("sluice-e2e-{pid}")));
    folders.filter(|folder| folder.is_dir()).collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}
