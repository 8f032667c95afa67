//! Processes of containers, as the host sees them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use sluice_e2e::cluster::skipped;

use super::{Product, TENANTS};

/// A container of a pod.
#[derive(Clone, Debug)]
pub struct Container {
    /// Id of the container in the runtime; it changes with each restart.
    pub id: String,
    /// Number of restarts.
    pub restarts: u64,
}

/// Returns the container `name` of a pod, including native sidecars.
///
/// # Panics
/// If the pod has never started it.
pub fn container(pod: &Value, name: &str) -> Container {
    find(pod, name).unwrap_or_else(|| panic!("{name} was never started by containerd: {pod}"))
}

fn find(pod: &Value, name: &str) -> Option<Container> {
    let lists = ["initContainerStatuses", "containerStatuses"].map(|list| pod["status"][list].as_array());
    let status = lists.into_iter().flatten().flatten().find(|one| one["name"] == name)?;
    let id = status["containerID"].as_str()?.strip_prefix("containerd://")?.to_owned();
    Some(Container { id, restarts: status["restartCount"].as_u64()? })
}

impl Product<'_> {
    /// Whether processes of pods can be stopped and killed from here. If not, prints the skipped part.
    ///
    /// # Panics
    /// On a node of ours if they cannot.
    pub fn may_stop_engines(&self) -> bool {
        let pod = self.pod(TENANTS[0]);
        let known = find(&pod, "engine").and_then(|one| one.worker());
        let may = known.is_some_and(|engine| test_kill_process(engine).is_ok());
        if !may {
            assert!(!self.node.api().is_own(), "an engine of our own node has no worker: {pod}");
            skipped("engines are stopped by root, by who shares their kernel, and of containerd alone");
        }
        may
    }
}

impl Container {
    /// Returns its first process.
    pub fn first(&self) -> Option<Pid> {
        let all = self.processes();
        all.iter().copied().find(|pid| parent(*pid).is_none_or(|parent| !all.contains(&parent)))
    }

    /// Returns the child of the first process: the engine's worker below its supervisor.
    pub fn worker(&self) -> Option<Pid> {
        let all = self.processes();
        all.iter().copied().find(|pid| parent(*pid).is_some_and(|parent| all.contains(&parent)))
    }

    fn processes(&self) -> Vec<Pid> {
        let entries = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let groups = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("cgroup")).ok()?;
            groups.contains(&self.id).then(|| Pid::from_raw(pid)).flatten()
        });
        entries.collect()
    }
}

/// Kills a process with SIGKILL, as the kernel does when memory is short.
pub fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// A stopped process. Dropping this value continues it.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it.
    pub fn stop(pid: Pid) -> Stopped {
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }

    /// Whether all of its threads are stopped: a thread in the kernel, or without a core, stops when it would
    /// return to user mode.
    pub fn is_still(&self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.0.as_raw_nonzero())) else {
            return true;
        };
        let still = |thread: fs::DirEntry| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        };
        threads.flatten().all(still)
    }

    /// Continues the process.
    pub fn go_on(self) {
        drop(self);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // The process may have been killed.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Whether a process has not exited. A zombie counts as exited.
pub fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Limit for strace to detach.
const DETACH_LIMIT: Duration = Duration::from_secs(1);

/// A process with delayed or failing system calls. Dropping this value ends that.
pub struct Traced(Child);

impl Traced {
    /// Attaches strace with the fault `inject` for `calls`, in strace's syntax.
    ///
    /// # Panics
    /// If strace does not attach.
    pub fn attach(process: Pid, calls: &str, inject: &str) -> Traced {
        let mut strace = Command::new("strace");
        strace.args(["--follow-forks", "--output=/dev/null", inject]).arg(format!("--trace={calls}"));
        strace.arg(format!("--attach={}", process.as_raw_nonzero())).stderr(Stdio::piped());
        let mut child = strace.spawn().expect("strace");
        let mut lines = BufReader::new(child.stderr.take().expect("its words")).lines().map_while(Result::ok);
        let mut said = String::new();
        let attached = lines.any(|line| {
            said.push_str(&line);
            line.contains("attached")
        });
        assert!(attached, "strace says: {said}");
        // strace prints each new thread and would exit on a closed pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Traced(child)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // SIGINT makes strace detach.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < DETACH_LIMIT && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(DETACH_LIMIT / 100);
        }
        // strace may wait for a stopped process. If it is killed, the kernel detaches it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn parent(pid: Pid) -> Option<Pid> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}
