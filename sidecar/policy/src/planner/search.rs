//! The choices with the least time, and among those the fewest link bytes: branch and bound, depth first, one object a level.
//!
//! A node's bound is the larger of the batch's compute and the link work that its placed objects have and the others have at
//! least ([`super::relax`]): every transfer of a step ends within it. The bound on bytes is of the same kind and breaks ties.
//! Objects that are alike are interchangeable, so of their permutations one is searched.

use alloc::vec::Vec;

use super::begin;
use super::order::Order;
use super::problem::{Object, Problem};
use super::relax::Relaxation;
use super::steps;

/// Node expansions of a plan: 16 requests with 80 layers stay within a millisecond (`planner_speed`).
pub const DEFAULT_EXPANSIONS: u32 = 16;

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The index of the choice for each object of the problem.
    pub chosen: Vec<u16>,
    /// What it costs.
    pub cost: Cost,
    /// No plan is faster than this, nanoseconds. Equal to the plan's time when it is proven to be the fastest.
    pub bound_ns: u64,
    /// Nodes that were expanded.
    pub expansions: u32,
    /// The whole tree was searched or excluded, so that no plan is better in time, then bytes.
    pub optimal: bool,
}

impl Plan {
    /// How much faster another plan might be, permille of this plan's time, rounded up.
    pub fn gap_permille(&self) -> u64 {
        let slack_ns = self.cost.time_ns - self.bound_ns;
        (slack_ns * 1000).div_ceil(self.cost.time_ns.max(1))
    }
}

/// The objectives within one batch, the first first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Time of a step, nanoseconds.
    pub time_ns: u64,
    /// Bytes into the device in each step.
    pub link_bytes: u64,
}

/// No placement was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// There is none: the objects do not fit, however they are placed.
    Proven,
    /// The budget ended before one was found.
    OutOfBudget,
}

/// The best placement of all objects that a budget of node expansions finds.
///
/// # Errors
/// When none was found.
pub fn plan(problem: &Problem, budget: u32) -> Result<Plan, Misfit> {
    plan_with(problem, budget, steps::mean_ns)
}

/// The same with another model of a step's time. Bounds hold for any model in which a step takes at least its compute and at
/// least the work of its transfers.
///
/// # Errors
/// When none was found.
pub fn plan_with(
    problem: &Problem,
    budget: u32,
    time_ns: impl Fn(&Problem, &[u16]) -> u64,
) -> Result<Plan, Misfit> {
    let order = Order::new(problem);
    let mut search = Search::new(&order, budget, time_ns);
    search.begin();
    search.descend(0);
    let optimal = search.open_ns == u64::MAX;
    let Some((cost, found)) = search.best else {
        return Err(if optimal { Misfit::Proven } else { Misfit::OutOfBudget });
    };
    let bound_ns = search.open_ns.min(cost.time_ns);
    Ok(Plan { chosen: order.by_index(&found), cost, bound_ns, expansions: budget - search.left, optimal })
}

struct Search<'a, T> {
    order: &'a Order<'a>,
    time_ns: T,
    compute_ns: u64,
    by_work: Relaxation,
    by_bytes: Relaxation,
    path: Placed,
    best: Option<(Cost, Vec<u16>)>,
    /// Expansions that may still be made.
    left: u32,
    /// The least bound of a node that was left for want of budget.
    open_ns: u64,
}

/// The objects that a path of the tree has placed.
#[derive(Clone, Debug)]
struct Placed {
    chosen: Vec<u16>,
    resident_bytes: u64,
    work_ns: u64,
    link_bytes: u64,
    /// Absent bytes of each layer, for the prefetch buffer.
    absent: Vec<u64>,
}

impl<'a, T: Fn(&Problem, &[u16]) -> u64> Search<'a, T> {
    fn new(order: &'a Order<'a>, budget: u32, time_ns: T) -> Self {
        Search {
            order,
            time_ns,
            compute_ns: order.problem.compute_total_ns(),
            by_work: Relaxation::new(&order.objects, |choice| choice.work_ns()),
            by_bytes: Relaxation::new(&order.objects, |choice| choice.link_bytes),
            path: Placed::none(order.problem.compute_ns.len()),
            best: None,
            left: budget,
            open_ns: u64::MAX,
        }
    }

    /// The plan to beat.
    fn begin(&mut self) {
        let Some(chosen) = begin::first(self.order) else { return };
        let by_index = self.order.by_index(&chosen);
        let choices = self.order.problem.choices_of(&by_index);
        let link_bytes = choices.map(|choice| choice.link_bytes).sum();
        self.best = Some((Cost { time_ns: self.time_of(&chosen), link_bytes }, chosen));
    }

    fn time_of(&self, chosen: &[u16]) -> u64 {
        (self.time_ns)(self.order.problem, &self.order.by_index(chosen))
    }

    fn descend(&mut self, depth: usize) {
        let Some(bound) = self.bound(depth) else { return };
        if self.best.as_ref().is_some_and(|(best, _)| *best <= bound) {
            return;
        }
        if depth == self.order.objects.len() {
            return self.take_leaf();
        }
        if self.left == 0 {
            self.open_ns = self.open_ns.min(bound.time_ns);
            return;
        }
        self.left -= 1;
        self.branch(depth);
    }

    /// Tries the choices of one object, those first that are nearest to the best plan's.
    fn branch(&mut self, depth: usize) {
        let ranks = self.order.ranked[depth].len();
        let from = self.first_of_alike(depth);
        let begin =
            self.best.as_ref().map_or(0, |(_, chosen)| self.order.rank(depth, chosen[depth])).max(from);
        let nearest = (0..ranks).flat_map(|away| [begin.checked_sub(away + 1), Some(begin + away)]);
        for rank in nearest.flatten().filter(|&rank| from <= rank && rank < ranks) {
            let choice = self.order.ranked[depth][rank];
            self.path.push(self.order.objects[depth], choice);
            self.descend(depth + 1);
            self.path.pop(self.order.objects[depth]);
        }
    }

    /// The first choice to try, by rank: an object like the one before it is never placed with less work.
    fn first_of_alike(&self, depth: usize) -> usize {
        if self.order.alike[depth] { self.order.rank(depth, self.path.chosen[depth - 1]) } else { 0 }
    }

    /// What no plan below this node beats; none when nothing below it fits.
    fn bound(&self, depth: usize) -> Option<Cost> {
        let left_bytes = self.order.problem.capacity_bytes.checked_sub(self.path.bytes())?;
        let work_ns = self.path.work_ns + self.by_work.at_least(depth, left_bytes)?;
        let link_bytes = self.path.link_bytes + self.by_bytes.at_least(depth, left_bytes)?;
        Some(Cost { time_ns: work_ns.max(self.compute_ns), link_bytes })
    }

    fn take_leaf(&mut self) {
        let chosen = &self.path.chosen;
        let cost = Cost { time_ns: self.time_of(chosen), link_bytes: self.path.link_bytes };
        if self.best.as_ref().is_none_or(|(best, _)| cost < *best) {
            self.best = Some((cost, chosen.clone()));
        }
    }
}

impl Placed {
    fn none(layers: usize) -> Placed {
        Placed {
            chosen: Vec::new(),
            resident_bytes: 0,
            work_ns: 0,
            link_bytes: 0,
            absent: alloc::vec![0; layers],
        }
    }

    fn bytes(&self) -> u64 {
        self.resident_bytes + self.absent.iter().max().copied().unwrap_or(0)
    }

    fn push(&mut self, object: &Object, index: u16) {
        let choice = &object.choices[usize::from(index)];
        self.chosen.push(index);
        self.resident_bytes += choice.resident_bytes;
        self.work_ns += choice.work_ns();
        self.link_bytes += choice.link_bytes;
        choice.fetches.iter().for_each(|fetch| self.absent[usize::from(fetch.layer)] += choice.buffer_bytes);
    }

    fn pop(&mut self, object: &Object) {
        let index = self.chosen.pop().expect("what was placed is taken off");
        let choice = &object.choices[usize::from(index)];
        self.resident_bytes -= choice.resident_bytes;
        self.work_ns -= choice.work_ns();
        self.link_bytes -= choice.link_bytes;
        choice.fetches.iter().for_each(|fetch| self.absent[usize::from(fetch.layer)] -= choice.buffer_bytes);
    }
}
