//! What a tenant asks of its peers, and when it no longer needs what it borrowed.

use alloc::vec::Vec;

use crate::revert::{Hysteresis, Pressure};

/// Boundaries in a row without a request after which a borrower returns everything, cache or not.
pub const IDLE_BOUNDARIES: u32 = 8;

/// Loan sizes that help a step: the chunks that each request lacks together with those before it, up to `most`. Each
/// adds its number of `layer_blocks`, after the `to_load` layer blocks from the host tier, and `had` are there.
pub fn loan_sizes(
    layer_blocks: impl Iterator<Item = u32>,
    (to_load, had): (u32, u32),
    layer_blocks_per_chunk: u32,
    most: u32,
) -> Vec<u32> {
    let sums = layer_blocks.scan(to_load, |sum, more| {
        *sum += more;
        Some(*sum)
    });
    let chunks = core::iter::once(to_load)
        .chain(sums)
        .map(|sum| sum.saturating_sub(had).div_ceil(layer_blocks_per_chunk));
    let mut sizes: Vec<u32> = chunks.filter(|chunks| (1..=most).contains(chunks)).collect();
    sizes.dedup();
    sizes
}

/// The demand for borrowed chunks.
#[derive(Clone, Debug)]
pub struct BorrowDemand {
    /// Peers can be asked.
    enabled: bool,
    /// Loan sizes with which more and more requests of the step fit, in the order of their admission: rising; the last
    /// is enough for all. Empty when no step lacks memory.
    sizes: Vec<u32>,
    /// Peers refused since the last boundary.
    denied: bool,
    /// Boundaries at which borrowed chunks were not needed.
    hysteresis: Hysteresis,
    /// Boundaries without a request while chunks are borrowed.
    idle_boundaries: u32,
}

impl BorrowDemand {
    /// No demand; peers cannot be asked yet.
    pub fn new(hysteresis: Hysteresis) -> BorrowDemand {
        BorrowDemand { enabled: false, sizes: Vec::new(), denied: false, hysteresis, idle_boundaries: 0 }
    }

    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    /// Peers can be asked.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Chunks that the whole step lacks; none when it lacks none.
    pub fn wanted(&self) -> Option<u32> {
        self.sizes.last().copied()
    }

    /// The largest loan size of use where at most `limit` chunks can be had in all.
    pub fn largest_within(&self, limit: u32) -> Option<u32> {
        self.sizes.iter().rev().find(|size| **size <= limit).copied()
    }

    pub fn ask(&mut self, sizes: Vec<u32>) {
        self.sizes = sizes;
    }

    pub fn clear(&mut self) {
        self.sizes.clear();
    }

    /// Peers have nothing: no demand until the next boundary.
    pub fn on_denied(&mut self) {
        self.clear();
        self.denied = true;
    }

    pub fn is_denied(&self) -> bool {
        self.denied
    }

    pub fn on_boundary(&mut self) {
        self.denied = false;
    }

    /// Borrowed chunks are in use.
    pub fn on_used(&mut self) {
        self.hysteresis.reset();
    }

    /// Counts a boundary with or without requests; returns whether the tenant has been idle for long enough to return
    /// everything.
    pub fn count_idle(&mut self, idle: bool) -> bool {
        self.idle_boundaries = if idle { self.idle_boundaries + 1 } else { 0 };
        self.idle_boundaries >= IDLE_BOUNDARIES
    }

    /// Chunks that can be returned under this pressure.
    pub fn surplus(&mut self, pressure: &Pressure) -> u32 {
        u32::from(self.hysteresis.observe(pressure))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn demand() -> BorrowDemand {
        BorrowDemand::new(Hysteresis::new(1, 0))
    }

    #[test]
    fn refusal_holds_until_the_next_boundary() {
        let mut demand = demand();
        demand.ask(vec![2, 5, 9]);
        assert_eq!(
            (demand.wanted(), demand.largest_within(6), demand.largest_within(1)),
            (Some(9), Some(5), None)
        );
        demand.on_denied();
        assert_eq!((demand.wanted(), demand.is_denied()), (None, true));
        demand.on_boundary();
        assert!(!demand.is_denied());
    }

    #[test]
    fn loan_sizes_cover_more_and_more_requests() {
        let sizes =
            |layer_blocks: [u32; 4], had, most| loan_sizes(layer_blocks.into_iter(), (10, had), 8, most);
        // 10, 13, 20, 36 and 37 layer blocks: 2, 2, 3, 5 and 5 chunks.
        assert_eq!(sizes([3, 7, 16, 1], 0, 9), [2, 3, 5]);
        assert_eq!(sizes([3, 7, 16, 1], 0, 4), [2, 3], "KV has room for 4 chunks");
        assert_eq!(sizes([3, 7, 16, 1], 20, 9), [2, 3], "20 are there: only the last two lack some");
    }

    #[test]
    fn tenant_is_idle_after_boundaries_in_a_row_without_requests() {
        let mut demand = demand();
        assert!((1..IDLE_BOUNDARIES).all(|_| !demand.count_idle(true)));
        assert!(!demand.count_idle(false));
        assert!((1..IDLE_BOUNDARIES).all(|_| !demand.count_idle(true)));
        assert!(demand.count_idle(true));
    }
}
