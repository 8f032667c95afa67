//! Death of an engine, confirmed: only a pidfd tells, never a closed socket, never a process id.

use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use thiserror::Error;

use crate::error::LinkError;
use crate::socket::readable;

/// An engine that cannot be shown to be dead: its chunks must not be given to anybody.
#[derive(Debug, Error)]
pub enum DeathError {
    /// It still lives.
    #[error("the engine still lives {waited:?} after SIGKILL ({kill})")]
    Alive {
        /// Time waited after the signal.
        waited: Duration,
        /// Whether the signal could be sent.
        kill: String,
    },
    /// The pidfd cannot be waited for.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The process of an engine.
#[derive(Debug)]
pub struct EngineProcess {
    pidfd: OwnedFd,
}

impl EngineProcess {
    /// The process behind a pidfd that the engine opened for itself.
    pub fn new(pidfd: OwnedFd) -> EngineProcess {
        EngineProcess { pidfd }
    }

    /// Whether it is dead within `limit`.
    pub fn dead_within(&self, limit: Duration) -> Result<bool, LinkError> {
        readable(self.pidfd.as_fd(), limit)
    }

    /// Returns once the engine is dead: gives it `grace` to die by itself, then kills it and waits for `after`. A
    /// sidecar in another pid namespace may not kill it; its own watcher ends it then.
    pub fn confirm(&self, grace: Duration, after: Duration) -> Result<(), DeathError> {
        if self.dead_within(grace)? {
            return Ok(());
        }
        let sent = pidfd_send_signal(&self.pidfd, Signal::KILL);
        if self.dead_within(after)? {
            return Ok(());
        }
        let kill = sent.map_or_else(|error| format!("not sent: {error}"), |()| "sent".to_owned());
        Err(DeathError::Alive { waited: after, kill })
    }
}
