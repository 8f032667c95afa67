//! Tests which requests are paused for another one, by deadline.

use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::placement_planner::deadline::{Holder, RoomRequest, make_room};
use sluice_policy::placement_planner::pause::Pauses;

const HOLDERS: [Holder; 4] = [holder(1, 100, 10), holder(2, 400, 10), holder(3, 300, 25), holder(4, 400, 5)];

const fn holder(id: u64, until: u64, kv_blocks: u32) -> Holder {
    Holder { id: RequestId(id), buffered_until: Nanos(until), priority: id as i32 % 2, kv_blocks }
}

fn paused(kv_blocks: u32, until: u64, host_places: u32) -> Vec<u64> {
    paused_for(i32::MAX, kv_blocks, until, host_places)
}

fn paused_for(priority: i32, kv_blocks: u32, until: u64, host_places: u32) -> Vec<u64> {
    let wanted = RoomRequest { kv_blocks, buffered_until: Nanos(until), priority, host_places };
    make_room(&wanted, &HOLDERS).unwrap_or_default().into_iter().map(|id| id.0).collect()
}

#[test]
fn largest_buffer_is_paused_first() {
    assert_eq!(paused(5, 0, 100), [4], "of equals the youngest");
    assert_eq!(paused(6, 0, 100), [4, 2]);
    assert_eq!(paused(16, 0, 100), [4, 2, 3]);
    assert_eq!(paused(50, 0, 100), [4, 2, 3, 1]);
}

#[test]
fn no_request_is_paused_without_benefit() {
    assert!(paused(51, 0, 100).is_empty(), "all together hold 50");
    assert!(paused(41, 101, 100).is_empty(), "the first has too little in store, and the others hold 40");
    assert_eq!(paused(15, 400, 100), [4, 2], "as much as is asked for is enough");
    assert!(paused(0, 0, 100).is_empty(), "nothing is wanted");
}

#[test]
fn request_without_host_space_is_not_paused() {
    assert_eq!(paused(15, 0, 20), [4, 2]);
    assert!(paused(16, 0, 20).is_empty());
    assert_eq!(
        paused(10, 0, 9),
        [] as [u64; 0],
        "the first leaves four places, and no other request holds so little"
    );
    assert!(paused(1, 0, 0).is_empty());
}

#[test]
fn no_pause_for_lower_priority_or_without_own_kv() {
    assert_eq!(paused_for(0, 15, 0, 100), [4, 2], "1 and 3 are of priority 1");
    assert!(paused_for(0, 16, 0, 100).is_empty());
    let wanted = RoomRequest { kv_blocks: 1, buffered_until: Nanos(0), priority: 0, host_places: 9 };
    assert_eq!(make_room(&wanted, &[holder(2, 100, 0)]), None, "all that it uses others use too");
}

#[test]
fn buffered_tokens_do_not_count_as_pause() {
    let mut pauses = Pauses::new(100);
    let id = RequestId(1);
    pauses.pause(id, Nanos(5_000));
    assert_eq!((pauses.total_ns(id, Nanos(4_000)), pauses.immune(id, Nanos(5_099))), (0, false));
    assert!(pauses.immune(id, Nanos(5_100)), "the bound begins when the store is empty");
    pauses.resume(id, Nanos(5_030));
    assert_eq!(pauses.total_ns(id, Nanos(9_000)), 30);
}
