//! A tenant's record in the ledger file of its GPU.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_memory::gpu_ledger::{
    GpuLedger, JoinError, LedgerFaults, LedgerIdentity, OpenError, ParticipantHandle, ShareRequest,
    SliceOrder as LedgerOrder, current_boot_id,
};
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::Quantum;
use sluice_scheduler::TimeSharing;
use sluice_wire::config::{LedgerConfig, SidecarConfig};
use sluice_wire::directive::{Sharing as SharingRule, SliceOrder};

use super::full_name::full_name;
use super::ns;
use super::pending_replies::PendingReplies;
use super::takeovers::Takeovers;

/// Time limit for conditions that pass by themselves. Conditions that other pods must end have no limit.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay between tries at first, and after `JOIN_TIMEOUT`.
const JOIN_RETRY_MIN: Duration = Duration::from_millis(20);
const JOIN_RETRY_MAX: Duration = Duration::from_millis(500);
/// Number of hand-overs after which a waiting participant precedes higher priorities: one full round of the ledger's
/// records.
const AGING_SLICES: u64 = 64;

/// Reason why a tenant cannot join its GPU.
#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    /// The ledger cannot be opened.
    #[error("{}: {source}", folder.display())]
    Open {
        /// Folder of the ledger.
        folder: PathBuf,
        /// Cause.
        #[source]
        source: OpenError,
    },
    /// The record cannot be taken.
    #[error("{}: {source}", folder.display())]
    Join {
        /// Folder of the ledger.
        folder: PathBuf,
        /// Cause.
        #[source]
        source: JoinError,
    },
    /// The machine reports no id of this boot.
    #[error("cannot read the boot id: {0}")]
    Boot(#[from] std::io::Error),
}

/// Membership of a tenant in the ledger of its GPU.
#[derive(Clone, Debug)]
pub struct LedgerMembership {
    /// Record of the tenant.
    pub ledger: Arc<ParticipantHandle>,
    /// Configuration of the shared GPU.
    pub config: LedgerConfig,
    /// Time slices that this tenant took over from holders past their deadline.
    pub takeovers: Arc<Takeovers>,
}

impl MembershipError {
    /// Whether the error passes by itself: the ledger is being replaced, or its guard is held.
    fn is_transient(&self) -> bool {
        match self {
            MembershipError::Open { source, .. } => matches!(source, OpenError::Busy { .. }),
            MembershipError::Join { source, .. } => {
                matches!(source, JoinError::Replaced | JoinError::Busy(_))
            }
            MembershipError::Boot(_) => false,
        }
    }

    /// Returns what other pods must end before the join can succeed. Exiting instead would only cause restarts, with
    /// growing delays.
    fn blocked_by(&self) -> Option<&'static str> {
        match self {
            // The last pod still finishes its streams, for as long as its grace period lasts.
            MembershipError::Join { source: JoinError::NameInUse { .. }, .. } => {
                Some("the end of the previous pod of this tenant")
            }
            MembershipError::Join { source: JoinError::Overcommitted { .. }, .. } => {
                Some("its share of the GPU, which other tenants hold")
            }
            MembershipError::Open { source, .. } => match source {
                OpenError::VersionMismatch { .. } => {
                    Some("the end of the pods of another version on its GPU")
                }
                OpenError::IdentityMismatch { .. } => Some("the end of the pods of another claim on its GPU"),
                OpenError::Damaged { .. } => Some("the end of all pods on its GPU, whose ledger is damaged"),
                OpenError::SizeMismatch { .. }
                | OpenError::Busy { .. }
                | OpenError::InvalidClaimId { .. }
                | OpenError::Kernel { .. } => None,
            },
            MembershipError::Join { .. } | MembershipError::Boot(_) => None,
        }
    }
}

/// Retry schedule of a tenant that joins the ledger.
#[derive(Debug)]
pub struct JoinBackoff {
    /// Start of the retries of transient errors.
    retrying_since: Instant,
    /// What blocks the join, and since when.
    waiting_for: Option<(&'static str, Instant)>,
}

impl JoinBackoff {
    /// Starts the schedule now.
    pub fn new() -> JoinBackoff {
        JoinBackoff { retrying_since: Instant::now(), waiting_for: None }
    }

    /// Returns the delay before the next try after `error`.
    ///
    /// # Errors
    /// Returns `error` if it is permanent, or transient for longer than the limit.
    pub fn next_retry(&mut self, error: MembershipError) -> Result<Duration, MembershipError> {
        let Some(what) = error.blocked_by() else {
            let passes = error.is_transient() && self.retrying_since.elapsed() < JOIN_TIMEOUT;
            return if passes { Ok(JOIN_RETRY_MIN) } else { Err(error) };
        };
        let now = Instant::now();
        self.retrying_since = now;
        if self.waiting_for().is_none_or(|before| before != what) {
            tracing::info!(why = %error, "waiting for {what}");
            self.waiting_for = Some((what, now));
        }
        let long = self.waiting_for.is_some_and(|(_, since)| since.elapsed() >= JOIN_TIMEOUT);
        Ok(if long { JOIN_RETRY_MAX } else { JOIN_RETRY_MIN })
    }

    /// Returns a description of what blocks the join.
    pub fn waiting_for(&self) -> Option<&'static str> {
        self.waiting_for.map(|(what, _)| what)
    }
}

impl Default for JoinBackoff {
    fn default() -> JoinBackoff {
        JoinBackoff::new()
    }
}

impl LedgerMembership {
    /// Takes the tenant's record with as much of `share_bytes` as others leave, or with all or nothing if the GPU is
    /// isolated. Tries once. Tests inject `faults`.
    ///
    /// # Errors
    /// The ledger is unfit or full, a predecessor is live, or the share is not available. [`JoinBackoff`] decides
    /// whether to retry.
    pub fn join_ledger(
        config: &SidecarConfig,
        place: &LedgerConfig,
        faults: &LedgerFaults,
        share_bytes: u64,
    ) -> Result<LedgerMembership, MembershipError> {
        let identity = LedgerIdentity {
            boot_id: current_boot_id()?,
            claim_id: place.claim.clone(),
            capacity_bytes: config.gpu.memory_bytes,
            chunk_bytes: config.gpu.chunk_bytes,
        };
        let name = full_name(&config.namespace, &config.name);
        let folder = || place.folder.clone();
        let ledger = GpuLedger::open_with(&place.folder, &identity, faults.clone());
        let ledger = ledger.map_err(|source| MembershipError::Open { folder: folder(), source })?;
        // The floor is unknown until the first engine reports its activation costs.
        let least_bytes = if place.sharing == SharingRule::Isolated { share_bytes } else { 0 };
        let participant =
            ledger.join_with(&name, ShareRequest { floor_bytes: 0, share_bytes, min_bytes: least_bytes });
        let participant = participant.map_err(|source| MembershipError::Join { folder: folder(), source })?;
        Ok(LedgerMembership {
            ledger: Arc::new(participant),
            config: place.clone(),
            takeovers: Arc::default(),
        })
    }

    /// Returns the store of replies for this tenant's peers.
    pub fn pending_replies(&self, config: &SidecarConfig) -> PendingReplies {
        PendingReplies::new(self.ledger.clone(), &config.namespace, &config.name, config.gpu.chunk_bytes)
    }

    /// Returns the identity of this tenant in the ledger.
    pub fn peer(&self) -> Peer {
        self.ledger.peer()
    }

    /// Returns how the scheduler shares time on this GPU.
    pub fn sharing(&self) -> TimeSharing {
        match self.config.sharing {
            SharingRule::Isolated => TimeSharing::Exclusive,
            SharingRule::Spatial => TimeSharing::Spatial,
            SharingRule::Temporal { min_quantum_ms, max_quantum_ms, .. } => TimeSharing::Temporal(
                Quantum::new(ns(min_quantum_ms.min(max_quantum_ms)), ns(max_quantum_ms.max(1))),
            ),
        }
    }

    /// Whether tenants lend memory on this GPU.
    pub fn is_trading(&self) -> bool {
        self.config.sharing != SharingRule::Isolated
    }

    /// Returns the order of time slices, if the GPU is time-sliced.
    pub fn slice_order(&self) -> Option<LedgerOrder> {
        match self.config.sharing {
            SharingRule::Temporal { order: SliceOrder::RoundRobin, .. } => Some(LedgerOrder::RoundRobin),
            SharingRule::Temporal { order: SliceOrder::Priority, .. } => {
                Some(LedgerOrder::Priority { aging_slices: AGING_SLICES })
            }
            SharingRule::Spatial | SharingRule::Isolated => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_memory::gpu_ledger::LedgerError;

    use super::*;

    fn join_error(source: JoinError) -> MembershipError {
        MembershipError::Join { folder: "/n".into(), source }
    }

    #[test]
    fn blocking_errors_are_retried_and_permanent_ones_are_not() {
        let mut patience = JoinBackoff::new();
        let named = || join_error(JoinError::NameInUse { name: "n/a".into(), index: 0 });
        let busy = || join_error(JoinError::Busy(LedgerError::Busy { holder: String::new(), waited_ms: 1 }));
        assert_eq!(patience.next_retry(named()).unwrap(), JOIN_RETRY_MIN);
        assert_eq!(patience.waiting_for(), Some("the end of the previous pod of this tenant"));
        // The streams of the last pod took long.
        let long = JOIN_TIMEOUT + JOIN_RETRY_MIN;
        patience.waiting_for =
            patience.waiting_for.map(|(what, since)| (what, since.checked_sub(long).unwrap()));
        patience.retrying_since = patience.retrying_since.checked_sub(long).unwrap();
        assert_eq!(patience.next_retry(named()).unwrap(), JOIN_RETRY_MAX);
        assert_eq!(patience.next_retry(busy()).unwrap(), JOIN_RETRY_MIN, "that has its own time");
        let taken = JoinError::Overcommitted { what: "share", taken: 9, asked: 2, capacity: 10 };
        assert_eq!(patience.next_retry(join_error(taken)).unwrap(), JOIN_RETRY_MIN);
        assert_eq!(patience.waiting_for(), Some("its share of the GPU, which other tenants hold"));
        patience.retrying_since = patience.retrying_since.checked_sub(long).unwrap();
        assert!(patience.next_retry(busy()).is_err(), "it should have passed by now");
        assert!(patience.next_retry(join_error(JoinError::Full { records: 64 })).is_err());
    }

    #[test]
    fn ledger_in_use_is_retried_and_other_size_is_not() {
        let open = |source| MembershipError::Open { folder: "/n".into(), source };
        let text = || String::from("x");
        let waits = [
            (
                OpenError::VersionMismatch { found: 1, expected: 2 },
                "the end of the pods of another version on its GPU",
            ),
            (
                OpenError::IdentityMismatch { what: "claim", found: text(), expected: text() },
                "the end of the pods of another claim on its GPU",
            ),
            (OpenError::Damaged { what: text() }, "the end of all pods on its GPU, whose ledger is damaged"),
        ];
        for (source, what) in waits {
            let mut patience = JoinBackoff::new();
            let long = JOIN_TIMEOUT + JOIN_RETRY_MIN;
            patience.retrying_since = patience.retrying_since.checked_sub(long).unwrap();
            assert_eq!(patience.next_retry(open(source)).unwrap(), JOIN_RETRY_MIN);
            assert_eq!(patience.waiting_for(), Some(what));
        }
        let size = OpenError::SizeMismatch { what: "bytes a chunk", found: 1, expected: 2 };
        assert!(JoinBackoff::new().next_retry(open(size)).is_err());
    }
}
