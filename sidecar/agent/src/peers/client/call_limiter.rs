//! Limits the concurrent loan calls per peer.
//!
//! A tenant renews each of its loans and may have hundreds. Each running call uses a connection, and an admin port
//! accepts few. Without a limit, the operator and users could not reach the peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent calls to one peer. A peer answers within one or two milliseconds.
pub const MAX_CONCURRENT_CALLS: usize = 4;

/// Semaphores by address of the peer.
#[derive(Debug, Default)]
pub struct CallLimiter(Mutex<BTreeMap<SocketAddr, Arc<Semaphore>>>);

impl CallLimiter {
    /// Waits until fewer than [`MAX_CONCURRENT_CALLS`] calls to `address` run. The call counts until the permit is
    /// dropped.
    pub async fn acquire(&self, address: SocketAddr) -> OwnedSemaphorePermit {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // An entry without callers is the same as a new one.
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            lanes.entry(address).or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS))).clone()
        };
        lane.acquire_owned().await.expect("a lane is never closed")
    }
}
