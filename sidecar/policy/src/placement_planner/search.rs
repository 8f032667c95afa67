//! Finds the choices with the least time, then the fewest link bytes: trades between objects from an initial plan, then
//! branch and bound, depth first, one object per level.
//!
//! A path of the tree has one level per object, so a budget of that size reaches only leaves close to the start.
//! Therefore near plans are searched first by trades: one object offloads more, and the others take back what then
//! fits, in decreasing strides. When no trade helps, the tree search uses the rest of the budget. With enough budget
//! the answer is optimal regardless of the trades, whose result prunes the tree.
//!
//! A node's bound is the larger of the batch's compute and the link work of its placed objects plus the minimum of the
//! others ([`super::relax`]): every transfer of a step ends within it. The bound on bytes is similar and breaks ties.
//! Equal objects are interchangeable, so only one of their permutations is searched.

use alloc::vec::Vec;

use super::bytes_used::BytesUsed;
use super::initial;
use super::problem::{Choice, Object, Problem};
use super::relax::Relaxation;
use super::search_order::SearchOrder;

/// Default budget of a plan, in trades tried and tree nodes expanded: 16 requests with 80 layers stay within a
/// millisecond (`planner_speed`).
pub const DEFAULT_EXPANSIONS: u32 = 16;

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The index of the choice for each object of the problem.
    pub chosen: Vec<u16>,
    /// Its cost.
    pub cost: Cost,
    /// Proven lower bound on the time of any plan, nanoseconds. Equal to the plan's time if it is proven the fastest.
    pub bound_ns: u64,
    /// Trades tried and nodes expanded.
    pub expansions: u32,
    /// Whether the whole tree was searched or pruned, so that no plan is better in time, then bytes.
    pub optimal: bool,
}

/// Returns the gap between a time and its lower bound, permille of the time, rounded up.
pub(super) fn gap_permille(time_ns: u64, bound_ns: u64) -> u64 {
    let slack_ns = u128::from(time_ns.saturating_sub(bound_ns));
    (slack_ns * 1000).div_ceil(u128::from(time_ns.max(1))) as u64
}

/// The objectives within one batch, most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Time of a step, nanoseconds.
    pub time_ns: u64,
    /// Bytes loaded to the device in each step.
    pub link_bytes: u64,
}

/// Why no placement was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlan {
    /// None exists: the objects do not fit in any placement.
    Proven,
    /// The budget ended before one was found.
    OutOfBudget,
}

/// Returns the best placement of all objects that a budget of node expansions finds, and deducts the expansions from
/// it. `time_ns` models the time of a step. Bounds hold for any model in which a step takes at least its compute and at
/// least the work of its transfers.
///
/// # Errors
/// If none was found.
pub fn plan(
    problem: &Problem,
    budget: &mut u32,
    time_ns: impl Fn(&Problem, &[u16]) -> u64,
) -> Result<Plan, NoPlan> {
    let order = SearchOrder::new(problem);
    let mut search = Search::new(&order, *budget, time_ns);
    search.begin();
    search.improve();
    search.descend(0);
    let expansions = *budget - search.left;
    *budget = search.left;
    let optimal = search.open_ns == u64::MAX;
    let Some((cost, found)) = search.best else {
        return Err(if optimal { NoPlan::Proven } else { NoPlan::OutOfBudget });
    };
    let bound_ns = search.open_ns.min(cost.time_ns);
    Ok(Plan { chosen: order.by_index(&found), cost, bound_ns, expansions, optimal })
}

/// Returns the best placement in which all objects use the same choice, or their last one if they have fewer.
///
/// # Errors
/// If none fits.
pub(super) fn alike(problem: &Problem, time_ns: impl Fn(&Problem, &[u16]) -> u64) -> Result<Plan, NoPlan> {
    let choices = problem.objects.iter().map(|object| object.choices.len()).max().unwrap_or(1);
    let all = |choice: usize| {
        let last = problem.objects.iter().map(|object| object.choices.len() - 1);
        last.map(|last| choice.min(last) as u16).collect::<Vec<_>>()
    };
    let fit = (0..choices).map(all).filter(|chosen| problem.bytes_of(chosen) <= problem.capacity_bytes);
    let priced = fit.map(|chosen| {
        let link_bytes = problem.choices_of(&chosen).map(|choice| choice.link_bytes).sum();
        (Cost { time_ns: time_ns(problem, &chosen), link_bytes }, chosen)
    });
    let (cost, chosen) = priced.min().ok_or(NoPlan::Proven)?;
    Ok(Plan { chosen, cost, bound_ns: cost.time_ns, expansions: choices as u32, optimal: true })
}

/// Returns a lower bound on the cost of placing these objects in `capacity_bytes`, with this compute; `None` if they
/// cannot fit.
pub(super) fn at_least(objects: &[&Object], compute_ns: u64, capacity_bytes: u64) -> Option<Cost> {
    let work_ns = Relaxation::new(objects, Choice::work_ns).at_least(0, capacity_bytes)?;
    let link_bytes = Relaxation::new(objects, |choice| choice.link_bytes).at_least(0, capacity_bytes)?;
    Some(Cost { time_ns: work_ns.max(compute_ns), link_bytes })
}

struct Search<'a, T> {
    order: &'a SearchOrder<'a>,
    time_ns: T,
    compute_ns: u64,
    by_work: Relaxation,
    by_bytes: Relaxation,
    path: Placed,
    best: Option<(Cost, Vec<u16>)>,
    /// Expansions left.
    left: u32,
    /// Least bound of the nodes skipped for lack of budget.
    open_ns: u64,
}

/// The objects placed on a path of the tree.
#[derive(Clone, Debug)]
struct Placed {
    chosen: Vec<u16>,
    resident_bytes: u64,
    work_ns: u64,
    link_bytes: u64,
    /// Offloaded bytes of each layer, for the prefetch buffer.
    absent: Vec<u64>,
}

impl<'a, T: Fn(&Problem, &[u16]) -> u64> Search<'a, T> {
    fn new(order: &'a SearchOrder<'a>, budget: u32, time_ns: T) -> Self {
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

    /// Sets the initial plan.
    fn begin(&mut self) {
        let Some(chosen) = initial::first(self.order) else { return };
        self.best = Some((self.cost_of(&chosen), chosen));
    }

    /// Trades while one helps, in the order of the objects with the most work.
    fn improve(&mut self) {
        let Some(bound) = self.bound(0) else { return };
        let longest = self.order.ranked.iter().map(Vec::len).max().unwrap_or(0);
        let mut stride = longest / 2;
        while stride > 0 {
            let mut helped = false;
            for place in 0..self.order.objects.len() {
                helped |= self.trade(bound, place, stride);
            }
            stride = if helped { stride } else { stride / 2 };
        }
    }

    /// Moves the object at `place` by `stride` choices to more offloading; the others, those with the least work first,
    /// take back as much as fits. Returns whether that is better.
    fn trade(&mut self, bound: Cost, place: usize, stride: usize) -> bool {
        let Some((best, chosen)) = self.best.as_ref().filter(|(best, _)| *best > bound) else { return false };
        let ranked = &self.order.ranked[place];
        let rank = self.order.rank(place, chosen[place]);
        let more = (rank + stride).min(ranked.len() - 1);
        if self.left == 0 || more == rank {
            return false;
        }
        self.left -= 1;
        let mut room = BytesUsed::new(self.order, chosen);
        room.swap(place, ranked[more]);
        if !room.fits() {
            return false;
        }
        (0..chosen.len()).rev().filter(|other| *other != place).for_each(|other| room.take_back(other));
        let (best, cost) = (*best, self.cost_of(room.chosen()));
        if cost < best {
            self.best = Some((cost, room.into_chosen()));
        }
        cost < best
    }

    fn cost_of(&self, chosen: &[u16]) -> Cost {
        let choices = self.order.objects.iter().zip(chosen);
        let link_bytes = choices.map(|(object, &index)| object.choices[usize::from(index)].link_bytes).sum();
        Cost { time_ns: self.time_of(chosen), link_bytes }
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

    /// Tries the choices of one object, nearest to the best plan's choice first.
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

    /// Returns the first choice to try, by rank: an object equal to its predecessor never has less work than it.
    fn first_of_alike(&self, depth: usize) -> usize {
        if self.order.alike[depth] { self.order.rank(depth, self.path.chosen[depth - 1]) } else { 0 }
    }

    /// Returns a lower bound on the cost below this node; `None` if nothing below it fits.
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
        let index = self.chosen.pop().expect("an object that was placed has a choice");
        let choice = &object.choices[usize::from(index)];
        self.resident_bytes -= choice.resident_bytes;
        self.work_ns -= choice.work_ns();
        self.link_bytes -= choice.link_bytes;
        choice.fetches.iter().for_each(|fetch| self.absent[usize::from(fetch.layer)] -= choice.buffer_bytes);
    }
}
