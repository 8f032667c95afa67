//! Chooses the batch: how many requests are paused and how many are admitted, by the effect on objectives.
//!
//! Batches differ in two numbers: the paused running requests, in victim order, and the admitted waiting requests, in
//! queue order. A batch is better if it leaves out fewer requests that must be admitted, then if it has a smaller share
//! of late tokens above the allowance, then more tokens per second, then fewer link bytes.
//!
//! Sources: OrbitFlow 4.2 (violation cap, Pause-Resume with the victim by blocks and deposit), 4.4 (Token-Deposit).

use alloc::vec::Vec;
use core::cmp::Reverse;

use super::link::Link;
use super::problem::{Object, Problem};
use super::search::{self, Cost, NoPlan, Plan};

/// A running or waiting request.
#[derive(Clone, Debug)]
pub struct BatchCandidate {
    /// The possible placements of its KV. With a single choice its KV cannot be offloaded.
    pub kv: Object,
    /// Its contribution to the compute of each layer, nanoseconds.
    pub compute_ns: u64,
    /// Its SLO: maximum time between two delivered tokens, nanoseconds; 0 means no limit.
    pub tbt_ns: u64,
    /// Tokens generated and not delivered yet (Token-Deposit).
    pub deposit: u32,
    /// Whether it may not be paused: it reached the pause limit, or no request would run (progress rule).
    pub immune: bool,
    /// For a waiting request: admit it whenever all fit, even if tokens are late.
    pub must_admit: bool,
}

/// The inputs of the decision for the next window.
#[derive(Clone, Debug)]
pub struct BatchContext {
    /// Device memory for the placed objects, bytes.
    pub capacity_bytes: u64,
    /// Compute of each layer without requests, nanoseconds.
    pub compute_ns: Vec<u64>,
    /// Step time besides the layers, nanoseconds: tokens are available only after all of it.
    pub overhead_ns: u64,
    /// The link.
    pub link: Link,
    /// Bytes written back in each step.
    pub write_bytes: u64,
    /// Steps that a plan applies to: the decode window.
    pub window: u16,
    /// Allowed share of late tokens, permille.
    pub allowed_permille: u32,
    /// Objects other than requests, such as weights.
    pub other_requests: Vec<Object>,
    /// Running requests, in the order in which they would be paused.
    pub running: Vec<BatchCandidate>,
    /// Waiting requests, in the order in which they would be admitted.
    pub waiting: Vec<BatchCandidate>,
    /// Whether all objects use the same choice, as far as they have it (OrbitFlow's ablation: one placement for the
    /// whole batch).
    pub alike: bool,
}

/// Score of a batch; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchScore {
    /// Requests left out although they must be admitted (first come, first served).
    pub unadmitted: usize,
    /// Late tokens of the window above the allowance, permille of the tokens that the present batch generates. It is a
    /// share, so that pausing a request does not pay off only by generating fewer late tokens.
    pub late_permille: u64,
    /// Tokens per second, thousandths; more is better.
    pub tokens_per_s_milli: Reverse<u64>,
    /// Bytes loaded to the device in each step.
    pub link_bytes: u64,
}

/// The chosen batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Number of running requests to pause, in order.
    pub paused: usize,
    /// Number of waiting requests to admit, in order.
    pub admitted: usize,
    /// Placement of the other objects, then of the requests that continue, then of the admitted ones.
    pub placement: Plan,
    /// Its score.
    pub merit: BatchScore,
}

/// Returns the late tokens of one request in the next `window` steps of `step_ns` each, with one token due every
/// `tbt_ns` and `deposit` tokens buffered. No token is late while the deposit lasts; afterwards every token is.
pub fn late_tokens(step_ns: u64, tbt_ns: u64, deposit: u32, window: u16) -> u64 {
    if step_ns <= tbt_ns || tbt_ns == 0 || window == 0 {
        return 0;
    }
    // Token k of the window is generated at k * step and due at (k - deposit) * tbt after the token before the window.
    let (step_ns, tbt_ns) = (u128::from(step_ns), u128::from(tbt_ns));
    let on_time = u128::from(deposit) * tbt_ns / (step_ns - tbt_ns);
    u64::from(window).saturating_sub(u64::try_from(on_time).unwrap_or(u64::MAX))
}

/// Returns the best batch found within a budget of node expansions for all batches together. `time_ns` models the time
/// of a step, as in [`search::plan`].
///
/// Batches are searched in the order of their best possible score, until no remaining batch can be better. Each may
/// spend the rest of the budget: split equally, a budget hardly larger than the number of batches would change nothing.
///
/// # Errors
/// If no batch fits, not even the immune requests alone: [`NoPlan::Proven`] if that is certain.
pub fn plan(
    context: &BatchContext,
    budget: u32,
    time_ns: impl Fn(&Problem, &[u16]) -> u64 + Copy,
) -> Result<BatchPlan, NoPlan> {
    let mut left = budget;
    let mut open: Vec<_> = batches(context).into_iter().filter_map(|batch| promise(context, batch)).collect();
    open.sort_unstable();
    let mut best: Option<BatchPlan> = None;
    let mut misfit = NoPlan::Proven;
    for (promised, (paused, admitted)) in open {
        if best.as_ref().is_some_and(|best| best.merit <= promised) {
            break;
        }
        let problem = problem(context, paused, admitted);
        let found = match context.alike {
            true => search::alike(&problem, time_ns),
            false => search::plan(&problem, &mut left, time_ns),
        };
        match found {
            Ok(placement) => {
                let merit = merit(context, (paused, admitted), placement.cost);
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

/// Returns the best possible score of a batch; `None` if it cannot fit.
fn promise(context: &BatchContext, batch: (usize, usize)) -> Option<(BatchScore, (usize, usize))> {
    let requests = members(context, batch.0, batch.1).map(|member| &member.kv);
    let objects: Vec<&Object> = context.other_requests.iter().chain(requests).collect();
    let added_ns = added_ns(context, batch.0, batch.1) * context.compute_ns.len() as u64;
    let compute_ns = context.compute_ns.iter().sum::<u64>() + added_ns;
    let min_cost = search::at_least(&objects, compute_ns, context.capacity_bytes)?;
    Some((merit(context, batch, min_cost), batch))
}

/// Returns the contribution of these requests to the compute of each layer, nanoseconds.
fn added_ns(context: &BatchContext, paused: usize, admitted: usize) -> u64 {
    members(context, paused, admitted).map(|member| member.compute_ns).sum()
}

/// Returns all batches: every number of admissions without a pause, and every number of pauses without an admission.
fn batches(context: &BatchContext) -> Vec<(usize, usize)> {
    let pausable = context.running.iter().take_while(|member| !member.immune).count();
    let admissions = (0..=context.waiting.len()).map(|admitted| (0, admitted));
    let pauses = (1..=pausable).map(|paused| (paused, 0));
    admissions.chain(pauses).collect()
}

fn members(context: &BatchContext, paused: usize, admitted: usize) -> impl Iterator<Item = &BatchCandidate> {
    context.running.iter().skip(paused).chain(context.waiting.iter().take(admitted))
}

/// Returns the placement problem of one batch.
pub fn problem(context: &BatchContext, paused: usize, admitted: usize) -> Problem {
    let added_ns = added_ns(context, paused, admitted);
    let requests = members(context, paused, admitted).map(|member| member.kv.clone());
    Problem {
        capacity_bytes: context.capacity_bytes,
        compute_ns: context.compute_ns.iter().map(|ns| ns + added_ns).collect(),
        link: context.link,
        write_bytes: context.write_bytes,
        objects: context.other_requests.iter().cloned().chain(requests).collect(),
    }
}

fn merit(context: &BatchContext, (paused, admitted): (usize, usize), cost: Cost) -> BatchScore {
    let step_ns = (cost.time_ns + context.overhead_ns).max(1);
    let window = u64::from(context.window);
    let late = |member: &BatchCandidate| late_tokens(step_ns, member.tbt_ns, member.deposit, context.window);
    let of_batch: u64 = members(context, paused, admitted).map(late).sum();
    let gaps: u64 = context.running.iter().take(paused).map(|member| gap(member, context, step_ns)).sum();
    let members = members(context, paused, admitted).count() as u64;
    // A pause is one gap between two tokens, so its next token may be late. Admitted requests add no tokens to the
    // denominator: if all tokens are late already, their late tokens would not show, although they lengthen every step.
    let tokens = ((members - admitted as u64) * window + paused as u64).max(1);
    let late_permille = ((of_batch + gaps) * 1000).div_ceil(tokens);
    let per_s_milli = u128::from(members) * 1_000_000_000_000 / u128::from(step_ns);
    let must_admit = context.waiting[admitted..].iter().filter(|member| member.must_admit);
    BatchScore {
        unadmitted: must_admit.count(),
        late_permille: late_permille.saturating_sub(u64::from(context.allowed_permille)),
        tokens_per_s_milli: Reverse(u64::try_from(per_s_milli).unwrap_or(u64::MAX)),
        link_bytes: cost.link_bytes,
    }
}

/// Returns the late tokens of a pause: one, unless the deposit lasts for the window or the request has no SLO.
fn gap(member: &BatchCandidate, context: &BatchContext, step_ns: u64) -> u64 {
    let window_ns = u128::from(step_ns) * u128::from(context.window);
    let lasting_ns = u128::from(member.deposit) * u128::from(member.tbt_ns);
    u64::from(member.tbt_ns > 0 && lasting_ns < window_ns)
}
