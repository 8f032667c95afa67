//! The share and the cap of a tenant that runs follow the directive, as far as its neighbours leave room.
//!
//! Three hold a share: what is wanted, what the ledger grants, and what the memory manager counts. At any instant
//!
//! ```text
//! the memory manager counts  <=  the ledger grants,   and grants of all tenants sum to at most the GPU
//! ```
//!
//! so a share rises in the ledger first and then in the memory manager. It falls in the memory manager, chunk by chunk as memory
//! really goes, before it falls in the ledger. All of it happens on the room's thread between two looks at its inbox: the memory
//! manager takes or refuses the bounds of one round before the next. This thread never waits for the ledger's guard: it asks for
//! what it did not get again after [`SHORTEST`] to [`LONGEST`], and at once when a directive comes. On a GPU of its own a
//! tenant is granted all of it, and follows its directive at once.

mod plan;
mod rule;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_policy::memory_manager::{self, MemoryManager};
use sluice_policy::params::{Params, PolicyName};
use sluice_scheduler::Event;

use plan::{Has, Step};
pub use rule::{Rule, Terms};

/// What neighbours have not left yet is asked for again after so long, twice as long each time it is in vain.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// What a tenant may hold of its GPU, in chunks: as its record in the ledger says, or all where there are no neighbours.
#[derive(Debug)]
pub(super) struct Grant {
    seat: Option<Arc<ParticipantHandle>>,
    whole: u32,
    chunk_bytes: u64,
    trouble: Option<LedgerError>,
}

impl Grant {
    /// Of a GPU of `whole` chunks. `seat`: the record there; `None` = the GPU is the tenant's own.
    pub fn new(seat: Option<Arc<ParticipantHandle>>, whole: u32, chunk_bytes: u64) -> Grant {
        Grant { seat, whole, chunk_bytes: chunk_bytes.max(1), trouble: None }
    }

    /// What is granted.
    pub fn chunks(&self) -> u32 {
        let Some(seat) = &self.seat else { return self.whole };
        u32::try_from(seat.share_bytes() / self.chunk_bytes).unwrap_or(u32::MAX)
    }

    /// Has it rise to `want` chunks, as far as others leave room. False if it could not be asked for.
    pub fn rise(&mut self, want: u32) -> bool {
        let (more, bytes) = (want > self.chunks(), self.bytes(want));
        let asked = self.seat.as_ref().filter(|_| more).map(|seat| seat.raise_share(bytes).map(drop));
        self.went(asked.unwrap_or(Ok(())))
    }

    /// Leaves others all but `keep` chunks. False if that could not be written.
    pub fn fall(&mut self, keep: u32) -> bool {
        let (less, bytes) = (keep < self.chunks(), self.bytes(keep));
        let ceded = self.seat.as_ref().filter(|_| less).map(|seat| seat.release_share(bytes).map(drop));
        self.went(ceded.unwrap_or(Ok(())))
    }

    /// Tells the floor, which is within what is granted. False if that could not be written.
    pub fn declare(&mut self, floor: u32) -> bool {
        let bytes = self.bytes(floor);
        let declared = self.seat.as_ref().map(|seat| seat.set_floor(bytes));
        self.went(declared.unwrap_or(Ok(())))
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.chunk_bytes
    }

    /// Says what is wrong once while it lasts. That the guard is not free at a moment is nothing.
    fn went(&mut self, result: Result<(), LedgerError>) -> bool {
        let trouble = result.err();
        if let Some(error) = trouble.as_ref().filter(|error| self.trouble.as_ref() != Some(error))
            && !matches!(error, LedgerError::Busy { .. })
        {
            tracing::warn!(%error, "the share in the ledger stays as it is");
        }
        let well = trouble.is_none();
        self.trouble = trouble;
        well
    }
}

/// Keeps share, cap and policy as the directive has them.
#[derive(Debug)]
pub struct Deal {
    rule: Rule,
    grant: Grant,
    want: u32,
    /// As the ledger has it.
    floor: Option<u32>,
    /// What there was when nothing was left to do but to wait.
    seen: Option<Has>,
    /// Then something is tried again.
    again: Option<Instant>,
    pause: Duration,
    /// Is not told again before something changes.
    refused: Option<(Has, Step)>,
    told: Option<Step>,
    waits: bool,
}

impl Deal {
    /// Of a memory manager that begins with all that is granted, on these terms.
    pub(super) fn new(rule: Rule, grant: Grant) -> Deal {
        let want = rule.terms().share_chunks;
        Deal {
            rule,
            grant,
            want,
            floor: None,
            seen: None,
            again: None,
            pause: SHORTEST,
            refused: None,
            told: None,
            waits: false,
        }
    }

    /// What the tenant was dealt, or needs at least.
    pub fn wanted_chunks(&self) -> u32 {
        self.want
    }

    /// Chunks that it was dealt and that neighbours have not left yet.
    pub fn awaited_chunks(&self) -> u32 {
        self.want.saturating_sub(self.grant.chunks())
    }

    /// How long nothing has to be done here unless something happens; not at all when it has.
    pub fn rests(&self, manager: &MemoryManager, now: Instant) -> Duration {
        if self.seen != Some(self.has(manager)) {
            return Duration::ZERO;
        }
        self.again.map_or(Duration::MAX, |again| again.saturating_duration_since(now))
    }

    /// The memory manager refused the last policy or bounds.
    pub fn refused(&mut self) {
        self.refused = self.seen.zip(self.told);
    }

    /// One round: what the memory manager is to be told. It handles that before the next round.
    pub fn follow(&mut self, manager: &MemoryManager, now: Instant) -> Vec<Event> {
        let changed = self.rule.look();
        let due = self.again.is_some_and(|again| now >= again);
        if !changed && !due && self.seen == Some(self.has(manager)) {
            return Vec::new();
        }
        if changed {
            (self.pause, self.waits) = (SHORTEST, false);
            self.check(manager);
        }
        let floor = |policy, cap| floor(manager, policy, cap);
        self.want =
            plan::want(self.rule.terms(), self.has(manager), floor, manager.geometry().capacity_chunks);
        let before = self.grant.chunks();
        let mut well = self.declare(manager);
        well &= self.grant.rise(self.want);
        let step = plan::step(self.rule.terms(), self.has(manager), self.want, floor);
        well &= self.grant.fall(step.keep);
        self.pace(well, before, due, now);
        self.tell(step, self.has(manager))
    }

    fn has(&self, manager: &MemoryManager) -> Has {
        Has {
            policy: manager.params().policy,
            bounds: manager.bounds(),
            share: manager.share_chunks(),
            granted: self.grant.chunks(),
        }
    }

    fn declare(&mut self, manager: &MemoryManager) -> bool {
        let floor = manager.floor_chunks();
        if self.floor != Some(floor) {
            self.floor = Some(floor).filter(|floor| self.grant.declare(*floor));
        }
        self.floor.is_some()
    }

    /// When to come back by itself.
    fn pace(&mut self, well: bool, before: u32, due: bool, now: Instant) {
        let waits = self.awaited_chunks() > 0;
        if waits && !self.waits {
            tracing::info!(
                wanted = self.want,
                granted = self.grant.chunks(),
                "waiting for chunks of the share that neighbours have not left yet"
            );
        }
        self.waits = waits;
        if self.grant.chunks() > before {
            self.pause = SHORTEST;
        } else if due {
            self.pause = (self.pause * 2).min(LONGEST);
        }
        self.again = (waits || !well).then(|| now + self.pause);
    }

    fn tell(&mut self, step: Step, has: Has) -> Vec<Event> {
        (self.seen, self.told) = (Some(has), Some(step));
        if self.refused == Some((has, step)) {
            return Vec::new();
        }
        self.refused = None;
        if let Some(policy) = step.policy {
            tracing::info!(policy = policy.name(), "the directive names another policy");
        }
        let policy = step.policy.map(Event::Policy);
        policy.into_iter().chain(step.bounds.map(Event::Bounds)).collect()
    }

    /// Says what of the new terms can never be.
    fn check(&self, manager: &MemoryManager) {
        let terms = self.rule.terms();
        if let Err(refused) = floors(manager, terms.policy, terms.remap_cap_permille) {
            tracing::error!(?terms, %refused, "the directive does not fit the GPU: what of it fits is followed");
        }
    }
}

fn floor(manager: &MemoryManager, policy: PolicyName, remap_cap_permille: u32) -> Option<u32> {
    floors(manager, policy, remap_cap_permille).ok()
}

/// What the tenant would not lend then.
fn floors(
    manager: &MemoryManager,
    policy: PolicyName,
    remap_cap_permille: u32,
) -> Result<u32, sluice_policy::config_error::ConfigError> {
    memory_manager::floor(
        &Params { policy, remap_cap_permille, ..manager.params().clone() },
        manager.geometry(),
    )
}
