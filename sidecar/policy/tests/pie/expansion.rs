//! Tests the queue's controller with machines of known behaviour.

use sluice_policy::pie::expansion::{Change, Expansion, ExpansionTunables, Token};

const LAYERS: u16 = 40;

/// The longest queue without a stall of 40 layers at r = 2 (Pie 3.3: `floor((n - 1) / r)`).
const LONGEST_AT_R_2: u16 = 19;

/// A machine on which swaps hide up to `longest` layers and each expansion admits proportionally more sequences, up to
/// `wanted`.
struct Machine {
    longest: u16,
    wanted: u32,
}

impl Machine {
    fn token(&self, queue: u16) -> Token {
        let compute_ns = 40_000_000;
        let over = u64::from(queue.saturating_sub(self.longest));
        let stall_ns = over * 2_000_000;
        // Each layer's cache grows by n / (n - F + 2), and not before two layers are away (Pie 3.3).
        let slots = LAYERS.min(LAYERS + 2 - queue);
        let room = 16 * LAYERS / slots;
        let early = u32::from(queue < self.longest) * 8;
        Token {
            total_ns: compute_ns + stall_ns,
            stall_ns,
            swaps: if queue == 0 { 0 } else { 10 },
            early_swaps: early.min(10),
            sequences: u32::from(room).min(self.wanted),
        }
    }
}

fn run(expansion: &mut Expansion, machine: &Machine, trials: u32) -> Vec<Change> {
    let tokens = trials * u32::from(ExpansionTunables::default().trial_tokens);
    (0..tokens).filter_map(|_| expansion.token(&machine.token(expansion.queue()))).collect()
}

#[test]
fn expansion_grows_to_longest_hidden_queue() {
    let longest = LONGEST_AT_R_2;
    let mut expansion = Expansion::new(ExpansionTunables::default(), LAYERS, LAYERS - 1);
    let machine = Machine { longest, wanted: 1_000 };
    let changes = run(&mut expansion, &machine, 100);
    assert!(changes[..2].iter().all(|change| *change == Change::Grow));
    assert!(expansion.queue().abs_diff(longest) <= 1, "{} of {longest}: {changes:?}", expansion.queue());
}

#[test]
fn expansion_shrinks_while_compute_waits() {
    let mut expansion = Expansion::new(ExpansionTunables::default(), LAYERS, LAYERS - 1);
    run(&mut expansion, &Machine { longest: 19, wanted: 1_000 }, 100);
    let before = expansion.queue();
    let changes = run(&mut expansion, &Machine { longest: 8, wanted: 1_000 }, 20);
    assert_eq!(changes.iter().filter(|change| **change == Change::Shrink).count(), usize::from(before - 8));
    assert_eq!(expansion.queue(), 8);
}

#[test]
fn expansion_beyond_need_is_reverted() {
    let mut expansion = Expansion::new(ExpansionTunables::default(), LAYERS, LAYERS - 1);
    run(&mut expansion, &Machine { longest: 19, wanted: 4 }, 200);
    assert!(expansion.queue() <= 4, "{}: more than two layers away gain nothing here", expansion.queue());
}

#[test]
fn short_interference_is_tolerated() {
    let mut expansion = Expansion::new(ExpansionTunables::default(), LAYERS, LAYERS - 1);
    let machine = Machine { longest: 19, wanted: 1_000 };
    run(&mut expansion, &machine, 30);
    let queue = expansion.queue();
    let hiccup = Token { stall_ns: 1_000_000, ..machine.token(queue) };
    let trial = u32::from(ExpansionTunables::default().trial_tokens);
    let changes: Vec<Change> = (0..trial)
        .filter_map(|token| expansion.token(&if token == 3 { hiccup } else { machine.token(queue) }))
        .collect();
    assert!(!changes.contains(&Change::Shrink), "{changes:?}");
}

#[test]
fn expansion_stays_within_bounds() {
    let mut expansion = Expansion::new(
        ExpansionTunables { probe_after_trials: 1, ..ExpansionTunables::default() },
        LAYERS,
        3,
    );
    for trial in 0..200_u32 {
        let machine = Machine { longest: (trial % 7) as u16, wanted: 10 + trial % 90 };
        run(&mut expansion, &machine, 1);
        assert!(expansion.queue() <= 3);
    }
}
