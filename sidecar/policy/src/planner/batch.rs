//! Which batch to run: who is paused, who is admitted, and what that does to objectives.
//!
//! Batches differ in two numbers: how many running requests are paused, in the order of the victims, and how many waiting
//! ones are admitted, in the order of the queue. Of two batches the better leaves fewer out who insist, then has a smaller
//! share of late tokens beyond what is allowed, then more tokens per second, then fewer link bytes (DESIGN 6).
//!
//! Sources: OrbitFlow 4.2 (violation cap, Pause-Resume with the victim by blocks and deposit), 4.4 (Token-Deposit).

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::link::Link;
use super::problem::{Object, Problem};
use super::search::{self, Cost, NoPlan, Plan};

/// A request that runs or waits.
#[derive(Clone, Debug)]
pub struct BatchCandidate {
    /// The ways to place its KV. One choice only means that it cannot leave.
    pub kv: Object,
    /// What it adds to the compute of each layer, nanoseconds.
    pub compute_ns: u64,
    /// Its SLO: the most time between two delivered tokens, nanoseconds; 0 = none is too long.
    pub tbt_ns: u64,
    /// Tokens that were made and are not delivered yet (Token-Deposit).
    pub deposit: u32,
    /// It may not be paused: it has been for as long as a request may, or nothing would run (progress rule).
    pub immune: bool,
    /// One that waits is let in wherever all fit, late or not.
    pub must_admit: bool,
}

/// All that can be decided about for the next window.
#[derive(Clone, Debug)]
pub struct BatchContext {
    /// Bytes of device memory for what the plan places.
    pub capacity_bytes: u64,
    /// Compute of each layer without any request, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// What a step takes beside its layers: tokens come after all of it.
    pub overhead_ns: u64,
    /// The link.
    pub link: Link,
    /// Bytes written back in each step.
    pub write_bytes: u64,
    /// Steps that a plan holds for: the decode window.
    pub window: u16,
    /// Share of the tokens that may come late, permille.
    pub allowed_permille: u32,
    /// What is there beside requests: weights, first of all.
    pub other_requests: Vec<Object>,
    /// Requests that run, in the order in which they would be paused.
    pub running: Vec<BatchCandidate>,
    /// Requests that wait, in the order in which they would be admitted.
    pub waiting: Vec<BatchCandidate>,
    /// All objects take the same choice, as far as they have it (OrbitFlow's ablation: one placement for the whole batch).
    pub alike: bool,
}

/// How good a batch is; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchScore {
    /// Requests that are not let in although they insist on it (first come, first served).
    pub left_out: usize,
    /// Tokens of the window that come late, beyond what is allowed, permille of those that the present batch makes. A share and
    /// not a number: where nothing helps, nobody is paused for making fewer late tokens.
    pub late_permille: u64,
    /// Tokens per second, thousandths, the more the better.
    pub tokens_per_s_milli: Reverse<u64>,
    /// Bytes into the device in each step.
    pub link_bytes: u64,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// So many of the running requests are paused, the first ones.
    pub paused: usize,
    /// So many of the waiting requests are admitted, the first ones.
    pub admitted: usize,
    /// Placement of the others, then the running requests that go on, then the admitted.
    pub placement: Plan,
    /// How good it is.
    pub merit: BatchScore,
}

/// Tokens of one request that come late in the next `window` steps of `step_ns` each, when one is due every `tbt_ns` and
/// `deposit` are in store. While there is a deposit nothing is late; once it is used up every token is.
pub fn late_tokens(step_ns: u64, tbt_ns: u64, deposit: u32, window: u16) -> u64 {
    if step_ns <= tbt_ns || tbt_ns == 0 || window == 0 {
        return 0;
    }
    // Token k of the window is made at k * step and due at (k - deposit) * tbt after the one before the window.
    let (step_ns, tbt_ns) = (u128::from(step_ns), u128::from(tbt_ns));
    let on_time = u128::from(deposit) * tbt_ns / (step_ns - tbt_ns);
    u64::from(window).saturating_sub(u64::try_from(on_time).unwrap_or(u64::MAX))
}

/// The best batch that a budget of node expansions, of all batches together, finds. `time_ns` is the time of a step, as for
/// [`search::plan_with`].
///
/// Batches are looked at in the order of what they could be at best, until none that is left could be better. Each may spend
/// what those before it have left: in equal parts a budget that is hardly larger than the number of batches changes nothing.
///
/// # Errors
/// When no batch fits, not even the immune requests alone: [`NoPlan::Proven`] if that is certain.
pub fn plan(
    outlook: &BatchContext,
    budget: u32,
    time_ns: impl Fn(&Problem, &[u16]) -> u64 + Copy,
) -> Result<BatchPlan, NoPlan> {
    let mut left = budget;
    let mut open: Vec<_> = batches(outlook).into_iter().filter_map(|batch| promise(outlook, batch)).collect();
    open.sort_unstable();
    let mut best: Option<BatchPlan> = None;
    let mut misfit = NoPlan::Proven;
    for (promised, (paused, admitted)) in open {
        if best.as_ref().is_some_and(|best| best.merit <= promised) {
            break;
        }
        let problem = problem(outlook, paused, admitted);
        let found = match outlook.alike {
            true => search::alike(&problem, time_ns),
            false => search::spend(&problem, &mut left, time_ns),
        };
        match found {
            Ok(placement) => {
                let merit = merit(outlook, (paused, admitted), placement.cost);
                if best.as_ref().is_none_or(|best| merit < best.merit) {
                    best = Some(BatchPlan { paused, admitted, placement, merit });
                }
            }
            Err(NoPlan::OutOfBudget) => misfit = NoPlan::OutOfBudget,
            Err(NoPlan::Proven) => {}
        }
    }
    best.ok_or(misfit)
}

/// What a batch could be at best; none when it cannot fit.
fn promise(outlook: &BatchContext, batch: (usize, usize)) -> Option<(BatchScore, (usize, usize))> {
    let requests = members(outlook, batch.0, batch.1).map(|member| &member.kv);
    let objects: Vec<&Object> = outlook.other_requests.iter().chain(requests).collect();
    let added_ns = added_ns(outlook, batch.0, batch.1) * outlook.compute_ns.len() as u64;
    let compute_ns = outlook.compute_ns.iter().sum::<u64>() + added_ns;
    let least = search::at_least(&objects, compute_ns, outlook.capacity_bytes)?;
    Some((merit(outlook, batch, least), batch))
}

/// What these requests add to the compute of each layer, nanoseconds.
fn added_ns(outlook: &BatchContext, paused: usize, admitted: usize) -> u64 {
    members(outlook, paused, admitted).map(|member| member.compute_ns).sum()
}

/// All batches: no pause and all numbers of admissions; or pauses, and nobody new in place of who is paused.
fn batches(outlook: &BatchContext) -> Vec<(usize, usize)> {
    let pausable = outlook.running.iter().take_while(|member| !member.immune).count();
    let admissions = (0..=outlook.waiting.len()).map(|admitted| (0, admitted));
    let pauses = (1..=pausable).map(|paused| (paused, 0));
    admissions.chain(pauses).collect()
}

fn members(outlook: &BatchContext, paused: usize, admitted: usize) -> impl Iterator<Item = &BatchCandidate> {
    outlook.running.iter().skip(paused).chain(outlook.waiting.iter().take(admitted))
}

/// The placement problem of one batch.
pub fn problem(outlook: &BatchContext, paused: usize, admitted: usize) -> Problem {
    let added_ns = added_ns(outlook, paused, admitted);
    let requests = members(outlook, paused, admitted).map(|member| member.kv.clone());
    Problem {
        capacity_bytes: outlook.capacity_bytes,
        compute_ns: outlook.compute_ns.iter().map(|ns| ns + added_ns).collect(),
        link: outlook.link,
        write_bytes: outlook.write_bytes,
        window: 1,
        objects: outlook.other_requests.iter().cloned().chain(requests).collect(),
    }
}

fn merit(outlook: &BatchContext, (paused, admitted): (usize, usize), cost: Cost) -> BatchScore {
    let step_ns = (cost.time_ns + outlook.overhead_ns).max(1);
    let window = u64::from(outlook.window);
    let late = |member: &BatchCandidate| late_tokens(step_ns, member.tbt_ns, member.deposit, outlook.window);
    let of_batch: u64 = members(outlook, paused, admitted).map(late).sum();
    let gaps: u64 = outlook.running.iter().take(paused).map(|member| gap(member, outlook, step_ns)).sum();
    let going = members(outlook, paused, admitted).count() as u64;
    // A pause is between two tokens: the one after it may be late. Who is admitted adds none: where all are late already its
    // late tokens would not show, and the longer all of them are.
    let tokens = ((going - admitted as u64) * window + paused as u64).max(1);
    let late_permille = ((of_batch + gaps) * 1000).div_ceil(tokens);
    let per_s_milli = u128::from(going) * 1_000_000_000_000 / u128::from(step_ns);
    let insisting = outlook.waiting[admitted..].iter().filter(|member| member.must_admit);
    BatchScore {
        left_out: insisting.count(),
        late_permille: late_permille.saturating_sub(u64::from(outlook.allowed_permille)),
        tokens_per_s_milli: Reverse(u64::try_from(per_s_milli).unwrap_or(u64::MAX)),
        link_bytes: cost.link_bytes,
    }
}

/// A pause is one gap between two tokens: one late token, unless the deposit lasts for the window or nothing is ever late.
fn gap(member: &BatchCandidate, outlook: &BatchContext, step_ns: u64) -> u64 {
    let window_ns = u128::from(step_ns) * u128::from(outlook.window);
    let lasting_ns = u128::from(member.deposit) * u128::from(member.tbt_ns);
    u64::from(member.tbt_ns > 0 && lasting_ns < window_ns)
}
