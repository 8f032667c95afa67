//! Tests Token-Deposit against a naive model: every token has a number, and the whole history is checked.

use proptest::prelude::*;
use sluice_policy::ids::Nanos;
use sluice_policy::token_deposit::{Pacing, TokenDeposit};

const INTERVAL: u64 = 10;

fn paced() -> TokenDeposit {
    TokenDeposit::new(Pacing::Paced { interval_ns: INTERVAL })
}

/// A write: its time, and the numbers of its tokens.
type Write = (u64, Vec<u32>);

/// Runs `deposit` over batches of tokens (time, count) and a finish, and calls it at every `next_due` with the delay
/// `late`.
fn drive(mut deposit: TokenDeposit, batches: &[(u64, u32)], finish: u64, late: u64) -> Vec<Write> {
    let mut queue = std::collections::VecDeque::new();
    let mut writes = Vec::new();
    let mut made = 0;
    let mut take = |now: u64, count: u32, queue: &mut std::collections::VecDeque<u32>| {
        if count > 0 {
            writes.push((now, queue.drain(..count as usize).collect()));
        }
    };
    let mut events = batches.iter().copied().peekable();
    let mut clock = 0;
    loop {
        let wake = deposit.next_due().map(|due| (due.0 + late).max(clock));
        let produced = events.peek().map_or(finish, |batch| batch.0);
        if let Some(at) = wake.filter(|at| *at < produced) {
            clock = at;
            take(clock, deposit.due(Nanos(clock)), &mut queue);
            continue;
        }
        clock = produced;
        let Some((_, count)) = events.next() else { break };
        queue.extend(made..made + count);
        made += count;
        deposit.on_token(count);
        take(clock, deposit.due(Nanos(clock)), &mut queue);
    }
    take(finish, deposit.finish(Nanos(finish)), &mut queue);
    assert_eq!((deposit.held(), deposit.next_due(), queue.len()), (0, None, 0));
    writes
}

/// Applies the rule nanosecond by nanosecond.
fn naive(batches: &[(u64, u32)], finish: u64) -> Vec<Write> {
    let (mut held, mut writes, mut made): (Vec<u32>, Vec<Write>, u32) = (Vec::new(), Vec::new(), 0);
    for now in 0..=finish {
        let count: u32 = batches.iter().filter(|batch| batch.0 == now).map(|batch| batch.1).sum();
        held.extend(made..made + count);
        made += count;
        let free = writes.last().is_none_or(|(last, _)| now >= last + INTERVAL);
        if now == finish {
            if !held.is_empty() {
                writes.push((now, std::mem::take(&mut held)));
            }
        } else if free && !held.is_empty() {
            writes.push((now, vec![held.remove(0)]));
        }
    }
    writes
}

/// Batches in order, and a finish after the last.
fn history() -> impl Strategy<Value = (Vec<(u64, u32)>, u64)> {
    (prop::collection::vec((1..40_u64, 1..5_u32), 1..30), 1..200_u64).prop_map(|(gaps, rest)| {
        let mut now = 0;
        let batches: Vec<_> = gaps
            .into_iter()
            .map(|(gap, count)| {
                now += gap;
                (now, count)
            })
            .collect();
        (batches, now + rest)
    })
}

fn numbers(writes: &[Write]) -> Vec<u32> {
    writes.iter().flat_map(|write| write.1.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn writes_are_those_of_the_naive_model((batches, finish) in history()) {
        prop_assert_eq!(drive(paced(), &batches, finish, 0), naive(&batches, finish));
    }

    #[test]
    fn tokens_keep_order_at_most_one_per_interval((batches, finish) in history(), late in 0..25_u64) {
        let writes = drive(paced(), &batches, finish, late);
        let made: u32 = batches.iter().map(|batch| batch.1).sum();
        prop_assert_eq!(numbers(&writes), (0..made).collect::<Vec<_>>());
        let before_finish: Vec<_> = writes.iter().filter(|write| write.0 < finish).collect();
        prop_assert!(before_finish.iter().all(|write| write.1.len() == 1));
        prop_assert!(before_finish.windows(2).all(|pair| pair[1].0 - pair[0].0 >= INTERVAL));
        prop_assert_eq!(writes[0].0, batches[0].0, "the first token goes at once");
    }

    #[test]
    fn immediate_streams_are_written_as_produced((batches, finish) in history()) {
        let writes = drive(TokenDeposit::new(Pacing::Immediate), &batches, finish, 0);
        prop_assert_eq!(writes.iter().map(|w| (w.0, w.1.len() as u32)).collect::<Vec<_>>(), batches);
    }
}

#[test]
fn deposit_writes_one_token_per_interval() {
    let writes = drive(paced(), &[(5, 4)], 1000, 0);
    assert_eq!(writes, [(5, vec![0]), (15, vec![1]), (25, vec![2]), (35, vec![3])]);
}

#[test]
fn token_after_empty_interval_is_written_at_once() {
    assert_eq!(
        drive(paced(), &[(0, 1), (10, 1), (33, 1)], 50, 0),
        [(0, vec![0]), (10, vec![1]), (33, vec![2])]
    );
}

#[test]
fn token_within_interval_waits() {
    assert_eq!(drive(paced(), &[(0, 1), (9, 1)], 50, 0), [(0, vec![0]), (10, vec![1])]);
}

#[test]
fn completion_writes_the_rest_at_once() {
    assert_eq!(drive(paced(), &[(0, 5)], 12, 0), [(0, vec![0]), (10, vec![1]), (12, vec![2, 3, 4])]);
}

#[test]
fn a_late_write_moves_the_next_interval() {
    let mut deposit = paced();
    deposit.on_token(3);
    assert_eq!(deposit.due(Nanos(0)), 1);
    assert_eq!(deposit.next_due(), Some(Nanos(10)));
    assert_eq!(deposit.due(Nanos(9)), 0);
    assert_eq!(deposit.due(Nanos(17)), 1);
    assert_eq!(deposit.next_due(), Some(Nanos(27)));
    assert_eq!(deposit.due(Nanos(26)), 0);
}

#[test]
#[should_panic(expected = "a finished request produces no tokens")]
fn token_after_end_panics() {
    let mut deposit = paced();
    deposit.finish(Nanos(0));
    deposit.on_token(1);
}
