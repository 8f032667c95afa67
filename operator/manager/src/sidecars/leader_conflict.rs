//! What a leader does about a sidecar that follows a newer one.
//!
//! Sidecars keep the epoch that they follow, and the Lease does not know of it where it was deleted and made anew, or where
//! another installation led before. So whoever holds the Lease nevertheless goes on, with an epoch beyond that one. A sidecar
//! that tells of ever higher epochs gets so far once in a while, and is without its directive in between: its word alone ends
//! no leader. Nor do many get far: epochs count leaders, and no words move this one's by more than [`MAX_RAISE_STEP`] in that time, so it takes weeks
//! of lies until a Lease can count no further.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_wire::directive::Fence;
use tokio::time::Instant;

use super::http_client::SidecarAddress;
use super::pusher::{FenceCounter, MAX_EPOCH};
use crate::leader_election::{LeaderElection, LeaderElectionError};

/// Time between two epochs that are given up for the word of one sidecar: less than it waits until it says so again.
pub const RAISE_INTERVAL: Duration = Duration::from_secs(50);
/// How far all words together take a leader in that time: more leaders than a Lease sees in its life. Whoever is really further
/// is reached in some such steps.
pub const MAX_RAISE_STEP: u64 = 1 << 16;

/// What came of a sidecar's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictAction {
    /// This leader's epoch is beyond the one that the sidecar follows.
    Raised,
    /// It is a [`MAX_RAISE_STEP`] nearer to that.
    PartlyRaised,
    /// The same sidecar was outdone only just: it is not believed.
    RateLimited,
    /// Somebody else holds the Lease: this one leads no more.
    Deposed,
}

/// The words of sidecars, and the Lease that they are held against.
#[derive(Debug)]
pub struct LeaderConflict<'a> {
    election: &'a LeaderElection,
    fences: Arc<FenceCounter>,
    last_raised: HashMap<SidecarAddress, Instant>,
    /// The epoch from which steps are counted, and since when.
    window_start: (u64, Instant),
}

impl<'a> LeaderConflict<'a> {
    /// No word yet. `fences` are those that directives go out with.
    pub fn new(holder: &'a LeaderElection, fences: Arc<FenceCounter>) -> LeaderConflict<'a> {
        let from = (fences.epoch(), Instant::now());
        LeaderConflict { election: holder, fences, last_raised: HashMap::new(), window_start: from }
    }

    /// Hears that `sidecar` follows the leader of `follows`.
    ///
    /// # Errors
    /// The Lease could not be read or written: nothing is known, and nothing has changed.
    pub async fn on_newer_leader(
        &mut self,
        sidecar: &SidecarAddress,
        follows: Fence,
    ) -> Result<ConflictAction, LeaderElectionError> {
        // Thousands tell of the same leader at once.
        if self.fences.epoch() > follows.epoch {
            return Ok(ConflictAction::Raised);
        }
        self.last_raised.retain(|_, at| at.elapsed() < RAISE_INTERVAL);
        if self.last_raised.contains_key(sidecar) {
            return Ok(ConflictAction::RateLimited);
        }
        if self.window_start.1.elapsed() >= RAISE_INTERVAL {
            self.window_start = (self.fences.epoch(), Instant::now());
        }
        let epoch = follows
            .epoch
            .min(self.window_start.0.saturating_add(MAX_RAISE_STEP))
            .saturating_add(1)
            .min(MAX_EPOCH);
        if epoch <= self.fences.epoch() {
            return Ok(ConflictAction::RateLimited);
        }
        // The Lease first: the next leader must be beyond whatever this one has sent.
        if !self.election.raise_epoch(epoch).await? {
            return Ok(ConflictAction::Deposed);
        }
        tracing::warn!(%sidecar, epoch, "the Lease is this replica's: its epoch is raised for what the sidecar follows");
        self.fences.raise(epoch);
        self.last_raised.insert(sidecar.clone(), Instant::now());
        Ok(if epoch > follows.epoch { ConflictAction::Raised } else { ConflictAction::PartlyRaised })
    }
}
