//! A folder with a ledger, and processes that use it.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use sluice_memory::gpu_ledger::{GpuLedger, LedgerFaults, LedgerIdentity, ParticipantHandle, Peer};
use tempfile::TempDir;

use super::process::{CAPACITY_VAR, FOLDER_VAR};

/// Default capacity of the GPU, bytes.
pub const CAPACITY: u64 = 1000;
/// Longer than any operation here takes, even if the machine is stopped for a while.
const TIMEOUT: Duration = Duration::from_secs(180);

pub struct LedgerEnv {
    folder: TempDir,
    pub capacity: u64,
}

impl LedgerEnv {
    pub fn new() -> LedgerEnv {
        LedgerEnv { folder: TempDir::new().unwrap(), capacity: CAPACITY }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn identity(&self) -> LedgerIdentity {
        identity(self.capacity)
    }

    pub fn open(&self) -> GpuLedger {
        self.open_with(LedgerFaults::default())
    }

    pub fn open_with(&self, faults: LedgerFaults) -> GpuLedger {
        GpuLedger::open_with(self.folder(), &self.identity(), faults).unwrap()
    }

    /// Drops a handle of this process and waits until the kernel has released its locks: a child that another
    /// test is starting has a copy of every description until it runs `exec`.
    pub fn end(&self, participant: ParticipantHandle) {
        let peer = participant.peer();
        drop(participant);
        self.wait_until_dead(peer);
    }

    /// Waits until no process has the liveness description of `peer`.
    pub fn wait_until_dead(&self, peer: Peer) {
        let begun = Instant::now();
        let lives = || self.open().survey().unwrap().iter().any(|one| one.peer == peer && one.is_live);
        while lives() {
            assert!(begun.elapsed() < TIMEOUT, "{peer:?} does not die");
            std::thread::yield_now();
        }
    }

    /// Starts a process that has not opened the ledger.
    pub fn spawn_process(&self) -> LedgerProcess {
        self.spawn(Command::new(std::env::current_exe().unwrap())).unwrap()
    }

    /// Starts a process that has joined as `name` with a share of `share` bytes.
    pub fn spawn_joined(&self, name: &str, share: u64) -> LedgerProcess {
        let mut actor = self.spawn_process();
        actor.ok("open");
        actor.join(name, share);
        actor
    }

    /// Starts an engine with the liveness description of `sidecar`.
    pub fn spawn_engine_of(&self, sidecar: &mut LedgerProcess) -> LedgerProcess {
        let (mut engine, path) = (self.spawn_process(), self.folder().join("engine"));
        // The engine answers when it listens, and again when it has received the description.
        engine.ok(&format!("hold {}", path.display()));
        sidecar.ok(&format!("lend {}", path.display()));
        engine.answer().unwrap().unwrap();
        engine
    }

    /// Starts a process that has opened the ledger, with an optional fault.
    pub fn spawn_opened(&self, fault: Option<&str>) -> LedgerProcess {
        let mut actor = self.spawn_process();
        if let Some(fault) = fault {
            actor.ok(&format!("fault {fault}"));
        }
        actor.ok("open");
        actor
    }

    /// As [`LedgerEnv::spawn_process`], by a command that runs the test binary.
    pub fn spawn(&self, mut command: Command) -> std::io::Result<LedgerProcess> {
        command.args(["--exact", "gpu_ledger::process::child_process", "--ignored", "--nocapture"]);
        command.env(FOLDER_VAR, self.folder()).env(CAPACITY_VAR, self.capacity.to_string());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?;
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Ok(LedgerProcess { child, to, from, peer: Peer { index: 0, instance: 0 } })
    }
}

pub fn identity(capacity_bytes: u64) -> LedgerIdentity {
    LedgerIdentity { boot_id: [7; 16], claim_id: "claim-1".to_owned(), capacity_bytes, chunk_bytes: 10 }
}

/// A process that runs commands; killed on drop.
pub struct LedgerProcess {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Set once it has joined.
    pub peer: Peer,
}

impl LedgerProcess {
    /// Sends a command without waiting for its answer.
    pub fn send(&mut self, command: &str) {
        // `answer` detects an exited process.
        let _ = writeln!(self.to, "{command}");
    }

    /// Returns the next answer; `None` if the process has exited.
    pub fn answer(&mut self) -> Option<Result<String, String>> {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() != 0 {
            // The child's test harness writes to the same pipe, sometimes without a line end.
            if let Some((_, text)) = line.trim_end().split_once("@ok") {
                return Some(Ok(text.trim().to_owned()));
            }
            if let Some((_, text)) = line.trim_end().split_once("@err ") {
                return Some(Err(text.to_owned()));
            }
            line.clear();
        }
        None
    }

    pub fn request(&mut self, command: &str) -> Option<Result<String, String>> {
        self.send(command);
        self.answer()
    }

    /// Returns the answer of a command that must succeed.
    pub fn ok(&mut self, command: &str) -> String {
        match self.request(command) {
            Some(Ok(text)) => text,
            other => panic!("{command:?} ended as {other:?}"),
        }
    }

    pub fn join(&mut self, name: &str, share: u64) {
        self.join_by(&format!("join {name} {share}"));
    }

    /// Runs a command that joins, and sets `peer`.
    pub fn join_by(&mut self, command: &str) {
        let text = self.ok(command);
        let (index, instance) = text.split_once(' ').unwrap();
        self.peer = Peer { index: index.parse().unwrap(), instance: instance.parse().unwrap() };
    }

    /// Returns the liveness description of the process, as its engine would receive it.
    pub fn receive_liveness(&mut self, env: &LedgerEnv) -> OwnedFd {
        let path = env.folder().join(format!("lend-{}", self.child.id()));
        let listener = UnixListener::bind(&path).unwrap();
        self.send(&format!("lend {}", path.display()));
        let fd = super::process::receive_fd(&listener.accept().unwrap().0);
        self.answer().unwrap().unwrap();
        std::fs::remove_file(path).unwrap();
        fd
    }

    /// Waits until it exits by itself. Returns the signal that ended it, if any.
    pub fn end(&mut self) -> Option<i32> {
        use std::os::unix::process::ExitStatusExt;
        self.child.wait().unwrap().signal()
    }

    /// Kills it and waits until it has exited.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        self.wait_until_stopped();
    }

    /// Waits until it is stopped.
    pub fn wait_until_stopped(&self) {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.pid()), options).unwrap();
    }

    /// Waits until it stops itself or answers, and resumes it. Returns whether it stopped, and its answer.
    pub fn stop_or_answer(&mut self) -> (bool, Option<Result<String, String>>) {
        let pid = self.pid();
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| self.answer());
            let mut stopped = false;
            while !stopped && !answer.is_finished() {
                stopped = is_stopped(pid);
                std::thread::sleep(Duration::from_millis(1));
            }
            continue_process(pid);
            (stopped, answer.join().unwrap())
        })
    }

    pub fn resume(&self) {
        continue_process(self.pid());
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for LedgerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the kernel reports the child as stopped now.
fn is_stopped(pid: Pid) -> bool {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    rustix::process::waitid(WaitId::Pid(pid), options).unwrap().is_some_and(|status| status.stopped())
}

fn continue_process(pid: Pid) {
    rustix::process::kill_process(pid, Signal::CONT).unwrap();
}
