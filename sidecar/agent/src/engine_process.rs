//! Starts, restarts with back-off, and ends the engine process if no other container starts it.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_wire::restart::BackOff;

const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time between SIGTERM and the kill.
const END_GRACE: Duration = Duration::from_secs(2);

/// Keeps one engine running until dropped.
#[derive(Debug)]
pub struct SpawnedEngine {
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl SpawnedEngine {
    /// Starts `binary`, which connects to `socket`.
    ///
    /// # Errors
    /// The first start failed. Later starts are retried.
    pub fn start(binary: &Path, socket: &Path) -> std::io::Result<Self> {
        let spawner = EngineSpawner { binary: binary.to_owned(), socket: socket.to_owned() };
        let ending = Arc::new(AtomicBool::new(false));
        let seen = ending.clone();
        let (started, first) = std::sync::mpsc::channel();
        // The parent-death signal of a child fires when the *thread* that started it ends, so one thread starts all
        // children.
        let thread = std::thread::Builder::new().name("engine-keeper".into()).spawn(move || {
            let spawned = spawner.spawn();
            let child = spawned.map_err(|error| started.send(Err(error)));
            if let Ok(child) = child {
                // The receiver waits for this message.
                let _ = started.send(Ok(()));
                spawner.run(child, &seen);
            }
        })?;
        first
            .recv()
            .unwrap_or_else(|_| Err(std::io::Error::other("the thread that starts the engine panicked")))?;
        Ok(SpawnedEngine { ending, thread: Some(thread) })
    }
}

impl SpawnedEngine {
    /// Returns a flag to set before the engine receives its goodbye, so that its exit does not count as a crash.
    pub fn ending(&self) -> Arc<AtomicBool> {
        self.ending.clone()
    }
}

impl Drop for SpawnedEngine {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic was already reported on stderr.
            let _ = thread.join();
        }
    }
}

struct EngineSpawner {
    binary: PathBuf,
    socket: PathBuf,
}

impl EngineSpawner {
    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.binary);
        command.arg("--socket").arg(&self.socket).process_group(0);
        let parent = rustix::process::getpid();
        // SAFETY: the closure makes only async-signal-safe system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // KILL, because a stopped process handles no other signal. The kernel continues an orphaned process
                // group, but not one that a subreaper of its session adopts. The kill ends the worker as well.
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // If the parent ended before the signal was set, the signal is never sent.
                if rustix::process::getppid() != Some(parent) {
                    // An error could not be reported: the parent's end of the pipe is closed, and std would abort.
                    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL)?;
                }
                Ok(())
            });
        }
        command.spawn()
    }

    fn run(&self, first: Child, ending: &AtomicBool) {
        let (mut child, mut back_off, mut started) = (Some(first), BackOff::default(), Instant::now());
        while !ending.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
            let Some(running) = &mut child else {
                child = self.respawn(&mut started);
                if child.is_none() {
                    wait_unless_ending(back_off.next_delay(Duration::ZERO), ending);
                }
                continue;
            };
            // The flag was set while this thread slept, and the engine exited as ordered.
            if matches!(running.try_wait(), Ok(None)) || ending.load(Ordering::Relaxed) {
                continue;
            }
            child = None;
            let pause = back_off.next_delay(started.elapsed());
            tracing::warn!(?pause, "the engine's supervisor ended: restarting it");
            wait_unless_ending(pause, ending);
        }
        if let Some(child) = child {
            terminate(child);
        }
    }

    fn respawn(&self, started: &mut Instant) -> Option<Child> {
        *started = Instant::now();
        self.spawn().inspect_err(|error| tracing::error!(%error, "could not start the engine")).ok()
    }
}

fn wait_unless_ending(limit: Duration, ending: &AtomicBool) {
    let begun = Instant::now();
    while begun.elapsed() < limit && !ending.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sends SIGTERM, waits, and then kills the child.
fn terminate(mut child: Child) {
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        // A child that has exited only needs the wait.
        let _ = kill_process(pid, Signal::TERM);
    }
    let begun = Instant::now();
    while begun.elapsed() < END_GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let _ = child.kill();
    let _ = child.wait();
}
