//! Builds an initial plan: all objects offload the same share of their maximum, then take back as much as fits.
//!
//! One prefetch buffer per request hides equal shares best: a request that offloads everything could fetch nothing
//! during its own compute.

use alloc::vec::Vec;

use super::bytes_used::BytesUsed;
use super::search_order::SearchOrder;

/// Number of share steps tried; this number of steps is everything.
const SHARES: u64 = 128;

/// Returns choices that fit, by position; `None` if this method finds none.
pub fn first(order: &SearchOrder<'_>) -> Option<Vec<u16>> {
    let nothing = even(order, 0);
    if order.fits(&nothing) {
        return Some(nothing);
    }
    let mut largest = even(order, SHARES);
    if !order.fits(&largest) {
        return descend(order, nothing);
    }
    let (mut too_little, mut enough) = (0, SHARES);
    while enough - too_little > 1 {
        let middle = u64::midpoint(too_little, enough);
        let chosen = even(order, middle);
        if order.fits(&chosen) { (enough, largest) = (middle, chosen) } else { too_little = middle }
    }
    let mut room = BytesUsed::new(order, &largest);
    (0..largest.len()).for_each(|place| room.take_back(place));
    Some(room.into_chosen())
}

/// Returns each object's choice with at least this share of its maximum work.
fn even(order: &SearchOrder<'_>, share: u64) -> Vec<u16> {
    let choice = |(place, ranked): (usize, &Vec<u16>)| {
        let work_ns = |index: u16| order.objects[place].choices[usize::from(index)].work_ns();
        let (first, last) = (ranked[0], ranked[ranked.len() - 1]);
        let wanted_ns = work_ns(first) + (work_ns(last) - work_ns(first)) * share / SHARES;
        ranked[ranked.partition_point(|&index| work_ns(index) < wanted_ns)]
    };
    order.ranked.iter().enumerate().map(choice).collect()
}

/// Handles problems in which offloading everything does not fit, because the prefetch buffer would hold all of a layer:
/// chooses, object by object, the choice with the smallest total.
fn descend(order: &SearchOrder<'_>, mut chosen: Vec<u16>) -> Option<Vec<u16>> {
    loop {
        let before = order.bytes_of(&chosen);
        for (place, ranked) in order.ranked.iter().enumerate() {
            let bytes = |choice: u16| {
                let mut tried = chosen.clone();
                tried[place] = choice;
                order.bytes_of(&tried)
            };
            chosen[place] = ranked.iter().copied().min_by_key(|&choice| bytes(choice))?;
        }
        if order.fits(&chosen) {
            return Some(chosen);
        }
        if order.bytes_of(&chosen) == before {
            return None;
        }
    }
}
