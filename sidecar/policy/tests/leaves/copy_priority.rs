//! Tests the order of copies on the link with OrbitFlow's Fig. 3, computed block by block, and the background deadline.

use sluice_policy::copy_priority::{BACKGROUND_DEADLINE_NS, CopyDeadlines, CopyPriority};
use sluice_policy::ids::{ActionId, LayerId, Nanos};

const LAYERS: u64 = 9;
/// A block takes one unit of time, a layer's compute three.
const COMPUTE: u64 = 3;

/// A request with some offloaded layers and one buffer: its fetches pause while an offloaded layer is computed.
#[derive(Debug)]
struct Request {
    layer_blocks: u64,
    /// Offloaded layers from 0; those of the next step follow those of this one.
    away: Vec<u64>,
    /// Number of fetched layers, and whether the last one is still in the buffer.
    fetched: usize,
    held: bool,
    /// Blocks of the next layer that have arrived, and since when they could be copied.
    come: u64,
    since: u64,
}

#[derive(Debug)]
struct Step {
    requests: Vec<Request>,
    by_deadline: bool,
    now: u64,
}

impl Step {
    /// The figure counts layers from 1.
    fn new(layer_blocks: [u64; 2], away: [&[u64]; 2], by_deadline: bool) -> Step {
        let request = |(layer_blocks, away): (u64, &[u64])| {
            let next = away.iter().map(|layer| layer + LAYERS);
            let away = away.iter().copied().chain(next).map(|layer| layer - 1).collect();
            Request { layer_blocks, away, fetched: 0, held: false, come: 0, since: 0 }
        };
        Step { requests: layer_blocks.into_iter().zip(away).map(request).collect(), by_deadline, now: 0 }
    }

    /// Moves one block over the link, of the request with the lowest rank.
    fn unit(&mut self) {
        let timetable = CopyDeadlines::new(Nanos(0), &[COMPUTE; LAYERS as usize], 0);
        let rank = |(order, request): (usize, &Request)| {
            let layer = request.away.get(request.fetched).filter(|_| !request.held)?;
            let due = timetable.layer(LayerId((layer % LAYERS) as u16), *layer >= LAYERS);
            let due = Some(due).filter(|_| self.by_deadline);
            Some((CopyPriority::new(ActionId(order as u64), due, Nanos(request.since)), order))
        };
        let next = self.requests.iter().enumerate().filter_map(rank).min();
        self.now += 1;
        let Some(request) = next.map(|(_, order)| &mut self.requests[order]) else { return };
        request.come += 1;
        if request.come == request.layer_blocks {
            (request.held, request.come) = (true, 0);
            request.fetched += 1;
        }
    }

    /// Returns the time units for which compute waited.
    fn stall(mut self) -> u64 {
        for layer in 0..LAYERS {
            while self.requests.iter().any(|one| !one.held && one.away.get(one.fetched) == Some(&layer)) {
                self.unit();
            }
            (0..COMPUTE).for_each(|_| self.unit());
            for one in &mut self.requests {
                if one.held && one.away[one.fetched - 1] == layer {
                    (one.held, one.since) = (false, self.now);
                }
            }
        }
        self.now - LAYERS * COMPUTE
    }
}

const THIRDS: &[u64] = &[3, 6, 9];

#[test]
fn steps_of_orbitflows_figure_3_stall_as_it_says() {
    let stall = |layer_blocks, away| Step::new(layer_blocks, away, true).stall();
    assert_eq!(stall([3, 6], [THIRDS, THIRDS]), 9);
    assert_eq!(stall([3, 6], [&[], THIRDS]), 0);
    assert_eq!(stall([3, 6], [&[4, 8], THIRDS]), 0);
    assert_eq!(stall([4, 6], [THIRDS, THIRDS]), 12);
    assert_eq!(stall([4, 6], [&[4, 8], THIRDS]), 2);
}

#[test]
fn in_order_of_arrival_its_third_layer_waits_for_the_fourth() {
    // The first request's three blocks precede the other's six, which are needed at 6 and arrive at 9. Afterwards
    // compute never waits: layer 6 arrives at 18, layer 8 at 21 and layer 9 at 27.
    assert_eq!(Step::new([3, 6], [&[4, 8], THIRDS], false).stall(), 3);
}

#[test]
fn background_copy_is_not_starved() {
    let (since, order) = (Nanos(1_000), ActionId(5));
    let nobody = CopyPriority::new(order, None, since);
    let needed = |ns, order| CopyPriority::new(ActionId(order), Some(Nanos(ns)), Nanos(0));
    assert!(needed(1_000 + BACKGROUND_DEADLINE_NS - 1, 9) < nobody);
    assert!(nobody < needed(1_000 + BACKGROUND_DEADLINE_NS, 9), "a tie goes to who was ordered first");
    assert!(needed(1_000 + BACKGROUND_DEADLINE_NS, 4) < nobody);
    assert!(nobody < needed(1_000 + BACKGROUND_DEADLINE_NS + 1, 0));
    assert!(
        nobody < CopyPriority::new(ActionId(0), None, Nanos(1_001)),
        "copies that no request needs go in their order"
    );
}

#[test]
fn layer_starts_after_earlier_layers() {
    let timetable = CopyDeadlines::new(Nanos(100), &[5, 7, 11], 2);
    let at = |layer, next| timetable.layer(LayerId(layer), next).0;
    assert_eq!([0, 1, 2].map(|layer| at(layer, false)), [100, 105, 112]);
    assert_eq!([0, 1, 2].map(|layer| at(layer, true)), [125, 130, 137]);
    assert_eq!((at(3, false), at(u16::MAX, false)), (125, 125), "the end");
    let slow = CopyDeadlines::new(Nanos(9), &[u64::MAX; 2], u64::MAX);
    assert_eq!(slow.layer(LayerId(1), true), Nanos(u64::MAX));
    let unknown = CopyDeadlines::new(Nanos(9), &[0; 3], 0);
    assert_eq!(
        unknown.layer(LayerId(2), true),
        Nanos(9),
        "as long as nothing was measured all are due at once"
    );
}
