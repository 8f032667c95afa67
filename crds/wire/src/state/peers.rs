//! Peers in a state: a tenant's memory and loans, its time slice, and its last use.

use serde::{Deserialize, Serialize};

use super::Percentiles;

/// A tenant among the peers of its GPU. `budget_bytes` = `share_bytes` + `borrowed_bytes` - `lent_bytes`, and
/// `held_bytes` exceeds it by no more than `in_transit_bytes`: the ledger is ahead of the scheduler by the moving
/// bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharingState {
    /// Nonce of this life of the tenant in the ledger file; 0 = not in it yet.
    pub instance: u64,
    /// Memory that it can hold without a loan, bytes: the share in the ledger or, while a smaller share is in
    /// force, the part of it that is not released yet.
    pub share_bytes: u64,
    /// Its assigned share, or its minimum if that is more, bytes. While `share_bytes` is less, others have not
    /// freed memory yet; while it is more, memory is being released.
    pub wanted_share_bytes: u64,
    /// What it can never lend while it is not hibernated, bytes.
    pub floor_bytes: u64,
    /// What it may hold now, bytes.
    pub budget_bytes: u64,
    /// What it could lend now without hurting a request, bytes.
    pub lendable_bytes: u64,
    /// What it has reserved in the ledger file, bytes.
    pub held_bytes: u64,
    /// Bytes that come to exist or go at this moment.
    pub in_transit_bytes: u64,
    /// Bytes of its share that it needs and that peers still hold: lent by a former instance of this tenant. A
    /// tenant that lacks its minimum is `Loading` until it has it.
    pub awaited_bytes: u64,
    /// What it waits for, in words; `None` = nothing. A tenant that is `Loading` and waits for its share, its floor
    /// or its place loads as soon as it has it.
    pub waits_for: Option<String>,
    /// Lent to peers, bytes.
    pub lent_bytes: u64,
    /// Borrowed from peers, bytes.
    pub borrowed_bytes: u64,
    /// The grants behind both, oldest first.
    pub grants: Vec<GrantState>,
    /// Its time slice; `None` = the GPU has none: all tenants run concurrently.
    #[serde(alias = "turn")]
    pub time_slice: Option<TimeSliceState>,
    /// Time from a step that lacks KV to the step that has it from peers, since the start: the search, the loan and
    /// its mapping. Excludes searches without a lender.
    pub grant: Percentiles,
    /// From the decision to revoke what is lent until all of it is here again, since the start.
    pub revoke: Percentiles,
    /// From having what came back of lent layers' memory until every layer is committed, since the start.
    pub wake: Percentiles,
}

impl SharingState {
    /// Whether the budget is what share and grants make of it, and no more is held, but for what is in transit.
    /// Never
    /// true by wrap-around.
    pub fn balances(&self) -> bool {
        let has = self.share_bytes.checked_add(self.borrowed_bytes);
        has.and_then(|has| has.checked_sub(self.lent_bytes)) == Some(self.budget_bytes)
            && self.held_bytes.saturating_sub(self.budget_bytes) <= self.in_transit_bytes
    }
}

/// One grant, as one of its two ends sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantState {
    /// Namespace of the tenant at the other end.
    pub namespace: String,
    /// Name of the tenant at the other end.
    pub name: String,
    /// Which end this is.
    pub direction: Direction,
    /// Name of the grant, given by its borrower.
    pub nonce: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Time to live, milliseconds from the moment of the state on; 0 = over, and the borrower vacates.
    pub expires_in_ms: u64,
}

/// End of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    /// This tenant lends.
    #[serde(alias = "Given")]
    Lent,
    /// This tenant borrows.
    #[serde(alias = "Taken")]
    Borrowed,
}

/// The time slices of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeSliceState {
    /// Whether it may run steps now.
    pub holds: bool,
    /// Rises with every hand-over on this GPU.
    pub epoch: u64,
    /// Tickets in the wait queue, its own included.
    pub waiting: u32,
    /// Total time in which it held the time slice, ns.
    pub held_ns_total: u64,
    /// Number of its time slices.
    #[serde(alias = "turns_total")]
    pub slices_total: u64,
    /// Time from the release of the time slice by another tenant, or from this one's ticket if that was drawn
    /// later, to holding the time slice, since the start.
    pub handover: Percentiles,
    /// Time from the request for the time slice to holding it, since the start.
    pub wait: Percentiles,
    /// Tenant that holds the time slice now, `namespace/name`; `None` = the time slice is free.
    pub holder: Option<String>,
    /// How long the holder is past its deadline, milliseconds; 0 = it is not.
    pub holder_overdue_ms: u64,
    /// Time slices that this tenant took over from a holder past its deadline, since the start.
    pub takeovers_total: u64,
    /// The last of them.
    pub last_takeover: Option<Takeover>,
    /// Time slices that another tenant took over from this one, since the start.
    #[serde(alias = "overtaken_total")]
    pub lost_total: u64,
    /// Tenants that were before this one in the wait queue and that it skipped because they did not run, since
    /// the
    /// start.
    pub skips_total: u64,
    /// The last of them.
    pub last_skip: Option<Skip>,
}

/// A tenant that was first in the wait queue, did not take its time slice, and was skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Skip {
    /// The tenant that was skipped, `namespace/name`.
    pub of: String,
    /// When, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
}

/// A time slice that was taken over from a holder past its deadline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Takeover {
    /// The holder, `namespace/name`.
    pub from: String,
    /// When, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// How long the holder was past its deadline, milliseconds.
    pub overdue_ms: u64,
}

/// When a tenant was last of use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Start of its inactivity (no time slice if the GPU has them, else no request), milliseconds since the Unix
    /// epoch; `None` = active.
    pub inactive_since_unix_ms: Option<u64>,
    /// When it last ran a step, milliseconds since the Unix epoch; `None` = never.
    pub last_used_unix_ms: Option<u64>,
    /// Expected time until its next request, by its past idle periods, milliseconds; 0 = it has requests, `None` =
    /// too few to estimate.
    pub next_use_in_ms: Option<u64>,
    /// Since when all its weights are on the GPU, milliseconds since the Unix epoch; `None` = they are not.
    pub resident_since_unix_ms: Option<u64>,
    /// Weight layers lent to peers: the last ones, so that it wakes front first.
    #[serde(alias = "absent_layers")]
    pub lent_layers: u16,
}
