//! Death of an engine, confirmed: only a pidfd tells, never a closed socket, never a process id.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use thiserror::Error;

use crate::error::{LinkError, syscall_error};
use crate::socket::wait_readable;

/// An engine that cannot be shown to be dead: its chunks must not be given to anybody.
#[derive(Debug, Error)]
pub enum ProcessExitError {
    /// It still lives.
    #[error("the engine still lives {waited:?} after SIGKILL ({kill})")]
    StillAlive {
        /// Time waited after the signal.
        waited: Duration,
        /// Whether the signal could be sent.
        kill: String,
    },
    /// The pidfd cannot be waited for.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A pidfd of this process.
pub(crate) fn own_pidfd() -> Result<OwnedFd, LinkError> {
    pidfd_open(getpid(), PidfdFlags::empty()).map_err(syscall_error("pidfd_open"))
}

/// The process at the other end of a link, or the supervisor of the one there.
#[derive(Debug)]
pub struct PeerProcess {
    pidfd: OwnedFd,
}

impl PeerProcess {
    /// The process behind a pidfd that the engine opened for itself.
    pub fn new(pidfd: OwnedFd) -> PeerProcess {
        PeerProcess { pidfd }
    }

    /// Sends SIGKILL, which ends a stopped process too.
    ///
    /// # Errors
    /// The kernel refuses, as for a process in another pid namespace. A process that is dead already is no error.
    pub fn kill(&self) -> Result<(), LinkError> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(source) => Err(LinkError::Kernel { call: "pidfd_send_signal", source }),
        }
    }

    /// The descriptor, to be passed on or looked up.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether it is dead within `limit`.
    pub fn wait_exit(&self, limit: Duration) -> Result<bool, LinkError> {
        wait_readable(self.pidfd.as_fd(), limit)
    }

    /// Returns once the engine is dead: gives it `grace` to die by itself, then kills it and waits for `after`. A
    /// sidecar in another pid namespace may not kill it; its own watcher ends it then.
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
