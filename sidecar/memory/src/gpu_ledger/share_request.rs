//! The share that a joining participant requests.

/// Share that a joining participant requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareRequest {
    /// Bytes that it never lends; 0 = not known yet.
    pub floor_bytes: u64,
    /// Requested share, bytes.
    pub share_bytes: u64,
    /// Smallest acceptable share, bytes; the floor applies if it is larger.
    pub min_bytes: u64,
}
