//! What a leader does about a sidecar that follows a newer one.
//!
//! Sidecars keep the epoch that they follow, and the Lease does not know of it where it was deleted and made anew, or where
//! another installation led before. So whoever holds the Lease nevertheless goes on, with an epoch beyond that one. A sidecar
//! that tells of ever higher epochs gets so far once in a while, and is without its directive in between: its word alone ends
//! no leader. Nor do many get far: epochs count leaders, and no words move this one's by more than [`STEP`] in that time, so it takes weeks
//! of lies until a Lease can count no further.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sluice_wire::directive::Fence;
use tokio::time::Instant;

use super::call::Address;
use super::push::{Fences, MOST_EPOCH};
use crate::lease::{Holder, LeaseError};

/// Time between two epochs that are given up for the word of one sidecar: less than it waits until it says so again.
pub const EVERY: Duration = Duration::from_secs(50);
/// How far all words together take a leader in that time: more leaders than a Lease sees in its life. Whoever is really further
/// is reached in some such steps.
pub const STEP: u64 = 1 << 16;

/// What came of a sidecar's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This leader's epoch is beyond the one that the sidecar follows.
    Beyond,
    /// It is a [`STEP`] nearer to that.
    Nearer,
    /// The same sidecar was outdone only just: it is not believed.
    TooOften,
    /// Somebody else holds the Lease: this one leads no more.
    Deposed,
}

/// The words of sidecars, and the Lease that they are held against.
#[derive(Debug)]
pub struct Contest<'a> {
    holder: &'a Holder,
    fences: Arc<Fences>,
    outdone: HashMap<Address, Instant>,
    /// The epoch from which steps are counted, and since when.
    from: (u64, Instant),
}

impl<'a> Contest<'a> {
    /// No word yet. `fences` are those that directives go out with.
    pub fn new(holder: &'a Holder, fences: Arc<Fences>) -> Contest<'a> {
        let from = (fences.epoch(), Instant::now());
        Contest { holder, fences, outdone: HashMap::new(), from }
    }

    /// Hears that `sidecar` follows the leader of `follows`.
    ///
    /// # Errors
    /// The Lease could not be read or written: nothing is known, and nothing has changed.
    pub async fn hear(&mut self, sidecar: &Address, follows: Fence) -> Result<Verdict, LeaseError> {
        // Thousands tell of the same leader at once.
        if self.fences.epoch() > follows.epoch {
            return Ok(Verdict::Beyond);
        }
        self.outdone.retain(|_, at| at.elapsed() < EVERY);
        if self.outdone.contains_key(sidecar) {
            return Ok(Verdict::TooOften);
        }
        if self.from.1.elapsed() >= EVERY {
            self.from = (self.fences.epoch(), Instant::now());
        }
        let epoch = follows.epoch.min(self.from.0.saturating_add(STEP)).saturating_add(1).min(MOST_EPOCH);
        if epoch <= self.fences.epoch() {
            return Ok(Verdict::TooOften);
        }
        // The Lease first: the next leader must be beyond whatever this one has sent.
        if !self.holder.outdo(epoch).await? {
            return Ok(Verdict::Deposed);
        }
        tracing::warn!(%sidecar, epoch, "the Lease is this replica's: its epoch is raised for what the sidecar follows");
        self.fences.raise(epoch);
        self.outdone.insert(sidecar.clone(), Instant::now());
        Ok(if epoch > follows.epoch { Verdict::Beyond } else { Verdict::Nearer })
    }
}
