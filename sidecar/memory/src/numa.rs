//! NUMA nodes of host memory. On a GH200 the memory of the GPU is a NUMA node of the kernel, which has memory and no
//! CPUs. When the nodes with CPUs are full, the kernel takes memory for the host's copy of the weights there, and the
//! GPU loses it.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use sluice_common::text::ranges;

/// Where the kernel lists its nodes.
pub const NODES: &str = "/sys/devices/system/node";

/// Why host memory is not bound.
#[derive(Debug, thiserror::Error)]
pub enum NumaError {
    /// A list of nodes cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// File of the list.
        path: PathBuf,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// A list of nodes has another form than `0-3,8`.
    #[error("{}: `{text}` is not a list of nodes", path.display())]
    Parse {
        /// File of the list.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// The kernel refused the policy: the seccomp profile of a container runtime permits it only with `CAP_SYS_NICE`.
    #[error("set_mempolicy for nodes {nodes:?}: {source}")]
    Policy {
        /// Nodes with CPUs.
        nodes: Vec<u32>,
        /// Error of the kernel.
        source: Errno,
    },
}

/// Binds the memory that this thread allocates from now on, and that of the threads and processes which it starts, to
/// the nodes with CPUs. Returns these nodes, or `None` if all memory is on such nodes. `folder` is [`NODES`].
///
/// # Errors
/// [`NumaError`]. Memory then comes from the node of the CPU first, and from other nodes when that node is full.
pub fn bind_to_cpu_nodes(folder: &Path) -> Result<Option<Vec<u32>>, NumaError> {
    let (with_cpus, with_memory) = (read(folder, "has_cpu")?, read(folder, "has_memory")?);
    let (nodes, others): (Vec<u32>, Vec<u32>) =
        with_memory.into_iter().partition(|node| with_cpus.contains(node));
    if nodes.is_empty() || others.is_empty() {
        return Ok(None);
    }
    match set_policy(&nodes) {
        Ok(()) => Ok(Some(nodes)),
        Err(source) => Err(NumaError::Policy { nodes, source }),
    }
}

fn read(folder: &Path, file: &str) -> Result<Vec<u32>, NumaError> {
    let path = folder.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(text.trim()).ok_or_else(|| NumaError::Parse { path, text: text.trim().to_owned() }),
        Err(source) => Err(NumaError::Read { path, source }),
    }
}

/// Parses a list such as `0-3,8`; an empty one has no nodes.
fn parse(list: &str) -> Option<Vec<u32>> {
    let bounded = |range: Option<RangeInclusive<u32>>| range.filter(|range| *range.end() < MAX_NODES);
    Some(ranges(list).map(bounded).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Nodes of the largest kernels (`CONFIG_NODES_SHIFT` is at most 10).
const MAX_NODES: u32 = 1024;

fn set_policy(nodes: &[u32]) -> Result<(), Errno> {
    const WORDS: usize = MAX_NODES as usize / libc::c_ulong::BITS as usize;
    let mut mask: [libc::c_ulong; WORDS] = [0; WORDS];
    for node in nodes {
        mask[(node / libc::c_ulong::BITS) as usize] |= 1 << (node % libc::c_ulong::BITS);
    }
    // The kernel reads one bit fewer than it is given.
    let bits = libc::c_ulong::from(MAX_NODES + 1);
    // SAFETY: the kernel reads `MAX_NODES` bits of the mask, which has as many, and writes no memory.
    let result = unsafe {
        libc::syscall(libc::SYS_set_mempolicy, libc::c_long::from(libc::MPOL_BIND), mask.as_ptr(), bits)
    };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(has_cpu: &str, has_memory: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("has_cpu"), format!("{has_cpu}\n")).unwrap();
        std::fs::write(folder.path().join("has_memory"), format!("{has_memory}\n")).unwrap();
        folder
    }

    /// Runs `test` in a thread of its own: a policy is the thread's.
    fn in_thread(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(test);
        });
    }

    /// Policy of all memory of this thread, as the kernel shows it: `default`, or `bind:0`.
    fn policies() -> Vec<String> {
        let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap_or_default();
        let mut all: Vec<String> =
            maps.lines().filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn lists_of_nodes_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse(""), Some(vec![]));
        assert_eq!(parse("0"), Some(vec![0]));
        assert_eq!(parse("0-2,8,9-10"), Some(vec![0, 1, 2, 8, 9, 10]));
        for wrong in ["x", "1-", "0-4096", "0;1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn memory_stays_off_nodes_without_cpus() {
        in_thread(|| {
            // A GH200: CPUs and their memory are node 0, HBM is a node without CPUs.
            let gh200 = machine("0", "0-1");
            match bind_to_cpu_nodes(gh200.path()) {
                Ok(bound) => {
                    assert_eq!(bound, Some(vec![0]));
                    let seen = policies();
                    let unbound = seen.iter().find(|policy| *policy != "bind:0");
                    assert_eq!(unbound, None, "{seen:?}");
                    if seen.is_empty() {
                        println!("SKIPPED: this kernel has no numa_maps to check the policy in");
                    }
                }
                Err(NumaError::Policy { nodes, source: Errno::PERM | Errno::NOSYS }) => {
                    assert_eq!(nodes, [0]);
                    println!("SKIPPED: this machine does not permit memory policies");
                }
                Err(error) => panic!("{error}"),
            }
        });
    }

    #[test]
    fn memory_of_a_machine_whose_nodes_all_have_cpus_is_not_bound() {
        in_thread(|| {
            let before = policies();
            for (has_cpu, has_memory) in [("0", "0"), ("0-1", "0-1"), ("0-1", "1"), ("", "0")] {
                let other = machine(has_cpu, has_memory);
                assert_eq!(bind_to_cpu_nodes(other.path()).unwrap(), None, "{has_cpu} {has_memory}");
            }
            assert_eq!(policies(), before);
        });
    }

    #[test]
    fn a_machine_that_does_not_say_its_nodes_is_an_error() {
        let none = tempfile::tempdir().unwrap();
        let error = bind_to_cpu_nodes(none.path()).unwrap_err();
        assert!(matches!(&error, NumaError::Read { path, .. } if path.ends_with("has_cpu")), "{error}");
        let odd = machine("all", "0");
        assert!(
            matches!(bind_to_cpu_nodes(odd.path()).unwrap_err(), NumaError::Parse { text, .. } if text == "all")
        );
        in_thread(|| {
            // The kernel refuses a node that it does not have.
            let absent = machine("1000", "0,1000");
            let refused = bind_to_cpu_nodes(absent.path()).unwrap_err();
            assert!(matches!(refused, NumaError::Policy { nodes, .. } if nodes == [1000]));
        });
    }
}
