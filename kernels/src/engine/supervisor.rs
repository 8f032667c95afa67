//! The parent: starts the worker, starts the next one when it dies, and reaps whatever ends (it may be process 1 of a
//! container). A worker's death is never its own.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use super::options::Options;
use super::{EXIT_BYE, EXIT_SIDECAR_GONE};

const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MOST: Duration = Duration::from_secs(5);
/// A worker that lived this long was not started in vain.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// Runs workers until one is told goodbye, or until SIGTERM and the end of the sidecar.
pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut supervisor = Supervisor::new(options)?;
    supervisor.start()?;
    loop {
        supervisor.sleep()?;
        if supervisor.take_term() {
            return Ok(ExitCode::from(EXIT_BYE));
        }
        while let Some((pid, status)) = reap()? {
            if supervisor.buried(pid, status) {
                return Ok(ExitCode::from(EXIT_BYE));
            }
        }
        supervisor.start_when_due()?;
    }
}

struct Worker {
    pid: Pid,
    started: Instant,
}

struct Supervisor<'a> {
    options: &'a Options,
    worker: Option<Worker>,
    backoff: Duration,
    due: Option<Instant>,
    /// Set by the signal handler, taken once.
    term: Arc<AtomicBool>,
    terminating: bool,
    /// A byte arrives with every signal.
    wake: UnixStream,
}

impl<'a> Supervisor<'a> {
    fn new(options: &'a Options) -> anyhow::Result<Self> {
        let (wake, write) = UnixStream::pair().context("signal pipe")?;
        wake.set_nonblocking(true).context("signal pipe")?;
        let term = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&term)).context("signal handler")?;
        }
        for signal in [SIGTERM, SIGINT, SIGCHLD] {
            let write = write.try_clone().context("signal pipe")?;
            signal_hook::low_level::pipe::register(signal, write).context("signal handler")?;
        }
        Ok(Supervisor {
            options,
            worker: None,
            backoff: BACKOFF_FIRST,
            due: None,
            term,
            terminating: false,
            wake,
        })
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let own = std::env::current_exe().context("own executable")?;
        // Replaced while we run, it is gone by its name and still there by ours.
        let program = if own.exists() { own.as_path() } else { Path::new("/proc/self/exe") };
        let mut command = Command::new(program);
        command.arg0(&own);
        command.arg("--socket").arg(&self.options.socket);
        command.arg("--worker").arg(rustix::process::getpid().as_raw_nonzero().to_string());
        if let Some(threads) = self.options.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        if self.terminating {
            command.arg("--drain");
        }
        // The handle is not kept: whatever ends is reaped by `reap`, this worker included.
        match command.spawn() {
            Ok(child) => {
                let pid = Pid::from_child(&child);
                self.worker = Some(Worker { pid, started: Instant::now() });
            }
            Err(error) => {
                tracing::error!("worker does not start: {error}");
                self.schedule();
            }
        }
        Ok(())
    }

    fn start_when_due(&mut self) -> anyhow::Result<()> {
        if self.worker.is_none() && self.due.is_some_and(|due| Instant::now() >= due) {
            self.due = None;
            self.start()?;
        }
        Ok(())
    }

    /// Sleeps until a signal or until the next worker is due.
    fn sleep(&mut self) -> anyhow::Result<()> {
        let left = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = left
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut fds = [PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.drain_wake().context("signal pipe"),
            Err(error) => Err(error).context("poll"),
        }
    }

    fn drain_wake(&mut self) -> std::io::Result<()> {
        let mut bytes = [0; 64];
        loop {
            match self.wake.read(&mut bytes) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Hands SIGTERM on; the worker knows whether its sidecar still needs it. `true` when there is no worker to ask.
    fn take_term(&mut self) -> bool {
        if self.term.swap(false, Ordering::SeqCst) {
            self.terminating = true;
            if let Some(worker) = &self.worker {
                // Fails only when it has just ended, which `reap` will tell.
                let _ = kill_process(worker.pid, Signal::TERM);
            }
        }
        self.terminating && self.worker.is_none() && self.due.is_none()
    }

    /// Takes note of a process that ended. `true` when it was the worker and no other is wanted.
    fn buried(&mut self, pid: Pid, status: WaitStatus) -> bool {
        let Some(worker) = self.worker.take_if(|worker| worker.pid == pid) else {
            return false;
        };
        match status.exit_status() {
            Some(code) if code == i32::from(EXIT_BYE) => return true,
            Some(code) if code == i32::from(EXIT_SIDECAR_GONE) => {
                self.backoff = BACKOFF_FIRST;
                if self.terminating {
                    return true;
                }
            }
            code => {
                let signal = status.terminating_signal();
                tracing::warn!(?code, ?signal, "worker died");
            }
        }
        if worker.started.elapsed() >= LONG_LIFE {
            self.backoff = BACKOFF_FIRST;
        }
        self.schedule();
        false
    }

    fn schedule(&mut self) {
        self.due = Some(Instant::now() + self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MOST);
    }
}

/// The next process that ended: the worker, or an orphan that process 1 inherited.
fn reap() -> anyhow::Result<Option<(Pid, WaitStatus)>> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(ended) => return Ok(ended),
            Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("wait"),
        }
    }
}
