//! How many calls about loans a neighbour gets at once.
//!
//! A tenant renews each of its loans, and may have hundreds. Each call that runs has a connection, and an admin port takes
//! few of them: without a bound the operator and people could not reach the neighbour any more.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most calls to one neighbour at once; a neighbour answers within a millisecond or two.
pub const MAX_CONCURRENT_CALLS: usize = 4;

/// The calls that run, by the neighbour's address.
#[derive(Debug, Default)]
pub struct CallLimiter(Mutex<BTreeMap<SocketAddr, Arc<Semaphore>>>);

impl CallLimiter {
    /// Waits until fewer than [`MOST_AT_ONCE`] calls to `address` run. The call runs until the result is dropped.
    pub async fn acquire(&self, address: SocketAddr) -> OwnedSemaphorePermit {
        let lane = {
            let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // A lane without callers is as good as a new one.
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            lanes.entry(address).or_insert_with(|| Arc::new(Semaphore::new(MAX_CONCURRENT_CALLS))).clone()
        };
        lane.acquire_owned().await.expect("a lane is never closed")
    }
}
