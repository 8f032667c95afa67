//! Computes a lower bound on the cost of the rest of a plan: the multiple-choice knapsack over the objects not placed
//! yet, relaxed to fractions of choices.
//!
//! Only the lower convex hull of (resident bytes, cost) of each object matters. All objects start with their cheapest
//! choice. Then the swaps that save the most bytes for their cost are taken until the rest fits, the last one in part.
//! Sinha and Zoltners showed in 1979 that this is the optimum of the linear program.

use alloc::vec::Vec;

use super::problem::{Choice, Object};

/// One step along an object's hull: fewer resident bytes for a higher cost.
#[derive(Clone, Copy, Debug)]
struct Swap {
    object: u16,
    saved_bytes: u64,
    cost: u64,
}

impl Swap {
    /// Orders by cost per byte, ties by object, so that the order is deterministic.
    fn before(&self, other: &Swap) -> core::cmp::Ordering {
        let (this, that) = (
            u128::from(self.cost) * u128::from(other.saved_bytes),
            u128::from(other.cost) * u128::from(self.saved_bytes),
        );
        this.cmp(&that).then(self.object.cmp(&other.object))
    }
}

/// The relaxation for one kind of cost.
#[derive(Clone, Debug)]
pub struct Relaxation {
    /// Swaps of all objects, cheapest first.
    swaps: Vec<Swap>,
    /// For each index, the objects from it on with their cheapest choices: (resident bytes, cost).
    cheapest: Vec<(u64, u64)>,
}

impl Relaxation {
    /// Returns the relaxation of these objects, which will be placed in this order.
    pub fn new(objects: &[&Object], cost: impl Fn(&Choice) -> u64) -> Relaxation {
        let mut swaps = Vec::new();
        let mut cheapest = alloc::vec![(0, 0)];
        for (index, object) in objects.iter().enumerate().rev() {
            let hull = hull(object, &cost);
            let &(bytes, first_cost) = hull.first().expect("an object has choices");
            let &(rest_bytes, rest_cost) = cheapest.last().expect("the list begins with one choice");
            cheapest.push((bytes + rest_bytes, first_cost + rest_cost));
            swaps.extend(hull.windows(2).map(|pair| Swap {
                object: index as u16,
                saved_bytes: pair[0].0 - pair[1].0,
                cost: pair[1].1 - pair[0].1,
            }));
        }
        cheapest.reverse();
        swaps.sort_by(Swap::before);
        Relaxation { swaps, cheapest }
    }

    /// Returns the least cost at which the objects from `first` on fit into `capacity_bytes`, rounded up; `None` if
    /// they cannot fit.
    pub fn at_least(&self, first: usize, capacity_bytes: u64) -> Option<u64> {
        let (mut bytes, mut cost) = self.cheapest[first];
        let rest = self.swaps.iter().filter(|swap| usize::from(swap.object) >= first);
        for swap in rest {
            if bytes <= capacity_bytes {
                break;
            }
            let saved_bytes = swap.saved_bytes.min(bytes - capacity_bytes);
            let part = u128::from(swap.cost) * u128::from(saved_bytes);
            cost += part.div_ceil(u128::from(swap.saved_bytes)) as u64;
            bytes -= saved_bytes;
        }
        (bytes <= capacity_bytes).then_some(cost)
    }
}

/// Returns the lower convex hull of an object's choices, from the cheapest to the smallest.
fn hull(object: &Object, cost: &impl Fn(&Choice) -> u64) -> Vec<(u64, u64)> {
    let mut points: Vec<(u64, u64)> =
        object.choices.iter().map(|choice| (choice.resident_bytes, cost(choice))).collect();
    points.sort_by_key(|&(bytes, cost)| (cost, bytes));
    let mut hull: Vec<(u64, u64)> = Vec::new();
    for point in points {
        if hull.last().is_some_and(|last| point.0 >= last.0) {
            continue; // neither cheaper nor smaller than an earlier point
        }
        while hull.len() >= 2 && !is_below_line(hull[hull.len() - 2], hull[hull.len() - 1], point) {
            hull.pop();
        }
        hull.push(point);
    }
    hull
}

/// Whether `b` is below the line from `a` to `c`.
fn is_below_line(a: (u64, u64), b: (u64, u64), c: (u64, u64)) -> bool {
    let slope = |from: (u64, u64), to: (u64, u64)| (u128::from(to.1 - from.1), u128::from(from.0 - to.0));
    let ((rise_b, run_b), (rise_c, run_c)) = (slope(a, b), slope(a, c));
    rise_b * run_c < rise_c * run_b
}
