//! Tests the order of waiters, the length of a time slice, and that no tenant starves.

use proptest::prelude::*;
use sluice_policy::ids::Nanos;
use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{
    Decision, Holder, Quantum, SliceOrder, Waiter, largest_prefill_tokens, sort_waiters,
};

fn waiter(index: u32, ticket: u64, priority: i32, asked: u64) -> Waiter {
    Waiter { peer: Peer { index, instance: 1 }, ticket, priority, asked_at: asked }
}

/// Removes and returns the next waiter.
fn next(queue: &mut Vec<Waiter>, order: SliceOrder, slices: u64) -> Option<Waiter> {
    sort_waiters(queue, order, slices);
    if queue.is_empty() { None } else { Some(queue.remove(0)) }
}

fn queue_order(waiters: &[Waiter], order: SliceOrder, slices: u64) -> Vec<u32> {
    let mut queue = waiters.to_vec();
    sort_waiters(&mut queue, order, slices);
    queue.iter().map(|waiter| waiter.peer.index).collect()
}

const BY_PRIORITY: SliceOrder = SliceOrder::Priority { aging_slices: 64 };

#[test]
fn round_robin_ignores_priority() {
    let queue = [waiter(1, 12, 900, 0), waiter(2, 10, 1, 9), waiter(3, 11, 500, 0)];
    assert_eq!(queue_order(&queue, SliceOrder::RoundRobin, 1000), [2, 3, 1]);
    assert_eq!(queue_order(&[], SliceOrder::RoundRobin, 10), [0; 0]);
}

#[test]
fn highest_priority_is_next_then_oldest_ticket() {
    let queue = [waiter(1, 10, i32::MIN, 0), waiter(2, 12, 7, 0), waiter(3, 11, 7, 0), waiter(4, 9, -1, 0)];
    assert_eq!(queue_order(&queue, BY_PRIORITY, 10), [3, 2, 4, 1]);
}

#[test]
fn aged_waiter_goes_first() {
    let queue = [waiter(1, 10, i32::MIN, 100), waiter(2, 12, i32::MAX, 120), waiter(3, 9, 0, 110)];
    assert_eq!(queue_order(&queue, BY_PRIORITY, 100 + 63), [2, 3, 1]);
    assert_eq!(queue_order(&queue, BY_PRIORITY, 100 + 64), [1, 2, 3]);
    assert_eq!(queue_order(&queue, BY_PRIORITY, 1000), [3, 1, 2], "all have: the oldest ticket");
}

const QUANTUM_MIN: u64 = 5;
const QUANTUM_MAX: u64 = 50;

fn decision(used: u64, others_wait: bool, has_work: bool, predicted_step_ns: u64) -> Decision {
    let holder = Holder { started: Nanos(100), has_waiters: others_wait, has_work, predicted_step_ns };
    Quantum::new(QUANTUM_MIN, QUANTUM_MAX).should_keep_slice(Nanos(100 + used), &holder)
}

#[test]
fn slice_ends_without_work() {
    assert_eq!(decision(1, false, false, 0), Decision::Release);
    assert_eq!(decision(1, true, false, 0), Decision::Release);
}

#[test]
fn uncontended_slice_does_not_expire() {
    assert_eq!(decision(100_000, false, true, 100_000), Decision::Keep);
}

#[test]
fn slice_ends_at_last_boundary_before_max_quantum() {
    assert_eq!(decision(40, true, true, 10), Decision::Keep, "ends exactly with it");
    assert_eq!(decision(41, true, true, 10), Decision::Release);
    assert_eq!(decision(50, true, true, 1), Decision::Release);
}

#[test]
fn slice_lasts_min_quantum_and_one_step() {
    assert_eq!(decision(4, true, true, 47), Decision::Keep);
    assert_eq!(decision(5, true, true, 47), Decision::Release);
    assert_eq!(decision(0, true, true, 51), Decision::Keep);
    let holder = Holder { started: Nanos(0), has_waiters: true, has_work: true, predicted_step_ns: 51 };
    assert_eq!(Quantum::new(0, 50).should_keep_slice(Nanos(0), &holder), Decision::Keep);
}

#[test]
fn largest_prefill_fits_max_quantum() {
    assert_eq!(largest_prefill_tokens(7, 50), 7);
    assert_eq!(largest_prefill_tokens(51, 50), 1);
    assert_eq!(largest_prefill_tokens(10, 0), 1);
    assert_eq!(largest_prefill_tokens(0, 50), u32::MAX, "no estimate");
    assert_eq!(largest_prefill_tokens(1, u64::MAX), u32::MAX);
}

/// One tenant of the simulated GPU.
#[derive(Clone, Debug)]
struct Load {
    priority: i32,
    /// Duration of its steps.
    step_ns: u64,
    /// Work that arrives at once, and again after each pause, steps.
    burst_steps: u64,
    /// Time without work after a slice that finished it.
    pause_ns: u64,
}

/// Runs time slices for `until` nanoseconds and returns the longest wait.
fn run(loads: &[Load], order: SliceOrder, quantum: Quantum, until: u64) -> u64 {
    let mut now = 0;
    let mut work: Vec<u64> = loads.iter().map(|load| load.burst_steps).collect();
    let mut arrives_at = vec![0_u64; loads.len()];
    let mut queue: Vec<Waiter> = Vec::new();
    let (mut issued, mut longest_wait) = (Issued::default(), 0);
    while now < until {
        join(&mut queue, loads, &arrives_at, None, now, &mut issued);
        let Some(waiter) = next(&mut queue, order, issued.slices) else {
            now = *arrives_at.iter().min().expect("there are tenants");
            continue;
        };
        issued.slices += 1;
        let (me, started) = (waiter.peer.index as usize, now);
        longest_wait = longest_wait.max(now - arrives_at[me]);
        loop {
            join(&mut queue, loads, &arrives_at, Some(me), now, &mut issued);
            let holder = Holder {
                started: Nanos(started),
                has_waiters: !queue.is_empty(),
                has_work: work[me] > 0,
                predicted_step_ns: loads[me].step_ns,
            };
            if now >= until || quantum.should_keep_slice(Nanos(now), &holder) == Decision::Release {
                break;
            }
            now += loads[me].step_ns;
            work[me] -= 1;
        }
        arrives_at[me] = now;
        if work[me] == 0 {
            (work[me], arrives_at[me]) = (loads[me].burst_steps, now + loads[me].pause_ns);
        }
    }
    longest_wait
}

/// Tickets and slices so far.
#[derive(Clone, Copy, Debug, Default)]
struct Issued {
    tickets: u64,
    slices: u64,
}

/// Draws a ticket for every tenant with work that does not wait yet, in order of arrival.
fn join(
    queue: &mut Vec<Waiter>,
    loads: &[Load],
    arrives_at: &[u64],
    holder: Option<usize>,
    now: u64,
    issued: &mut Issued,
) {
    let waits = |queue: &[Waiter], at: usize| queue.iter().any(|waiter| waiter.peer.index as usize == at);
    let mut joining: Vec<usize> = (0..loads.len())
        .filter(|at| arrives_at[*at] <= now && Some(*at) != holder && !waits(queue, *at))
        .collect();
    joining.sort_by_key(|at| arrives_at[*at]);
    for at in joining {
        issued.tickets += 1;
        queue.push(waiter(at as u32, issued.tickets, loads[at].priority, issued.slices));
    }
}

fn loads() -> impl Strategy<Value = Vec<Load>> {
    let one = (-3_i32..3, 1_u64..=40, 1_u64..60, 0_u64..400);
    let load = one.prop_map(|(priority, step_ns, burst_steps, pause_ns)| Load {
        priority,
        step_ns,
        burst_steps,
        pause_ns,
    });
    proptest::collection::vec(load, 2..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn priority_wait_is_at_most_two_rounds(loads in loads()) {
        // A step of at most 40 within a maximum quantum of 50 and a minimum of 5 ends within 50. A slice without
        // waiters ends one step after a waiter arrives.
        let quantum = Quantum::new(QUANTUM_MIN, QUANTUM_MAX);
        let aging_slices = loads.len() as u64;
        let wait = run(&loads, SliceOrder::Priority { aging_slices }, quantum, 30_000);
        prop_assert!(wait <= (loads.len() as u64 + aging_slices) * QUANTUM_MAX, "{wait}");
    }

    #[test]
    fn round_robin_wait_is_at_most_one_round(loads in loads()) {
        let quantum = Quantum::new(QUANTUM_MIN, QUANTUM_MAX);
        let wait = run(&loads, SliceOrder::RoundRobin, quantum, 30_000);
        prop_assert!(wait <= loads.len() as u64 * QUANTUM_MAX, "{wait}");
    }

    #[test]
    fn fitting_steps_end_within_max_quantum(used in 0_u64..60, step in 1_u64..60) {
        let quantum = Quantum::new(QUANTUM_MIN, QUANTUM_MAX);
        let step = step.min(quantum.left_ns(Nanos(used), Nanos(0)));
        let holder = Holder { started: Nanos(0), has_waiters: true, has_work: true, predicted_step_ns: step };
        let kept = quantum.should_keep_slice(Nanos(used), &holder) == Decision::Keep;
        prop_assert!(!kept || used > QUANTUM_MAX || used + step <= QUANTUM_MAX);
    }
}

/// Returns the most slices of others, out of 100, that one of three always busy tenants waits for.
fn longest_wait(aging_slices: u64) -> u64 {
    let mut queue: Vec<Waiter> = (0..3).map(|at| waiter(at, at.into(), -(at as i32), 0)).collect();
    let mut longest = 0;
    for slice in 0..100_u64 {
        longest = queue.iter().map(|waiter| slice - waiter.asked_at).fold(longest, u64::max);
        let first = next(&mut queue, SliceOrder::Priority { aging_slices }, slice).expect("all wait");
        queue.push(Waiter { ticket: 3 + slice, asked_at: slice + 1, ..first });
    }
    longest
}

#[test]
fn aging_prevents_starvation() {
    assert!(longest_wait(3) <= 2 * 3);
    assert_eq!(longest_wait(u64::MAX), 99, "the control");
}
