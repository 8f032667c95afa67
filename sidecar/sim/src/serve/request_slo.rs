//! [`RequestSlo`].

/// Objectives for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSlo {
    /// Time to first token, nanoseconds.
    pub ttft_ns: u64,
    /// Time between two delivered tokens, nanoseconds.
    pub tbt_ns: u64,
}

impl Default for RequestSlo {
    fn default() -> Self {
        RequestSlo { ttft_ns: 5_000_000_000, tbt_ns: 200_000_000 }
    }
}
