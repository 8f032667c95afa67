//! The choices with the least time, and among those the fewest link bytes: trades between objects from a plan to begin with,
//! then branch and bound, depth first, one object a level.
//!
//! A path of the tree has as many levels as there are objects, so a budget that is no larger reaches no leaf that differs by
//! much. What is nearer comes first: one object gives more, and the others take back what then fits, in strides that become
//! shorter. When no trade is left that helps, the tree has the rest of the budget; with enough of it the answer is the best of
//! all whatever was traded, and what was traded cuts the tree.
//!
//! A node's bound is the larger of the batch's compute and the link work that its placed objects have and the others have at
//! least ([`super::relax`]): every transfer of a step ends within it. The bound on bytes is of the same kind and breaks ties.
//! Objects that are alike are interchangeable, so of their permutations one is searched.

use alloc::vec::Vec;

use super::bytes_used::BytesUsed;
use super::initial;
use super::problem::{Choice, Object, Problem};
use super::relax::Relaxation;
use super::search_order::SearchOrder;
use super::steps;

/// Expansions of a plan, each a trade that is tried or a node of the tree: 16 requests with 80 layers stay within a millisecond
/// (`planner_speed`).
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
    /// Trades that were tried and nodes that were expanded.
    pub expansions: u32,
    /// The whole tree was searched or excluded, so that no plan is better in time, then bytes.
    pub optimal: bool,
}

impl Plan {
    /// How much faster another plan might be, permille of this plan's time, rounded up.
    pub fn gap_permille(&self) -> u64 {
        gap_permille(self.cost.time_ns, self.bound_ns)
    }
}

/// What lies between a time and what it is at least, permille of it, rounded up.
pub(super) fn gap_permille(time_ns: u64, bound_ns: u64) -> u64 {
    let slack_ns = u128::from(time_ns.saturating_sub(bound_ns));
    (slack_ns * 1000).div_ceil(u128::from(time_ns.max(1))) as u64
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
pub enum NoPlan {
    /// There is none: the objects do not fit, however they are placed.
    Proven,
    /// The budget ended before one was found.
    OutOfBudget,
}

/// The best placement of all objects that a budget of node expansions finds.
///
/// # Errors
/// When none was found.
pub fn plan(problem: &Problem, budget: u32) -> Result<Plan, NoPlan> {
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
) -> Result<Plan, NoPlan> {
    spend(problem, &mut { budget }, time_ns)
}

/// The same of a budget of which the rest is for others.
///
/// # Errors
/// When none was found.
pub(super) fn spend(
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

/// The best of the placements in which all objects take the same choice, those that have nothing to choose aside.
///
/// # Errors
/// When none fits.
pub(super) fn alike(problem: &Problem, time_ns: impl Fn(&Problem, &[u16]) -> u64) -> Result<Plan, NoPlan> {
    let most = problem.objects.iter().map(|object| object.choices.len()).max().unwrap_or(1);
    let all = |choice: usize| {
        let last = problem.objects.iter().map(|object| object.choices.len() - 1);
        last.map(|last| choice.min(last) as u16).collect::<Vec<_>>()
    };
    let fit = (0..most).map(all).filter(|chosen| problem.bytes_of(chosen) <= problem.capacity_bytes);
    let priced = fit.map(|chosen| {
        let link_bytes = problem.choices_of(&chosen).map(|choice| choice.link_bytes).sum();
        (Cost { time_ns: time_ns(problem, &chosen), link_bytes }, chosen)
    });
    let (cost, chosen) = priced.min().ok_or(NoPlan::Proven)?;
    Ok(Plan { chosen, cost, bound_ns: cost.time_ns, expansions: most as u32, optimal: true })
}

/// What no placement of these objects beats in `capacity_bytes`, beside so much compute; none when none fits.
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

    /// The plan to beat.
    fn begin(&mut self) {
        let Some(chosen) = initial::first(self.order) else { return };
        self.best = Some((self.cost_of(&chosen), chosen));
    }

    /// Trades for as long as one helps: those who have most work to give first.
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

    /// The object at `place` gives so many choices more, and the others, those who give least first, give less for as long as
    /// all fits. Whether that is better.
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
