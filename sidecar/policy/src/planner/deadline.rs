//! Earliest deadline first: requests share KV as their tokens fall due (`Unified`).
//!
//! A request that runs makes tokens sooner than its client reads them; what is made ahead is its deposit (OrbitFlow 4.4), and its
//! deadline is when that is used up. One that waits for its first token has the objective for that. Who is due sooner goes first;
//! where it does not fit, those whose deposits last for longest keep their KV and wait, until they are due. Nobody is late for
//! that, so of all remedies that use the link it costs least, except for own layers that hide.
//!
//! A margin keeps requests from changing places all the time: each of those who make room must be due later by at least the steps
//! over which losses are compared.
//!
//! Source: ours, over OrbitFlow's Pause-Resume and Token-Deposit; the order is that of Liu and Layland, 1973.

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::ids::{Nanos, RequestId};

/// A running request that may be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Which one.
    pub id: RequestId,
    /// Until when its client has something to read.
    pub buffered_until: Nanos,
    /// By which the more important go first.
    pub priority: i32,
    /// Columns of KV that nobody else uses.
    pub columns: u32,
}

/// Room that somebody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoomRequest {
    /// Columns.
    pub columns: u32,
    /// Who makes room has something to read until then at least.
    pub buffered_until: Nanos,
    /// And is no more important than this.
    pub priority: i32,
    /// Columns that the host tier has places for.
    pub host_places: u32,
}

/// Those who make room, who has most in store first. `None` = they do not hold so much, or have no place to leave it. Of equals the
/// youngest goes.
pub fn make_room(wanted: &RoomRequest, holders: &[Holder]) -> Option<Vec<RequestId>> {
    let can_wait = |one: &&Holder| {
        one.buffered_until >= wanted.buffered_until && one.priority <= wanted.priority && one.columns > 0
    };
    let mut later: Vec<_> = holders.iter().filter(can_wait).collect();
    later.sort_by_key(|one| Reverse((one.buffered_until, one.id)));
    let (mut room, mut places, mut going) = (0_u32, wanted.host_places, Vec::new());
    for one in later {
        if room >= wanted.columns {
            break;
        }
        if let Some(left) = places.checked_sub(one.columns) {
            (room, places) = (room + one.columns, left);
            going.push(one.id);
        }
    }
    (room >= wanted.columns && !going.is_empty()).then_some(going)
}
