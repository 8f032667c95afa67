//! What a run leaves behind: processes by what they inherited, and by the cgroup that they live in.

use std::path::{Path, PathBuf};

/// Processes whose folder for temporary files is `folder`: a test binary that was started with it, and all components that
/// this one started.
pub fn of_folder(folder: &Path) -> Vec<u32> {
    let mark = format!("TMPDIR={}\0", folder.display());
    let marked = |pid: &u32| {
        // Gone meanwhile, of another user, or ended: none of these runs.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    processes().filter(marked).collect()
}

/// Processes of pods on the node of the test binary `pid`.
pub fn of_pods(pid: u32) -> Vec<u32> {
    let mark = format!("/sluice-e2e-{pid}/");
    let marked = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|all| all.contains(&mark))
    };
    processes().filter(marked).collect()
}

/// Cgroups of the node of the test binary `pid`, one in each hierarchy.
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
