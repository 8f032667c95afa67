//! What neighbours said of themselves last, for the moment at which one does not tell in time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::PeerState;

/// What is older says nothing.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The last words of each neighbour. Whoever is asked decides again from its own state, so old ones do no harm.
#[derive(Debug, Default)]
pub struct PeerStateCache(Mutex<BTreeMap<Peer, (Instant, PeerState)>>);

impl PeerStateCache {
    /// It says this now. What is too old to be used is forgotten, whoever said it.
    pub fn record(&self, peer: Peer, live: PeerState) -> PeerState {
        let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.retain(|_, (at, _)| at.elapsed() < MAX_AGE);
        heard.insert(peer, (Instant::now(), live));
        live
    }

    /// What it said, if that was not too long ago.
    pub fn get(&self, peer: Peer) -> Option<PeerState> {
        let heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(&peer).filter(|(at, _)| at.elapsed() < MAX_AGE).map(|(_, live)| *live)
    }
}
