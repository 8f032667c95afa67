//! Time limits of a stalled connection.

use std::time::Duration;

/// Time limits of a stalled connection.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Time for a request's head, from its first byte; for the first request from the start of the connection.
    pub head: Duration,
    /// Time between the end of a response and the next request; at least `head`.
    pub idle: Duration,
    /// Time without a written byte of a response.
    pub write: Duration,
}

impl Timeouts {
    /// Timeouts for tenants' clients. Load balancers keep idle connections for up to 600 s. If this side closed first,
    /// a POST could arrive at a closed connection, and a POST must not be resent.
    pub fn for_clients() -> Timeouts {
        Timeouts { idle: Duration::from_secs(620), ..Timeouts::default() }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let head = Duration::from_secs(10);
        Timeouts { head, idle: head, write: Duration::from_secs(60) }
    }
}
