//! Earliest deadline first: assigns KV memory by token deadlines (`Unified`).
//!
//! A running request generates tokens faster than its client reads them. The surplus is its deposit (OrbitFlow 4.4),
//! and its deadline is the time when the deposit is used up. A request without its first token has the TTFT objective
//! as deadline. The earliest deadline is served first; if it does not fit, the requests with the longest deposits wait
//! with their KV until they are due. That makes no token late, so among the reclaim options that use the link it has
//! the lowest cost, except for own layers whose streaming is hidden.
//!
//! A margin prevents requests from displacing each other repeatedly: a paused request must be due later by at least the
//! time over which costs are compared.
//!
//! Source: ours, based on OrbitFlow's Pause-Resume and Token-Deposit; the order is that of Liu and Layland, 1973.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::ids::{Nanos, RequestId};

/// A running request that may be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The request.
    pub id: RequestId,
    /// Until when its client has tokens to read.
    pub buffered_until: Nanos,
    /// Its priority; higher is more important.
    pub priority: i32,
    /// KV blocks of KV that no other request shares.
    pub kv_blocks: u32,
}

/// A demand for KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomRequest {
    /// KV blocks needed.
    pub kv_blocks: u32,
    /// Paused requests must have tokens to read at least until then.
    pub buffered_until: Nanos,
    /// Maximum priority of paused requests.
    pub priority: i32,
    /// Free KV blocks of the host tier.
    pub host_places: u32,
}

/// Returns the requests to pause, the one with the longest deposit first, of equals the youngest. `None` if they do not
/// hold enough, or the host tier has no space for their KV.
pub fn make_room(wanted: &RoomRequest, holders: &[Holder]) -> Option<Vec<RequestId>> {
    let can_pause = |one: &&Holder| {
        one.buffered_until >= wanted.buffered_until && one.priority <= wanted.priority && one.kv_blocks > 0
    };
    let mut later: Vec<_> = holders.iter().filter(can_pause).collect();
    later.sort_by_key(|one| Reverse((one.buffered_until, one.id)));
    let (mut room, mut places, mut paused) = (0_u32, wanted.host_places, Vec::new());
    for one in later {
        if room >= wanted.kv_blocks {
            break;
        }
        if let Some(left) = places.checked_sub(one.kv_blocks) {
            (room, places) = (room + one.kv_blocks, left);
            paused.push(one.id);
        }
    }
    (room >= wanted.kv_blocks && !paused.is_empty()).then_some(paused)
}
