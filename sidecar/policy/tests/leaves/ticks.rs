//! An independent tick-by-tick simulator: a link and a compute unit each do one tick of work at a time and see only
//! what was finished before the tick. It shares no code and no formula with the step model.

use std::collections::HashMap;

/// One case, all times in ticks.
pub struct Case<'a> {
    pub compute: &'a [u64],
    pub transfer: &'a [u64],
    /// Moving layers, ascending.
    pub moving: &'a [u16],
    pub beta: usize,
    /// Whether the k-th fill uses slot k % beta, instead of moving layer i slot i % beta.
    pub alternating: bool,
}

/// Tokens after which a case that is not periodic is a test error.
const MAX_TOKENS: usize = 100_000;

/// Returns the steady-state stall as (ticks, tokens).
pub fn stall(case: &Case<'_>) -> (u64, u64) {
    let mut world = TickSimulation::new(case);
    let mut seen = HashMap::new();
    for token in 0..MAX_TOKENS as u64 {
        let state = (
            world.fills_done as i64 - token as i64 * case.moving.len() as i64,
            world.link_left,
            token_parity(case, token),
        );
        if let Some((then_token, then_stall)) = seen.insert(state, (token, world.stall)) {
            return (world.stall - then_stall, token - then_token);
        }
        world.run_token();
    }
    panic!("not periodic after {MAX_TOKENS} tokens");
}

/// With alternating slots and an odd number of moving layers, the slots exchange roles at every token.
fn token_parity(case: &Case<'_>, token: u64) -> u64 {
    if case.alternating { token % 2 } else { 0 }
}

struct TickSimulation<'a> {
    case: &'a Case<'a>,
    /// The fill that the slot holds or is receiving, and whether its reader has finished.
    slots: Vec<Option<(usize, bool)>>,
    fills_done: usize,
    /// Remaining ticks of the current fill; 0 = no fill.
    link_left: u64,
    reads_done: usize,
    stall: u64,
}

impl<'a> TickSimulation<'a> {
    fn new(case: &'a Case<'a>) -> TickSimulation<'a> {
        TickSimulation {
            case,
            slots: vec![None; case.beta],
            fills_done: 0,
            link_left: 0,
            reads_done: 0,
            stall: 0,
        }
    }

    fn slot(&self, fill: usize) -> usize {
        if self.case.alternating {
            fill % self.case.beta
        } else {
            fill % self.case.moving.len() % self.case.beta
        }
    }

    fn run_token(&mut self) {
        for layer in 0..self.case.compute.len() {
            let moves = self.case.moving.contains(&(layer as u16));
            while moves && self.fills_done <= self.reads_done {
                self.stall += 1;
                self.link_tick();
            }
            for _ in 0..self.case.compute[layer] {
                self.link_tick();
            }
            if moves {
                let slot = self.slot(self.reads_done);
                assert_eq!(self.slots[slot], Some((self.reads_done, false)), "the slot holds what is read");
                self.slots[slot] = Some((self.reads_done, true));
                self.reads_done += 1;
            }
        }
    }

    /// Runs one tick of the link, given what was finished before it.
    fn link_tick(&mut self) {
        let slot = self.slot(self.fills_done);
        if self.link_left == 0 {
            if self.slots[slot].is_some_and(|(_, read)| !read) {
                return;
            }
            self.slots[slot] = Some((self.fills_done, false));
            let layer = self.case.moving[self.fills_done % self.case.moving.len()];
            self.link_left = self.case.transfer[usize::from(layer)];
        }
        self.link_left -= 1;
        if self.link_left == 0 {
            self.fills_done += 1;
        }
    }
}
