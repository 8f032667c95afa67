//! How far a search for memory is, and which peers are left out of it for a while.

use alloc::vec::Vec;

use crate::ids::Nanos;
use crate::peers::Peer;
use crate::peers::loans::Nonce;
use crate::peers::victim::PeerView;

/// Maximum time before a peer that did not answer is asked again, nanoseconds.
pub(super) const SILENCE_MAX_NS: u64 = 5_000_000_000;

/// State of the search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Search {
    /// No search.
    #[default]
    Idle,
    /// The peers' states are being read.
    Surveying { since: Nanos },
    /// A peer is asked; `left` are the peers not asked yet.
    Asking { since: Nanos, nonce: Nonce, left: Vec<PeerView> },
}

/// A peer that denied, or did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AskBackoff {
    /// The peer.
    pub peer: Peer,
    /// It is not asked before this time.
    pub until: Nanos,
    /// Half of the next pause if it does not answer then, nanoseconds.
    pub pause_ns: u64,
}
