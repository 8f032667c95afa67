//! Errors of a link.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::control::ControlError;
use crate::frame::ProtocolError;
use crate::message::{Message, SetupError, SetupRefused};
use crate::region::RegionError;
use crate::tables::TableError;

/// A failed link. After any error except a [`LinkError::Timeout`] of a receive, the connection is unusable.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer violated the protocol.
    #[error(transparent)]
    Refused(#[from] ProtocolError),
    /// The peer has closed its end.
    #[error("the peer has closed the link")]
    Closed,
    /// The peer sent or accepted nothing in time.
    #[error("the peer did not answer within {0:?}")]
    Timeout(Duration),
    /// The two builds lay out slabs differently.
    #[error("slab layout digests differ: ours {ours:#018x}, theirs {theirs:#018x}")]
    Digest {
        /// Ours.
        ours: u64,
        /// The peer's.
        theirs: u64,
    },
    /// A process of another user connected.
    #[error("peer runs as user {theirs}, not as {ours}")]
    ForeignUser {
        /// Effective user of this process.
        ours: u32,
        /// User of the peer.
        theirs: u32,
    },
    /// A process connected that is not visible in this pid namespace, so its exit could not be observed.
    #[error("the peer runs in another process namespace; set shareProcessNamespace in its pod")]
    PeerPidUnknown,
    /// A worker is one of several.
    #[error("this is rank {rank} of {ranks}; only an engine of one worker, rank 0 of 1, is supported")]
    Ranks {
        /// Its rank.
        rank: u32,
        /// Workers of its engine.
        ranks: u32,
    },
    /// The sidecar refuses this engine.
    #[error("the sidecar refuses this engine ({}): {}", .0.reason, .0.message)]
    SetupRefused(SetupRefused),
    /// No engine can serve the setup.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The control page is not valid.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The tables do not match the setup, or an update is outside of them.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Shared memory could not be made or mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The socket's path cannot be used.
    #[error("socket {path}: {source}")]
    Path {
        /// The socket's path.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("{call}: {source}")]
    Kernel {
        /// System call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
}

impl LinkError {
    /// A message of another kind than the expected one.
    pub(crate) fn unexpected(got: &Message, expected: &'static str) -> LinkError {
        ProtocolError::Unexpected { got: got.kind(), expected }.into()
    }
}

/// Wraps the error of system call `call`.
pub(crate) fn syscall_error(call: &'static str) -> impl FnOnce(Errno) -> LinkError {
    move |source| LinkError::Kernel { call, source }
}
