//! An outside audit of the GPU's memory, by the kernel's data about the files that hold it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::finding::{Finding, Findings};
use crate::support::processes;

/// Interval of samples.
const EVERY: Duration = Duration::from_millis(2);
/// Between two searches for new processes.
const SEARCH: Duration = Duration::from_millis(40);
/// Maximum attempts to get two equal samples in a row.
const TRIES: u32 = 20;
/// Bytes of a block of `stat`.
const BLOCK: u64 = 512;
/// Name of a tenant's chunks in `/proc`.
const NAME: &str = "/memfd:sluice-chunks (deleted)";

/// A thread that samples until it is stopped.
#[derive(Debug)]
pub struct ByteAudit {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<AuditStats>>,
}

/// Results of the audit.
#[derive(Clone, Debug, Default)]
pub struct AuditStats {
    /// Consistent samples.
    pub samples: u64,
    /// Samples that changed at every attempt.
    pub blurred: u64,
    /// Most bytes at one moment.
    pub most_bytes: u64,
    /// Inodes of all chunk files.
    pub inodes: BTreeSet<u64>,
}

/// Physical bytes by inode.
type Sample = BTreeMap<u64, u64>;
/// Where a file is open, and its inode.
type Files = BTreeMap<PathBuf, u64>;

impl ByteAudit {
    /// Watches the processes whose runtime folder is `run`.
    pub fn start(run: PathBuf, capacity_bytes: u64, findings: Findings) -> ByteAudit {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || watch(&run, capacity_bytes, &findings, &stopped);
        let thread = std::thread::Builder::new().name("witness".into()).spawn(work).unwrap();
        ByteAudit { stop, thread: Some(thread) }
    }

    /// Ends it.
    pub fn end(mut self) -> AuditStats {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for ByteAudit {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(run: &Path, capacity_bytes: u64, findings: &Findings, stopped: &AtomicBool) -> AuditStats {
    let (mut seen, mut files, mut searched) = (AuditStats::default(), Files::new(), None::<Instant>);
    let mut above = false;
    while !stopped.load(Ordering::Relaxed) {
        if searched.is_none_or(|at| at.elapsed() > SEARCH) {
            files.extend(processes::of_world(run).into_iter().flat_map(chunk_files));
            searched = Some(Instant::now());
        }
        match moment(&mut files) {
            None => seen.blurred += 1,
            Some(look) => {
                let bytes = look.values().sum();
                seen.samples += 1;
                seen.most_bytes = seen.most_bytes.max(bytes);
                seen.inodes.extend(look.keys());
                if bytes > capacity_bytes && !std::mem::replace(&mut above, true) {
                    findings.add(Finding::AboveCapacity(report(&look, &files, bytes, capacity_bytes)));
                }
                above = bytes > capacity_bytes;
            }
        }
        std::thread::sleep(EVERY);
    }
    seen
}

fn report(look: &Sample, files: &Files, bytes: u64, capacity_bytes: u64) -> String {
    format!("{bytes} of {capacity_bytes} bytes are there: {look:?}, held by {files:?}")
}

/// Samples all files at one moment: two equal samples in a row. Otherwise moving bytes could be counted twice.
fn moment(files: &mut Files) -> Option<Sample> {
    let mut before = look(files);
    for _ in 0..TRIES {
        let now = look(files);
        if now == before {
            return Some(now);
        }
        before = now;
    }
    None
}

/// Samples the files and drops closed ones.
fn look(files: &mut Files) -> Sample {
    let mut look = Sample::new();
    files.retain(|file, inode| {
        // By path: an open descriptor of our own would keep the memory of exited processes.
        let stat = std::fs::metadata(file).ok().filter(|stat| stat.ino() == *inode);
        look.extend(stat.as_ref().map(|stat| (*inode, stat.blocks() * BLOCK)));
        stat.is_some()
    });
    look
}

/// Files of chunks that a process has open.
fn chunk_files(pid: u32) -> Files {
    let chunks = open_files(pid).into_iter().filter(|(_, name)| name == NAME);
    chunks.filter_map(|(file, _)| std::fs::metadata(&file).ok().map(|stat| (file, stat.ino()))).collect()
}

/// Returns the open files of a process: path and name.
pub fn open_files(pid: u32) -> Vec<(PathBuf, String)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let file = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let name = std::fs::read_link(&path).ok()?;
        Some((path, name.to_string_lossy().into_owned()))
    };
    entries.filter_map(file).collect()
}

/// Physical bytes of the chunks that a process has open.
pub fn chunk_bytes(pid: u32) -> u64 {
    look(&mut chunk_files(pid)).values().sum()
}

/// Returns the visible processes that still have one of these files open.
pub fn holders(inodes: &BTreeSet<u64>) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let holds = |pid: &u32| chunk_files(*pid).values().any(|inode| inodes.contains(inode));
    pids.filter(holds).collect()
}
