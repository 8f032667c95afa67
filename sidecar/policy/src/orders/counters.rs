//! What has happened so far: step boundaries, steps, and decisions by reason.

use crate::reason::Reason;

/// Counters that only grow.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    boundaries: u64,
    steps: u64,
    /// Decisions, by reason.
    decisions: [u64; Reason::ALL.len()],
    /// Chunks that changed their owner, by reason.
    moved_chunks: [u64; Reason::ALL.len()],
}

impl Counters {
    pub fn new() -> Counters {
        let none = [0; Reason::ALL.len()];
        Counters { boundaries: 0, steps: 0, decisions: none, moved_chunks: none }
    }

    pub fn on_boundary(&mut self) {
        self.boundaries += 1;
    }

    pub fn on_step_finished(&mut self) {
        self.steps += 1;
    }

    pub fn add(&mut self, reason: Reason, times: u32) {
        self.decisions[reason as usize] += u64::from(times);
    }

    pub fn add_moved(&mut self, reason: Reason, chunks: u32) {
        self.moved_chunks[reason as usize] += u64::from(chunks);
    }

    /// Step boundaries so far, idle ones included.
    pub fn boundaries(&self) -> u64 {
        self.boundaries
    }

    /// Steps that have finished.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Decisions for each reason, in the order of [`Reason::ALL`].
    pub fn decisions(&self) -> &[u64; Reason::ALL.len()] {
        &self.decisions
    }

    /// Chunks that changed their owner for `reason`.
    pub fn moved_chunks(&self, reason: Reason) -> u64 {
        self.moved_chunks[reason as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_and_moved_chunks_are_counted_by_reason() {
        let mut counters = Counters::new();
        counters.add(Reason::Lend, 2);
        counters.add(Reason::Lend, 1);
        counters.add_moved(Reason::Lend, 7);
        assert_eq!(counters.decisions()[Reason::Lend as usize], 3);
        assert_eq!((counters.moved_chunks(Reason::Lend), counters.moved_chunks(Reason::Repay)), (7, 0));
        assert_eq!(counters.decisions().iter().sum::<u64>(), 3, "no other reason");
    }
}
