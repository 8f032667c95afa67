//! Confirms the exit of a process by pidfd. A closed socket or a process id confirms nothing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::error::{LinkError, syscall_error};
use crate::socket::wait_readable;

/// The engine's exit cannot be confirmed, so its chunks must not be given to another tenant.
#[derive(Debug, Error)]
pub enum ProcessExitError {
    /// The engine still runs.
    #[error("the engine still runs {waited:?} after SIGKILL ({kill})")]
    StillAlive {
        /// Time waited after the signal.
        waited: Duration,
        /// Whether the signal was sent.
        kill: String,
    },
    /// The wait for the pidfd failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// Opens a pidfd of this process.
pub(crate) fn own_pidfd() -> Result<OwnedFd, LinkError> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(syscall_error("pidfd_open"))
}

/// A process known by pidfd: the peer of a link, or the engine's supervisor.
#[derive(Debug)]
pub struct PeerProcess {
    pidfd: OwnedFd,
}

impl PeerProcess {
    /// Wraps a pidfd that was received over a link.
    pub fn new(pidfd: OwnedFd) -> PeerProcess {
        PeerProcess { pidfd }
    }

    /// Sends SIGKILL, which ends a stopped process too.
    ///
    /// # Errors
    /// The kernel refuses, for example for a process in another pid namespace. An exited process is no error.
    pub fn kill(&self) -> Result<(), LinkError> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(source) => Err(LinkError::Kernel { call: "pidfd_send_signal", source }),
        }
    }

    /// Returns the descriptor.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether the process exits within `limit`.
    pub fn wait_exit(&self, limit: Duration) -> Result<bool, LinkError> {
        wait_readable(self.pidfd.as_fd(), limit)
    }

    /// Returns once the process has exited: waits for `grace`, then kills it and waits for `after`. A sidecar in
    /// another pid namespace cannot kill it; then the engine's own watcher ends it.
    pub fn kill_and_wait(&self, grace: Duration, after: Duration) -> Result<(), ProcessExitError> {
        if self.wait_exit(grace)? {
            return Ok(());
        }
        let sent = pidfd_send_signal(&self.pidfd, Signal::KILL);
        if self.wait_exit(after)? {
            return Ok(());
        }
        let kill = sent.map_or_else(|error| format!("not sent: {error}"), |()| "sent".to_owned());
        Err(ProcessExitError::StillAlive { waited: after, kill })
    }
}
