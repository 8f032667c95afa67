//! Measures the available memory and disk space of this machine.

use std::path::Path;

use anyhow::Context;

use sluice_page::text::formatting::bytes;

/// Returns the memory that programs can still allocate, bytes: `MemAvailable`, or less if a control group limits this
/// process.
///
/// # Errors
/// `/proc/meminfo` cannot be read.
pub fn available_memory_bytes() -> anyhow::Result<u64> {
    let file = "/proc/meminfo";
    let text = std::fs::read_to_string(file).with_context(|| file.to_owned())?;
    let machine = mem_available(&text).with_context(|| format!("{file} has no line MemAvailable"))?;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Ok(machine.min(cgroup_available_bytes(Path::new("/sys/fs/cgroup"), &groups).unwrap_or(u64::MAX)))
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the memory that the version 2 control group and its ancestors leave of their limits, bytes; `None` = there
/// is no
/// limit. `root` is the folder of all groups, `groups` the text of `/proc/self/cgroup`.
fn cgroup_available_bytes(root: &Path, groups: &str) -> Option<u64> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let folder = root.join(path);
    let all = folder.ancestors().take_while(|at| at.starts_with(root));
    all.filter_map(|at| {
        let text = |name: &str| std::fs::read_to_string(at.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        // The kernel counts file pages that it can drop as used.
        let stat = text("memory.stat").unwrap_or_default();
        let cached =
            stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
        let used = number("memory.current")?.saturating_sub(cached);
        Some(number("memory.max")?.saturating_sub(used))
    })
    .min()
}

/// Checks that the disk of `folder` has space for a download of `missing_bytes`.
///
/// # Errors
/// The space is too small (the message has both figures), or the file system cannot be read.
pub fn check_disk(folder: &Path, missing_bytes: u64) -> anyhow::Result<()> {
    // The first download creates the folder.
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    let disk = rustix::fs::statvfs(there).with_context(|| there.display().to_string())?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if missing_bytes > free {
        let (missing, free) = (bytes(missing_bytes), bytes(free));
        anyhow::bail!(
            "not enough disk space: {missing} must still be downloaded, and {free} is free at {}; remove models with \
             `sluice models rm`, or name another folder with --cache",
            there.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_that_of_the_kernel() {
        let text = "MemTotal:       24 kB\nMemAvailable:    7 kB\n";
        assert_eq!(mem_available(text), Some(7168));
        assert_eq!(mem_available("MemTotal: 24 kB\n"), None);
    }

    #[test]
    fn tightest_cgroup_limits_memory_and_page_cache_is_excluded() {
        let root = tempfile::tempdir().unwrap();
        let write = |group: &str, limit: &str, used: u64, cached: u64| {
            let folder = root.path().join(group);
            std::fs::create_dir_all(&folder).unwrap();
            let stat = format!("anon 1\ninactive_file {cached}\nactive_file 2\n");
            let files = [
                ("memory.max", limit.to_owned()),
                ("memory.current", used.to_string()),
                ("memory.stat", stat),
            ];
            files.iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).unwrap());
        };
        let left = |groups: &str| cgroup_available_bytes(root.path(), groups);
        write("slice/pod", "max\n", 700, 0);
        assert_eq!(left("0::/slice/pod\n"), None, "no group has a limit");
        write("slice", "1000\n", 700, 200);
        assert_eq!(left("0::/slice/pod\n"), Some(500), "the group above has one");
        write("slice/pod", "900\n", 650, 50);
        assert_eq!(left("12:memory:/other\n0::/slice/pod\n"), Some(300));
        write("slice/pod", "600\n", 650, 0);
        assert_eq!(left("0::/slice/pod\n"), Some(0), "a group above its limit has nothing left");
        assert_eq!(left("12:memory:/slice/pod\n"), None, "groups of version 1 are not read");
    }

    #[test]
    fn full_disk_is_refused_with_sizes() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        check_disk(&folder, 1).unwrap();
        let refused = check_disk(&folder, 1 << 60).unwrap_err().to_string();
        assert!(
            refused.starts_with("not enough disk space: 1048576 TiB must still be downloaded, and "),
            "{refused}"
        );
    }
}
