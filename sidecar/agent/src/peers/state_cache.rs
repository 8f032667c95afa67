//! Last known states of peers, used when a peer does not answer in time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::PeerState;

/// Age after which a state is not used any more.
const MAX_AGE: Duration = Duration::from_secs(10);

/// Last state of each peer. An old state does no harm, because a peer that is asked decides by its own state.
#[derive(Debug, Default)]
pub struct PeerStateCache(Mutex<BTreeMap<Peer, (Instant, PeerState)>>);

impl PeerStateCache {
    /// Stores the current state of `peer`, and removes states of all peers that are too old.
    pub fn record(&self, peer: Peer, live: PeerState) -> PeerState {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        states.insert(peer, (Instant::now(), live));
        live
    }

    /// Returns the last state of `peer`, if it is not too old.
    pub fn get(&self, peer: Peer) -> Option<PeerState> {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.get(&peer).filter(|(at, _)| at.elapsed() < MAX_AGE).map(|(_, live)| *live)
    }
}
