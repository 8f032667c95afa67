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
    /// What the runtime calls it: another one after each restart.
    pub id: String,
    /// How often it was restarted.
    pub restarts: u64,
}

/// The container `name` of a pod, native sidecars too.
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
    /// Whether processes of pods can be stopped and killed from here; where not, a line says what is skipped.
    ///
    /// # Panics
    /// On a node of ours, where they can.
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
    /// Its first process.
    pub fn first(&self) -> Option<Pid> {
        let all = self.processes();
        all.iter().copied().find(|pid| parent(*pid).is_none_or(|parent| !all.contains(&parent)))
    }

    /// The process that the first one started: the engine's worker below its supervisor.
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

/// Ends a process at once, as the kernel does when memory is short.
pub fn kill(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

/// A process that stands still until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it.
    pub fn stop(pid: Pid) -> Stopped {
        kill_process(pid, Signal::STOP).unwrap();
        Stopped(pid)
    }

    /// Whether all its threads stand still by now: one in the kernel, or without a core, does when it would come back from there.
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

    /// Lets it go on.
    pub fn go_on(self) {
        drop(self);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // One that was killed meanwhile is no more.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Whether a process has not ended. One that nobody has waited for has.
pub fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// In which strace lets a process go.
const LETS_GO: Duration = Duration::from_secs(1);

/// A process some of whose calls of the kernel are made slow, or fail, until this is dropped.
pub struct Traced(Child);

impl Traced {
    /// `inject` says what becomes of `calls`, in the words of strace.
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
        // It tells of each new thread, and would end where nobody listens.
        std::thread::spawn(move || lines.for_each(drop));
        Traced(child)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // By this it lets the process go on alone.
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let begun = Instant::now();
        while begun.elapsed() < LETS_GO && matches!(self.0.try_wait(), Ok(None)) {
            std::thread::sleep(LETS_GO / 100);
        }
        // It may wait for a process that stands still: then the kernel lets that go.
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
