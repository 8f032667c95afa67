//! Handles a sidecar that follows a newer leader.
//!
//! Sidecars store the epoch that they follow. The Lease has a lower one if it was deleted and created again, or if
//! another installation led before. A leader that still holds the Lease raises its epoch above the sidecar's. A
//! sidecar that reports ever higher epochs is served once per interval, so its reports alone end no leader. All
//! reports together raise the epoch by at most [`MAX_RAISE_STEP`] in that time, so it takes weeks of false reports to
//! exhaust the Lease's counter.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_wire::directive::Fence;
use tokio::time::Instant;

use super::http_client::SidecarAddress;
use super::pusher::{FenceCounter, MAX_EPOCH};
use crate::leader_election::{LeaderElection, LeaderElectionError};

/// Time between two raises for the report of one sidecar: less than the sidecar's own report interval.
pub const RAISE_INTERVAL: Duration = Duration::from_secs(50);
/// Maximum raise in that time over all reports: more leaders than a Lease ever has. A really higher epoch is reached
/// in some such steps.
pub const MAX_RAISE_STEP: u64 = 1 << 16;

/// Result of a sidecar's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictAction {
    /// This leader's epoch is beyond the one that the sidecar follows.
    Raised,
    /// This leader's epoch is [`MAX_RAISE_STEP`] nearer to it.
    PartlyRaised,
    /// The epoch was raised recently for the same sidecar: its report is ignored.
    RateLimited,
    /// Another replica holds the Lease: this one is no longer the leader.
    Deposed,
}

/// Reports of sidecars, and the Lease to compare them with.
#[derive(Debug)]
pub struct LeaderConflict<'a> {
    election: &'a LeaderElection,
    fences: Arc<FenceCounter>,
    last_raised: HashMap<SidecarAddress, Instant>,
    /// The epoch from which steps are counted, and since when.
    window_start: (u64, Instant),
}

impl<'a> LeaderConflict<'a> {
    /// Creates the state without reports. `fences` are those of outgoing directives.
    pub fn new(holder: &'a LeaderElection, fences: Arc<FenceCounter>) -> LeaderConflict<'a> {
        let from = (fences.epoch(), Instant::now());
        LeaderConflict { election: holder, fences, last_raised: HashMap::new(), window_start: from }
    }

    /// Handles the report that `sidecar` follows the leader of `follows`.
    ///
    /// # Errors
    /// The Lease could not be read or written: nothing has changed.
    pub async fn on_newer_leader(
        &mut self,
        sidecar: &SidecarAddress,
        follows: Fence,
    ) -> Result<ConflictAction, LeaderElectionError> {
        // Thousands of sidecars report the same leader at once.
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
        // The Lease first: the next leader's epoch must exceed every one that this leader has sent.
        if !self.election.raise_epoch(epoch).await? {
            return Ok(ConflictAction::Deposed);
        }
        tracing::warn!(%sidecar, epoch, "a sidecar follows a higher epoch, but this replica holds the \
                                         Lease: raised the epoch of the Lease");
        self.fences.raise(epoch);
        self.last_raised.insert(sidecar.clone(), Instant::now());
        Ok(if epoch > follows.epoch { ConflictAction::Raised } else { ConflictAction::PartlyRaised })
    }
}
