//! A plan to begin with: all objects give the same share of what they can give, then as much as fits is taken back.
//!
//! Equal shares are what one prefetch buffer per request hides best: a request that gave everything could fetch nothing
//! beside its own compute.

use alloc::vec::Vec;

use super::bytes_used::BytesUsed;
use super::search_order::SearchOrder;

/// Shares that are tried: so many of them are everything.
const SHARES: u64 = 128;

/// Choices that fit, by place, or none when this way finds none.
pub fn first(order: &SearchOrder<'_>) -> Option<Vec<u16>> {
    let nothing = even(order, 0);
    if order.fits(&nothing) {
        return Some(nothing);
    }
    let mut most = even(order, SHARES);
    if !order.fits(&most) {
        return descend(order, nothing);
    }
    let (mut too_little, mut enough) = (0, SHARES);
    while enough - too_little > 1 {
        let middle = u64::midpoint(too_little, enough);
        let chosen = even(order, middle);
        if order.fits(&chosen) { (enough, most) = (middle, chosen) } else { too_little = middle }
    }
    let mut room = BytesUsed::new(order, &most);
    (0..most.len()).for_each(|place| room.take_back(place));
    Some(room.into_chosen())
}

/// Each object's choice with at least this share of the most work that it can make.
fn even(order: &SearchOrder<'_>, share: u64) -> Vec<u16> {
    let choice = |(place, ranked): (usize, &Vec<u16>)| {
        let work_ns = |index: u16| order.objects[place].choices[usize::from(index)].work_ns();
        let (first, last) = (ranked[0], ranked[ranked.len() - 1]);
        let wanted_ns = work_ns(first) + (work_ns(last) - work_ns(first)) * share / SHARES;
        ranked[ranked.partition_point(|&index| work_ns(index) < wanted_ns)]
    };
    order.ranked.iter().enumerate().map(choice).collect()
}

/// Where giving everything does not fit, as all of a layer would be in the prefetch buffer: object by object, whatever makes
/// all of them smallest.
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
