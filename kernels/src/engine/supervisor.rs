//! The supervisor: starts the worker, restarts it when it exits, and reaps all children (it may be process 1 of a
//! container). A worker's exit ends the supervisor only after `Bye`, or after SIGTERM if its sidecar has exited. The
//! supervisor also kills the worker's sidecar if it hangs, and answers liveness probes.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
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

use sluice_link::error::LinkError;
use sluice_link::watch::{CHECK_INTERVAL, SIDECAR_HANG_TIMEOUT, SidecarWatch, WatchStatus, recv_watch};
use sluice_wire::restart::BackOff;
use sluice_wire::sidecar_hangs::SidecarHangs;

use super::exit_code::{EXIT_GOODBYE, EXIT_SIDECAR_GONE};
use super::liveness::LivenessServer;
use super::options::Options;

/// A worker exits by itself within 100 ms of its sidecar's exit. The supervisor kills a worker that still runs after
/// this time.
const WORKER_GRACE: Duration = Duration::from_millis(200);

/// Runs workers until the sidecar sends `Bye`, or until SIGTERM and the exit of the sidecar.
pub(super) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut supervisor = Supervisor::new(options)?;
    supervisor.start()?;
    loop {
        supervisor.sleep()?;
        if supervisor.forward_term() {
            return Ok(ExitCode::from(EXIT_GOODBYE));
        }
        while let Some((pid, status)) = reap()? {
            if supervisor.on_worker_exit(pid, status) {
                return Ok(ExitCode::from(EXIT_GOODBYE));
            }
        }
        supervisor.watch_sidecar();
        supervisor.start_when_due()?;
        supervisor.live.iter_mut().for_each(LivenessServer::respond);
    }
}

struct Worker {
    pid: Pid,
    started: Instant,
    /// The socket on which the worker sends its sidecar's descriptors.
    socket: UnixStream,
    sidecar: Option<SidecarWatch>,
    /// The sidecar hung, and the hang was counted.
    counted: bool,
    /// When the supervisor found that the sidecar had exited.
    orphaned: Option<Instant>,
}

impl Worker {
    fn kill(&self, why: &str) {
        tracing::warn!(pid = self.pid.as_raw_nonzero(), "killing the worker: {why}");
        // Fails only if the worker has just exited, which `reap` reports.
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Kills a sidecar that hangs, and a worker that does not notice its sidecar's exit. `folder` holds the count of
    /// hangs.
    fn watch_sidecar(&mut self, folder: &Path) -> Result<(), LinkError> {
        if self.sidecar.is_none() {
            self.sidecar = recv_watch(self.socket.as_fd())?;
        }
        let (Some(sidecar), now) = (&mut self.sidecar, Instant::now()) else { return Ok(()) };
        match sidecar.check(now)? {
            WatchStatus::Running => {}
            WatchStatus::Hung(silent) => {
                tracing::error!(?silent, limit = ?SIDECAR_HANG_TIMEOUT, "the sidecar hangs: killing it");
                // Recorded before the kill, so that the next sidecar finds it.
                if !std::mem::replace(&mut self.counted, true)
                    && let Err(error) = SidecarHangs::record(folder, silent)
                {
                    tracing::error!(%error, folder = %folder.display(), "could not count the hang of the sidecar");
                }
                sidecar.kill()?;
            }
            WatchStatus::Dead if self.orphaned.is_none() => self.orphaned = Some(now),
            WatchStatus::Dead if self.is_overdue(now) => self.kill("its sidecar has exited"),
            WatchStatus::Dead => {}
        }
        Ok(())
    }

    fn is_overdue(&self, now: Instant) -> bool {
        self.orphaned.is_some_and(|dead| now.duration_since(dead) >= WORKER_GRACE)
    }

    /// Returns the descriptor to poll: the worker's socket until it sends its sidecar, then the sidecar's exit.
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        let fd = match &self.sidecar {
            None => self.socket.as_fd(),
            Some(_) if self.orphaned.is_some() => return None,
            Some(sidecar) => sidecar.as_fd(),
        };
        Some(PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    /// Returns the longest time until the next check.
    fn poll_timeout(&self) -> Option<Duration> {
        let watched = self.sidecar.as_ref().map(|_| CHECK_INTERVAL);
        self.orphaned.map(|_| WORKER_GRACE).or(watched)
    }
}

struct Supervisor<'a> {
    options: &'a Options,
    worker: Option<Worker>,
    backoff: BackOff,
    due: Option<Instant>,
    /// Set by the signal handler, taken once.
    term: Arc<AtomicBool>,
    terminating: bool,
    /// Receives a byte with every signal.
    wake: UnixStream,
    /// The socket of liveness probes.
    live: Option<LivenessServer>,
}

impl<'a> Supervisor<'a> {
    fn new(options: &'a Options) -> anyhow::Result<Self> {
        let live = options.live.map(|address| {
            LivenessServer::open(address)
                .with_context(|| format!("cannot listen on {address} (SLUICE_ENGINE_LIVE)"))
        });
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
            backoff: BackOff::default(),
            due: None,
            term,
            terminating: false,
            wake,
            live: live.transpose()?,
        })
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let own = std::env::current_exe().context("own executable")?;
        // If the executable was replaced while this process runs, its path is gone, but `/proc/self/exe` still opens
        // it.
        let program = if own.exists() { own.as_path() } else { Path::new("/proc/self/exe") };
        let mut command = Command::new(program);
        command.arg0(&own);
        command.arg("--socket").arg(&self.options.socket);
        command.arg("--worker").arg(rustix::process::getpid().as_raw_nonzero().to_string());
        if let Some(threads) = self.options.threads {
            command.arg("--threads").arg(threads.to_string());
        }
        if self.options.no_graphs {
            command.arg("--no-graphs");
        }
        if self.options.cublaslt {
            command.arg("--cublaslt");
        }
        if self.terminating {
            command.arg("--drain");
        }
        let (socket, shows) = UnixStream::pair().context("the worker's socket")?;
        command.stdin(OwnedFd::from(shows));
        // The handle is dropped: `reap` reaps all children, this worker included.
        match command.spawn() {
            Ok(child) => {
                let (pid, started) = (Pid::from_child(&child), Instant::now());
                self.worker =
                    Some(Worker { pid, started, socket, sidecar: None, counted: false, orphaned: None });
            }
            Err(error) => {
                tracing::error!("could not start the worker: {error}");
                self.schedule(Duration::ZERO);
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

    /// Checks the worker's sidecar. After an error, this worker's sidecar is not watched any more.
    fn watch_sidecar(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        let folder = self.options.socket.parent().unwrap_or(Path::new("."));
        if let Err(error) = worker.watch_sidecar(folder) {
            tracing::error!("could not watch the sidecar for hangs: {error}");
            worker.sidecar = None;
        }
    }

    /// Sleeps until a signal, a probe, the start of the next worker, or the next check of the worker's sidecar.
    fn sleep(&mut self) -> anyhow::Result<()> {
        let left = self.due.map(|due| due.saturating_duration_since(Instant::now()));
        let look = self.worker.as_ref().and_then(Worker::poll_timeout);
        let timeout = [left, look].into_iter().flatten().min();
        let timeout = timeout
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut fds = vec![PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN)];
        fds.extend(self.worker.as_ref().and_then(Worker::poll_fd));
        let asking = self.live.iter().flat_map(LivenessServer::fds);
        fds.extend(asking.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
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

    /// Forwards SIGTERM to the worker, which knows whether its sidecar still needs it. Returns `true` if there is no
    /// worker and none is due.
    fn forward_term(&mut self) -> bool {
        if self.term.swap(false, Ordering::SeqCst) {
            self.terminating = true;
            if let Some(worker) = &self.worker {
                // Fails only if the worker has just exited, which `reap` reports.
                let _ = kill_process(worker.pid, Signal::TERM);
            }
        }
        self.terminating && self.worker.is_none() && self.due.is_none()
    }

    /// Handles the exit of a child process. Returns `true` if it was the worker and no next one is needed.
    fn on_worker_exit(&mut self, pid: Pid, status: WaitStatus) -> bool {
        let Some(worker) = self.worker.take_if(|worker| worker.pid == pid) else {
            return false;
        };
        match status.exit_status() {
            Some(code) if code == i32::from(EXIT_GOODBYE) => return true,
            Some(code) if code == i32::from(EXIT_SIDECAR_GONE) => {
                self.backoff = BackOff::default();
                if self.terminating {
                    return true;
                }
            }
            code => {
                let signal = status.terminating_signal();
                tracing::warn!(?code, ?signal, "the worker exited");
            }
        }
        self.schedule(worker.started.elapsed());
        false
    }

    /// Schedules the start of the next worker; the last one ran for `lived`.
    fn schedule(&mut self, lived: Duration) {
        self.due = Some(Instant::now() + self.backoff.next_delay(lived));
    }
}

/// Reaps the next process that exited: the worker, or an orphan that process 1 inherited.
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
