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
mod share_source;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_policy::memory_manager::{self, MemoryManager};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::Event;

use plan::{ShareState, ShareStep};
pub use share_source::{ShareSource, ShareTarget};

/// What neighbours have not left yet is asked for again after so long, twice as long each time it is in vain.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(100);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(1);

/// What a tenant may hold of its GPU, in chunks: as its record in the ledger says, or all where there are no neighbours.
#[derive(Debug)]
pub(super) struct ShareGrant {
    ledger: Option<Arc<ParticipantHandle>>,
    gpu_chunks: u32,
    chunk_bytes: u64,
    last_error: Option<LedgerError>,
}

impl ShareGrant {
    /// Of a GPU of `whole` chunks. `seat`: the record there; `None` = the GPU is the tenant's own.
    pub fn new(seat: Option<Arc<ParticipantHandle>>, whole: u32, chunk_bytes: u64) -> ShareGrant {
        ShareGrant { ledger: seat, gpu_chunks: whole, chunk_bytes: chunk_bytes.max(1), last_error: None }
    }

    /// What is granted.
    pub fn chunks(&self) -> u32 {
        let Some(seat) = &self.ledger else { return self.gpu_chunks };
        u32::try_from(seat.share_bytes() / self.chunk_bytes).unwrap_or(u32::MAX)
    }

    /// Has it rise to `want` chunks, as far as others leave room. False if it could not be asked for.
    pub fn grow(&mut self, want: u32) -> bool {
        let (more, bytes) = (want > self.chunks(), self.bytes(want));
        let asked = self.ledger.as_ref().filter(|_| more).map(|seat| seat.raise_share(bytes).map(drop));
        self.log_error_once(asked.unwrap_or(Ok(())))
    }

    /// Leaves others all but `keep` chunks. False if that could not be written.
    pub fn shrink(&mut self, keep: u32) -> bool {
        let (less, bytes) = (keep < self.chunks(), self.bytes(keep));
        let ceded = self.ledger.as_ref().filter(|_| less).map(|seat| seat.release_share(bytes).map(drop));
        self.log_error_once(ceded.unwrap_or(Ok(())))
    }

    /// Tells the floor, which is within what is granted. False if that could not be written.
    pub fn declare_floor(&mut self, floor: u32) -> bool {
        let bytes = self.bytes(floor);
        let declared = self.ledger.as_ref().map(|seat| seat.set_floor(bytes));
        self.log_error_once(declared.unwrap_or(Ok(())))
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.chunk_bytes
    }

    /// Says what is wrong once while it lasts. That the guard is not free at a moment is nothing.
    fn log_error_once(&mut self, result: Result<(), LedgerError>) -> bool {
        let trouble = result.err();
        if let Some(error) = trouble.as_ref().filter(|error| self.last_error.as_ref() != Some(error))
            && !matches!(error, LedgerError::Busy { .. })
        {
            tracing::warn!(%error, "the share in the ledger stays as it is");
        }
        let well = trouble.is_none();
        self.last_error = trouble;
        well
    }
}

/// Keeps share, cap and policy as the directive has them.
#[derive(Debug)]
pub struct ShareController {
    source: ShareSource,
    grant: ShareGrant,
    target_chunks: u32,
    /// As the ledger has it.
    floor: Option<u32>,
    /// What there was when nothing was left to do but to wait.
    last_state: Option<ShareState>,
    /// Then something is tried again.
    retry_at: Option<Instant>,
    retry_delay: Duration,
    /// Is not told again before something changes.
    rejected: Option<(ShareState, ShareStep)>,
    last_step: Option<ShareStep>,
    is_waiting: bool,
}

impl ShareController {
    /// Of a memory manager that begins with all that is granted, on these terms.
    pub(super) fn new(rule: ShareSource, grant: ShareGrant) -> ShareController {
        let want = rule.target().share_chunks;
        ShareController {
            source: rule,
            grant,
            target_chunks: want,
            floor: None,
            last_state: None,
            retry_at: None,
            retry_delay: RETRY_MIN,
            rejected: None,
            last_step: None,
            is_waiting: false,
        }
    }

    /// What the tenant was dealt, or needs at least.
    pub fn target_chunks(&self) -> u32 {
        self.target_chunks
    }

    /// Chunks that it was dealt and that neighbours have not left yet.
    pub fn missing_chunks(&self) -> u32 {
        self.target_chunks.saturating_sub(self.grant.chunks())
    }

    /// How long nothing has to be done here unless something happens; not at all when it has.
    pub fn next_check(&self, manager: &MemoryManager, now: Instant) -> Duration {
        if self.last_state != Some(self.current_state(manager)) {
            return Duration::ZERO;
        }
        self.retry_at.map_or(Duration::MAX, |again| again.saturating_duration_since(now))
    }

    /// The memory manager refused the last policy or bounds.
    pub fn on_rejected(&mut self) {
        self.rejected = self.last_state.zip(self.last_step);
    }

    /// One round: what the memory manager is to be told. It handles that before the next round.
    pub fn reconcile(&mut self, manager: &MemoryManager, now: Instant) -> Vec<Event> {
        let changed = self.source.refresh();
        let due = self.retry_at.is_some_and(|again| now >= again);
        if !changed && !due && self.last_state == Some(self.current_state(manager)) {
            return Vec::new();
        }
        if changed {
            (self.retry_delay, self.is_waiting) = (RETRY_MIN, false);
            self.log_if_unsatisfiable(manager);
        }
        let floor = |policy, cap| floor(manager, policy, cap);
        self.target_chunks = plan::target_chunks(
            self.source.target(),
            self.current_state(manager),
            floor,
            manager.geometry().capacity_chunks,
        );
        let before = self.grant.chunks();
        let mut well = self.declare_floor(manager);
        well &= self.grant.grow(self.target_chunks);
        let step =
            plan::next_step(self.source.target(), self.current_state(manager), self.target_chunks, floor);
        well &= self.grant.shrink(step.keep_chunks);
        self.schedule_retry(well, before, due, now);
        self.emit(step, self.current_state(manager))
    }

    fn current_state(&self, manager: &MemoryManager) -> ShareState {
        ShareState {
            policy: manager.params().policy,
            bounds: manager.bounds(),
            share: manager.share_chunks(),
            granted: self.grant.chunks(),
        }
    }

    fn declare_floor(&mut self, manager: &MemoryManager) -> bool {
        let floor = manager.floor_chunks();
        if self.floor != Some(floor) {
            self.floor = Some(floor).filter(|floor| self.grant.declare_floor(*floor));
        }
        self.floor.is_some()
    }

    /// When to come back by itself.
    fn schedule_retry(&mut self, well: bool, before: u32, due: bool, now: Instant) {
        let waits = self.missing_chunks() > 0;
        if waits && !self.is_waiting {
            tracing::info!(
                wanted = self.target_chunks,
                granted = self.grant.chunks(),
                "waiting for chunks of the share that neighbours have not left yet"
            );
        }
        self.is_waiting = waits;
        if self.grant.chunks() > before {
            self.retry_delay = RETRY_MIN;
        } else if due {
            self.retry_delay = (self.retry_delay * 2).min(RETRY_MAX);
        }
        self.retry_at = (waits || !well).then(|| now + self.retry_delay);
    }

    fn emit(&mut self, step: ShareStep, has: ShareState) -> Vec<Event> {
        (self.last_state, self.last_step) = (Some(has), Some(step));
        if self.rejected == Some((has, step)) {
            return Vec::new();
        }
        self.rejected = None;
        if let Some(policy) = step.policy {
            tracing::info!(policy = policy.name(), "the directive names another policy");
        }
        let policy = step.policy.map(Event::Policy);
        policy.into_iter().chain(step.bounds.map(Event::Bounds)).collect()
    }

    /// Says what of the new terms can never be.
    fn log_if_unsatisfiable(&self, manager: &MemoryManager) {
        let terms = self.source.target();
        if let Err(refused) = try_floor(manager, terms.policy, terms.remap_cap_permille) {
            tracing::error!(?terms, %refused, "the directive does not fit the GPU: what of it fits is followed");
        }
    }
}

fn floor(manager: &MemoryManager, policy: PolicyName, remap_cap_permille: u32) -> Option<u32> {
    try_floor(manager, policy, remap_cap_permille).ok()
}

/// What the tenant would not lend then.
fn try_floor(
    manager: &MemoryManager,
    policy: PolicyName,
    remap_cap_permille: u32,
) -> Result<u32, sluice_policy::config_error::ConfigError> {
    memory_manager::floor(
        &Params { policy, remap_cap_permille, ..manager.params().clone() },
        manager.geometry(),
    )
}
