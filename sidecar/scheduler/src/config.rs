//! Limits of the scheduler.

/// Order among waiting requests of the same priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// First come, first served.
    #[default]
    FirstCome,
    /// Fewest tokens still to compute first (OrbitFlow's SRTF).
    ShortestRemaining,
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
    pub order: Order,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            max_model_tokens: 2048,
            max_step_tokens: 512,
            max_sequences: 64,
            max_queued: 1024,
            order: Order::FirstCome,
        }
    }
}
