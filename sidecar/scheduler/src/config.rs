//! Limits of the scheduler.

use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::Quantum;

/// Order among waiting requests of the same priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Order of arrival.
    #[default]
    FirstCome,
    /// Fewest tokens left to compute first (OrbitFlow's SRTF).
    ShortestRemaining,
}

/// How the tenants of a GPU share its time: what the scheduler needs of the directive's `Sharing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSharing {
    /// This tenant owns the GPU or a fixed partition of it.
    #[default]
    Exclusive,
    /// All tenants run at the same time.
    Spatial,
    /// One tenant runs at a time, for a quantum.
    Temporal(Quantum),
}

/// The tenant's identity among its peers and its trading terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its participant in the GPU ledger.
    pub own_peer: Peer,
    /// Initial terms by which it lends and borrows.
    pub terms: NegotiationPolicy,
}

/// Limits of the scheduler. Counts, no units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_tokens: u32,
    /// Tokens of one step over all sequences; bounds a prefill chunk.
    pub max_step_tokens: u32,
    /// Sequences that run at once; equals the rows of the shared block table.
    pub max_sequences: u32,
    /// Requests that may wait. Further requests are rejected.
    pub max_queued: u32,
    /// Order among waiting requests.
    pub order: QueueOrder,
    /// How tenants share the GPU's time.
    pub sharing: TimeSharing,
    /// Peers with which memory is traded. `None`: memory is not traded.
    pub membership: Option<Membership>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_model_tokens: 2048,
            max_step_tokens: 512,
            max_sequences: 64,
            max_queued: 1024,
            order: QueueOrder::FirstCome,
            sharing: TimeSharing::Exclusive,
            membership: None,
        }
    }
}
