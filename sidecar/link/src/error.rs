//! What can go wrong on a link.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use thiserror::Error;

use crate::control::ControlError;
use crate::frame::ProtocolError;
use crate::region::RegionError;
use crate::tables::TableError;

/// A link that failed. After any of these but a [`LinkError::Timeout`] of a receive the connection is of no further use.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The peer said something that is not the protocol.
    #[error(transparent)]
    Refused(#[from] ProtocolError),
    /// The peer has closed its end.
    #[error("the peer has closed the link")]
    Closed,
    /// Nothing came, or nothing was taken, in time.
    #[error("no answer from the peer within {0:?}")]
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
    /// A process that this one cannot see connected, so that its death could not be seen either.
    #[error(
        "the peer runs in a process namespace that this one does not see; its pod needs shareProcessNamespace"
    )]
    PeerPidUnknown,
    /// The setup cannot be served.
    #[error(transparent)]
    Setup(#[from] crate::message::SetupError),
    /// The control page is not one.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The tables are not those of the setup, or an update lies outside of them.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Shared memory could not be made or mapped.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The socket's path cannot be used.
    #[error("socket {path}: {source}")]
    Path {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{call}: {source}")]
    Kernel {
        /// System call.
        call: &'static str,
        /// Its error.
        source: Errno,
    },
}

/// Names the system call of an error.
pub(crate) fn syscall_error(call: &'static str) -> impl FnOnce(Errno) -> LinkError {
    move |source| LinkError::Kernel { call, source }
}
