//! Makes share and cap of a running tenant follow the directive, as far as its peers leave capacity.
//!
//! A share has three values: the target, the ledger's grant, and the memory manager's count. At any instant
//!
//! ```text
//! the memory manager counts  <=  the ledger grants,   and grants of all tenants sum to at most the GPU
//! ```
//!
//! so a share rises first in the ledger and then in the memory manager. It falls first in the memory manager, chunk by
//! chunk as memory is released, and then in the ledger. All of this happens on the engine loop's thread: the memory
//! manager accepts or refuses the bounds of one round before the next round. The thread never waits for the ledger's
//! guard. It retries a failed request after [`RETRY_MIN`] to [`RETRY_MAX`], and at once when a directive arrives. On a
//! GPU that is not shared, the tenant is granted everything and follows its directive at once.

mod plan;
mod share_source;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_common::back_off::BackOff;
use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_policy::memory_manager::{self, MemoryManager};
use sluice_policy::params::Params;
use sluice_policy::reclaim::PolicyName;
use sluice_scheduler::Event;

use plan::{ShareState, ShareStep};
pub use share_source::{ShareSource, ShareTarget};

/// Delay before the next request for chunks that peers still hold. It doubles after each failed request.
pub(super) const RETRY_MIN: Duration = Duration::from_millis(100);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(1);

/// Chunks that a tenant may hold: its share in the ledger, or the whole GPU if it is not shared.
#[derive(Debug)]
pub(super) struct ShareGrant {
    ledger: Option<Arc<ParticipantHandle>>,
    gpu_chunks: u32,
    chunk_bytes: u64,
    last_error: Option<LedgerError>,
}

impl ShareGrant {
    /// Creates the grant. `participant` owns the record in the ledger; `None` grants all `whole` chunks.
    pub fn new(participant: Option<Arc<ParticipantHandle>>, whole: u32, chunk_bytes: u64) -> ShareGrant {
        ShareGrant {
            ledger: participant,
            gpu_chunks: whole,
            chunk_bytes: chunk_bytes.max(1),
            last_error: None,
        }
    }

    /// Returns the granted chunks.
    pub fn chunks(&self) -> u32 {
        let Some(participant) = &self.ledger else { return self.gpu_chunks };
        u32::try_from(participant.share_bytes() / self.chunk_bytes).unwrap_or(u32::MAX)
    }

    /// Raises the grant to `want` chunks, or as far as peers leave capacity. Returns false if the ledger could not be
    /// asked.
    pub fn grow(&mut self, want: u32) -> bool {
        let (more, bytes) = (want > self.chunks(), self.bytes(want));
        let asked =
            self.ledger.as_ref().filter(|_| more).map(|participant| participant.raise_share(bytes).map(drop));
        self.log_error_once(asked.unwrap_or(Ok(())))
    }

    /// Lowers the grant to `keep` chunks. Returns false if the ledger could not be written.
    pub fn shrink(&mut self, keep: u32) -> bool {
        let (less, bytes) = (keep < self.chunks(), self.bytes(keep));
        let ceded = self
            .ledger
            .as_ref()
            .filter(|_| less)
            .map(|participant| participant.release_share(bytes).map(drop));
        self.log_error_once(ceded.unwrap_or(Ok(())))
    }

    /// Writes the floor, which is within the grant. Returns false if the ledger could not be written.
    pub fn declare_floor(&mut self, floor: u32) -> bool {
        let bytes = self.bytes(floor);
        let declared = self.ledger.as_ref().map(|participant| participant.set_floor(bytes));
        self.log_error_once(declared.unwrap_or(Ok(())))
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.chunk_bytes
    }

    /// Logs an error once while it lasts, except a busy guard. Returns whether the result is `Ok`.
    fn log_error_once(&mut self, result: Result<(), LedgerError>) -> bool {
        let trouble = result.err();
        if let Some(error) = trouble.as_ref().filter(|error| self.last_error.as_ref() != Some(error))
            && !matches!(error, LedgerError::Busy { .. })
        {
            tracing::warn!(%error, "could not change the share in the ledger");
        }
        let well = trouble.is_none();
        self.last_error = trouble;
        well
    }
}

/// Makes share, cap and policy follow the directive.
#[derive(Debug)]
pub struct ShareController {
    source: ShareSource,
    grant: ShareGrant,
    target_chunks: u32,
    /// Floor as written to the ledger.
    floor: Option<u32>,
    /// State after the last round. While it is unchanged, the controller only waits.
    last_state: Option<ShareState>,
    /// Time of the next retry.
    retry_at: Option<Instant>,
    back_off: BackOff,
    /// Step that was rejected, and the state at that time. It is not emitted again before either changes.
    rejected: Option<(ShareState, ShareStep)>,
    last_step: Option<ShareStep>,
    is_waiting: bool,
}

impl ShareController {
    /// Creates the controller of a memory manager that starts with the whole grant.
    pub(super) fn new(rule: ShareSource, grant: ShareGrant) -> ShareController {
        let want = rule.target().share_chunks;
        ShareController {
            source: rule,
            grant,
            target_chunks: want,
            floor: None,
            last_state: None,
            retry_at: None,
            back_off: BackOff::new(RETRY_MIN, RETRY_MAX),
            rejected: None,
            last_step: None,
            is_waiting: false,
        }
    }

    /// Returns the tenant's assigned chunks, or its floor if that is larger.
    pub fn target_chunks(&self) -> u32 {
        self.target_chunks
    }

    /// Returns the assigned chunks that peers have not released yet.
    pub fn missing_chunks(&self) -> u32 {
        self.target_chunks.saturating_sub(self.grant.chunks())
    }

    /// Returns the time until the next round, which is zero if the state has changed.
    pub fn next_check(&self, manager: &MemoryManager, now: Instant) -> Duration {
        if self.last_state != Some(self.current_state(manager)) {
            return Duration::ZERO;
        }
        self.retry_at.map_or(Duration::MAX, |again| again.saturating_duration_since(now))
    }

    /// Records that the memory manager refused the last policy or bounds.
    pub fn on_rejected(&mut self) {
        self.rejected = self.last_state.zip(self.last_step);
    }

    /// Runs one round. Returns the events for the memory manager, which must handle them before the next round.
    pub fn reconcile(&mut self, manager: &MemoryManager, now: Instant) -> Vec<Event> {
        let changed = self.source.refresh();
        let due = self.retry_at.is_some_and(|again| now >= again);
        if !changed && !due && self.last_state == Some(self.current_state(manager)) {
            return Vec::new();
        }
        if changed {
            self.back_off.reset();
            self.is_waiting = false;
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
            bounds: manager.params().bounds(),
            share: manager.loans().share_chunks(),
            granted: self.grant.chunks(),
        }
    }

    fn declare_floor(&mut self, manager: &MemoryManager) -> bool {
        let floor = manager.loans().floor_chunks();
        if self.floor != Some(floor) {
            self.floor = Some(floor).filter(|floor| self.grant.declare_floor(*floor));
        }
        self.floor.is_some()
    }

    /// Schedules a retry if chunks are missing or the ledger could not be accessed.
    fn schedule_retry(&mut self, well: bool, before: u32, due: bool, now: Instant) {
        let waits = self.missing_chunks() > 0;
        if waits && !self.is_waiting {
            tracing::info!(
                wanted = self.target_chunks,
                granted = self.grant.chunks(),
                "waiting for chunks of the share that peers have not released yet"
            );
        }
        self.is_waiting = waits;
        if self.grant.chunks() > before {
            self.back_off.reset();
        } else if due {
            self.back_off.double();
        }
        self.retry_at = (waits || !well).then(|| now + self.back_off.delay());
    }

    fn emit(&mut self, step: ShareStep, has: ShareState) -> Vec<Event> {
        (self.last_state, self.last_step) = (Some(has), Some(step));
        if self.rejected == Some((has, step)) {
            return Vec::new();
        }
        self.rejected = None;
        if let Some(policy) = step.policy {
            tracing::info!(policy = policy.name(), "changing the policy, as the directive orders");
        }
        let policy = step.policy.map(Event::Policy);
        policy.into_iter().chain(step.bounds.map(Event::Bounds)).collect()
    }

    /// Logs an error if the new terms do not fit the GPU.
    fn log_if_unsatisfiable(&self, manager: &MemoryManager) {
        let terms = self.source.target();
        if let Err(refused) = try_floor(manager, terms.policy, terms.remap_cap_permille) {
            tracing::error!(?terms, %refused, "the directive does not fit the GPU: using the parts that fit");
        }
    }
}

fn floor(manager: &MemoryManager, policy: PolicyName, remap_cap_permille: u32) -> Option<u32> {
    try_floor(manager, policy, remap_cap_permille).ok()
}

/// Returns the floor with this policy and cap.
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
