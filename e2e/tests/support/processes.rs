//! Processes: their environment, state and signals.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

/// Returns the processes whose environment names `folder` as runtime folder: all that a test environment has
/// started. Zombies are excluded.
pub fn of_world(folder: &Path) -> Vec<u32> {
    let mark = format!("SLUICE_RUNTIME_DIR={}\0", folder.display());
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid| has_environment(*pid, &mark) && alive(*pid)).collect()
}

/// Whether the environment of a process contains `mark`.
pub fn has_environment(pid: u32, mark: &str) -> bool {
    // The read fails for a process that has exited or belongs to another user: neither is ours.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.windows(mark.len()).any(|window| window == mark.as_bytes())
}

/// Whether the process runs.
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|fields| fields[0] != "Z" && fields[0] != "X")
}

/// Returns the parent process.
pub fn parent(pid: u32) -> u32 {
    stat(pid).unwrap_or_else(|| panic!("process {pid} has gone"))[1].parse().unwrap()
}

/// Returns the parent process; `None` when the process has exited.
pub fn parent_of(pid: u32) -> Option<u32> {
    stat(pid)?[1].parse().ok()
}

/// Name of its program, at most 15 bytes.
pub fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the program and its arguments.
pub fn command_line(pid: u32) -> String {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ")
}

/// Resident memory, bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Fields of `/proc/PID/stat` after the name: state, parent, ...
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// Sends a signal to a running process.
pub fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal)
        .unwrap_or_else(|e| panic!("{signal:?} to {pid}: {e}"));
}

/// Kills a process that may have exited.
pub fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
}
