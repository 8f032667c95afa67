//! Limits of the scheduler.

use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::Quantum;

/// Order among waiting requests of the same priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// First come, first served.
    #[default]
    FirstCome,
    /// Fewest tokens still to compute first (OrbitFlow's SRTF).
    ShortestRemaining,
}

/// How the tenants of a GPU share its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// The GPU, or a fixed part of it, is this tenant's.
    #[default]
    Exclusive,
    /// All run at once.
    Spatial,
    /// One at a time, for a quantum.
    Temporal(Quantum),
}

/// A tenant's place among its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Its record in the ledger file.
    pub own_peer: Peer,
    /// By which terms it trades at first.
    pub terms: NegotiationPolicy,
}

/// Limits of the scheduler. Counts, no units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Longest sequence, prompt and output together, in tokens.
    pub max_model_tokens: u32,
    /// Tokens of one step, over all sequences: the bound of a prefill chunk.
    pub max_step_tokens: u32,
    /// Sequences that run at once: rows of the shared block table.
    pub max_sequences: u32,
    /// Requests that may wait. One more is refused.
    pub max_queued: u32,
    /// Order among waiting requests.
    pub order: QueueOrder,
    /// How the GPU's time is shared.
    pub sharing: Sharing,
    /// Neighbours with whom memory is traded; none where everybody keeps to what it has.
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
            sharing: Sharing::Exclusive,
            membership: None,
        }
    }
}
