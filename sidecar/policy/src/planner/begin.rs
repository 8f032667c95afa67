//! A plan to begin with: all objects give the same share of what they can give, then as much as fits is taken back.
//!
//! Equal shares are what one prefetch buffer per request hides best: a request that gave everything could fetch nothing
//! beside its own compute.

use alloc::vec::Vec;

use super::problem::{Object, Problem};

/// Shares that are tried: so many of them are everything.
const SHARES: u64 = 128;

/// Choices that fit, or none when this way finds none.
pub fn first(problem: &Problem) -> Option<Vec<u16>> {
    let ranked: Vec<Vec<u16>> = problem.objects.iter().map(by_work).collect();
    let fits = |chosen: &[u16]| problem.bytes_of(chosen) <= problem.capacity_bytes;
    let nothing = even(problem, &ranked, 0);
    if fits(&nothing) {
        return Some(nothing);
    }
    let mut most = even(problem, &ranked, SHARES);
    if !fits(&most) {
        return descend(problem, &ranked, nothing);
    }
    let (mut too_little, mut enough) = (0, SHARES);
    while enough - too_little > 1 {
        let middle = u64::midpoint(too_little, enough);
        let chosen = even(problem, &ranked, middle);
        if fits(&chosen) { (enough, most) = (middle, chosen) } else { too_little = middle }
    }
    take_back(problem, &ranked, &mut most);
    Some(most)
}

/// An object's choices, the least link work first, of equals the smallest.
pub(super) fn by_work(object: &Object) -> Vec<u16> {
    let mut ranked: Vec<(u64, u64, u16)> = (object.choices.iter().zip(0..))
        .map(|(choice, index)| (choice.work_ns(), choice.resident_bytes, index))
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, _, index)| index).collect()
}

/// Each object's choice with at least this share of the most work that it can make.
fn even(problem: &Problem, ranked: &[Vec<u16>], share: u64) -> Vec<u16> {
    let choice = |(object, ranked): (&Object, &Vec<u16>)| {
        let work_ns = |index: u16| object.choices[usize::from(index)].work_ns();
        let (first, last) = (ranked[0], ranked[ranked.len() - 1]);
        let wanted_ns = work_ns(first) + (work_ns(last) - work_ns(first)) * share / SHARES;
        ranked[ranked.partition_point(|&index| work_ns(index) < wanted_ns)]
    };
    problem.objects.iter().zip(ranked).map(choice).collect()
}

/// Gives every object, one after another, less work for as long as all fits.
fn take_back(problem: &Problem, ranked: &[Vec<u16>], chosen: &mut [u16]) {
    for (object, ranked) in ranked.iter().enumerate() {
        let rank = ranked.iter().position(|&choice| choice == chosen[object]).expect("it is one of them");
        for &less in ranked[..rank].iter().rev() {
            let before = core::mem::replace(&mut chosen[object], less);
            if problem.bytes_of(chosen) > problem.capacity_bytes {
                chosen[object] = before;
                break;
            }
        }
    }
}

/// Where giving everything does not fit, as all of a layer would be in the prefetch buffer: object by object, whatever makes
/// all of them smallest.
fn descend(problem: &Problem, ranked: &[Vec<u16>], mut chosen: Vec<u16>) -> Option<Vec<u16>> {
    loop {
        let before = problem.bytes_of(&chosen);
        for (object, ranked) in ranked.iter().enumerate() {
            let bytes = |choice: u16| {
                let mut tried = chosen.clone();
                tried[object] = choice;
                problem.bytes_of(&tried)
            };
            chosen[object] = ranked.iter().copied().min_by_key(|&choice| bytes(choice))?;
        }
        let bytes = problem.bytes_of(&chosen);
        if bytes <= problem.capacity_bytes {
            return Some(chosen);
        }
        if bytes == before {
            return None;
        }
    }
}
