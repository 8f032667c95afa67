//! Processes of containers, as the host sees them.

use std::fs;
use std::path::Path;

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

fn parent(pid: Pid) -> Option<Pid> {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(line.trim().parse().ok()?)
}
