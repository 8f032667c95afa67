//! Decides when an engine counts as hung: it makes no progress for longer than its measured times explain.
//!
//! A limit is twice the expected time plus a floor. Work of unknown duration (the first step of an engine, which may
//! compile or capture graphs, or a step far larger than any before) has its own limit. The caller measures the time
//! without progress and excludes time in which the whole node was slow.

use alloc::vec::Vec;

/// Default floor of a limit, nanoseconds: the scheduling noise of a busy node is not a hang.
pub const FLOOR_NS: u64 = 2_000_000_000;
/// Limit of work of unknown duration, nanoseconds.
pub const UNKNOWN_NS: u64 = 60_000_000_000;
/// Factor on the expected time in a limit.
const TIMES: u64 = 2;
/// Largest ratio of tokens up to which a step is extrapolated from a smaller one.
const MAX_RATIO: u64 = 16;
/// Consecutive hangs after which the limit stops growing: 2^5 times.
const MAX_DOUBLINGS: u32 = 5;
/// Minimum assumed time per address of a mapping change, nanoseconds: a map and an unmap of a page table entry.
const ADDRESS_NS: u64 = 20_000;
/// Number of step sizes: one for each power of two of tokens.
const SIZES: usize = 32;

/// An order to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A forward pass.
    Step {
        /// Tokens of all sequences.
        tokens: u32,
    },
    /// A mapping change at a step boundary.
    Remap {
        /// Addresses that change.
        addresses: u32,
    },
    /// The mapping of all resident memory after the engine attached.
    Attach,
}

impl Work {
    /// Returns the name in logs and states.
    pub fn label(self) -> &'static str {
        match self {
            Work::Step { .. } => "step",
            Work::Remap { .. } => "remapping",
            Work::Attach => "attach",
        }
    }
}

/// Measured times, and the limits derived from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HangLimits {
    /// Longest recent step time by the power of two of its tokens, nanoseconds; 0 if not measured. It decays, so that
    /// the effect of one slow step is temporary.
    longest_ns: [u64; SIZES],
    floor_ns: u64,
    /// Longest recent time of a mapping change per address, nanoseconds. It decays.
    address_ns: u64,
    /// Whether the attached engine has not finished a step yet.
    fresh: bool,
    /// Consecutive engines that exceeded a limit.
    hangs: u32,
    /// Consecutive time slices that a peer took over before a step of them ended.
    overtaken: u32,
}

impl HangLimits {
    /// Returns limits without measurements. No limit is shorter than `floor_ns` nanoseconds.
    pub fn new(floor_ns: u64) -> HangLimits {
        HangLimits {
            longest_ns: [0; SIZES],
            floor_ns,
            address_ns: ADDRESS_NS,
            fresh: true,
            hangs: 0,
            overtaken: 0,
        }
    }

    /// Records a new engine: its first step has the limit of unknown work.
    pub fn attached(&mut self) {
        self.fresh = true;
    }

    /// Records the duration of a step, including waits for weights and KV.
    pub fn step_done(&mut self, tokens: u32, total_ns: u64) {
        let longest = &mut self.longest_ns[size_of(tokens)];
        *longest = total_ns.max(*longest - *longest / 16);
        (self.fresh, self.hangs, self.overtaken) = (false, 0, 0);
    }

    /// Records the duration of a mapping change.
    pub fn remapped(&mut self, addresses: u32, total_ns: u64) {
        let each = total_ns / u64::from(addresses.max(1));
        self.address_ns = each.max(self.address_ns - self.address_ns / 16).max(ADDRESS_NS);
    }

    /// Records that a peer took over the time slice before a step of it ended.
    pub fn overtaken(&mut self) {
        self.overtaken = (self.overtaken + 1).min(MAX_DOUBLINGS);
    }

    /// Returns the time without progress of `work` after which the holder stops extending its time slice, nanoseconds.
    /// Neither the tenant's floor nor the limit of unknown work delays peers. Each consecutive takeover doubles the
    /// limit, so that a long first step can finish.
    pub fn slice_limit_ns(&self, work: Work) -> u64 {
        let expected = match work {
            Work::Step { tokens } => self.expected_ns(tokens).unwrap_or(0),
            Work::Remap { .. } | Work::Attach => 0,
        };
        TIMES.saturating_mul(expected).saturating_add(FLOOR_NS).saturating_mul(1 << self.overtaken)
    }

    /// Records a hang. Each consecutive hang doubles the next limit, up to 32 times, so that a limit too short for this
    /// node cannot stop every engine.
    pub fn hung(&mut self) {
        self.hangs = (self.hangs + 1).min(MAX_DOUBLINGS);
    }

    /// Returns the time without progress after which an engine that does `work` counts as hung, nanoseconds.
    pub fn limit_ns(&self, work: Work) -> u64 {
        let usual = match work {
            Work::Step { tokens } => self.step_limit_ns(tokens),
            Work::Remap { addresses } => {
                let expected = self.address_ns.saturating_mul(addresses.into());
                TIMES.saturating_mul(expected).saturating_add(self.floor_ns)
            }
            Work::Attach => self.unknown_ns(),
        };
        usual.saturating_mul(1 << self.hangs)
    }

    /// Whether the attached engine has not finished a step yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    fn step_limit_ns(&self, tokens: u32) -> u64 {
        let expected =
            self.expected_ns(tokens).map(|ns| TIMES.saturating_mul(ns).saturating_add(self.floor_ns));
        match expected {
            Some(limit) if self.fresh => limit.max(self.unknown_ns()),
            Some(limit) => limit,
            None => self.unknown_ns(),
        }
    }

    fn unknown_ns(&self) -> u64 {
        self.floor_ns.max(UNKNOWN_NS)
    }

    /// Returns the longest expected time of a step: that of the next larger measured size, else that of a smaller one,
    /// scaled by the tokens.
    fn expected_ns(&self, tokens: u32) -> Option<u64> {
        let size = size_of(tokens);
        let larger = self.longest_ns[size..].iter().copied().find(|ns| *ns > 0);
        let smaller = || {
            let (size, ns) = self.measured().into_iter().rfind(|(smaller, _)| *smaller < size)?;
            let ratio = u64::from(tokens).div_ceil(1 << size);
            (ratio <= MAX_RATIO).then(|| ns.saturating_mul(ratio))
        };
        larger.or_else(smaller)
    }

    fn measured(&self) -> Vec<(usize, u64)> {
        self.longest_ns.iter().copied().enumerate().filter(|(_, ns)| *ns > 0).collect()
    }
}

/// Returns the power of two at or below the number of tokens.
fn size_of(tokens: u32) -> usize {
    tokens.max(1).ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn measured(steps: &[(u32, u64)]) -> HangLimits {
        let mut limits = HangLimits::new(FLOOR_NS);
        limits.attached();
        steps.iter().for_each(|(tokens, ns)| limits.step_done(*tokens, *ns));
        limits
    }

    fn of_step(limits: &HangLimits, tokens: u32) -> u64 {
        limits.limit_ns(Work::Step { tokens })
    }

    #[test]
    fn a_step_may_take_twice_its_measured_time_and_the_floor() {
        assert_eq!(of_step(&measured(&[(8, 40 * MS)]), 8), 80 * MS + FLOOR_NS);
        assert_eq!(of_step(&measured(&[(8, 40 * MS), (8, 10 * MS)]), 9), 75 * MS + FLOOR_NS, "it decays");
    }

    #[test]
    fn a_step_takes_no_longer_than_a_larger_one_and_in_proportion_to_a_smaller_one() {
        let limits = measured(&[(4, 10 * MS), (64, 100 * MS)]);
        assert_eq!(of_step(&limits, 20), 200 * MS + FLOOR_NS);
        assert_eq!(of_step(&limits, 640), 2 * 10 * 100 * MS + FLOOR_NS);
        assert_eq!(of_step(&limits, 64 * 16), 2 * 16 * 100 * MS + FLOOR_NS);
        assert_eq!(
            of_step(&limits, 64 * 16 + 1),
            UNKNOWN_NS,
            "a single step says nothing of one so much larger"
        );
    }

    #[test]
    fn first_steps_and_attaching_have_limits_of_their_own() {
        let mut limits = HangLimits::new(FLOOR_NS);
        assert_eq!(of_step(&limits, 1), UNKNOWN_NS);
        assert_eq!(limits.limit_ns(Work::Attach), UNKNOWN_NS);
        limits.step_done(1, MS);
        assert_eq!(of_step(&limits, 1), 2 * MS + FLOOR_NS);
        limits.attached();
        assert_eq!(of_step(&limits, 1), UNKNOWN_NS, "another engine may compile again");
        assert_eq!(limits.limit_ns(Work::Remap { addresses: 0 }), FLOOR_NS);
    }

    #[test]
    fn mapping_change_has_time_per_address() {
        let mut limits = HangLimits::new(FLOOR_NS);
        let limit = |limits: &HangLimits| limits.limit_ns(Work::Remap { addresses: 1000 });
        assert_eq!(limit(&limits), 2 * 1000 * ADDRESS_NS + FLOOR_NS);
        limits.remapped(10, 10 * MS);
        assert_eq!(limit(&limits), 2 * 1000 * MS + FLOOR_NS);
        (0..1000).for_each(|_| limits.remapped(10, 0));
        assert_eq!(limit(&limits), 2 * 1000 * ADDRESS_NS + FLOOR_NS, "it decays");
    }

    #[test]
    fn slice_limit_excludes_floor_and_unknown_steps() {
        let mut limits = HangLimits::new(600_000 * MS);
        let work = Work::Step { tokens: 4 };
        assert_eq!((limits.slice_limit_ns(work), limits.limit_ns(work)), (FLOOR_NS, 600_000 * MS));
        limits.overtaken();
        limits.overtaken();
        assert_eq!(limits.slice_limit_ns(work), 4 * FLOOR_NS, "a long first step ends after some slices");
        limits.step_done(4, 9_000 * MS);
        assert_eq!(limits.slice_limit_ns(work), 18_000 * MS + FLOOR_NS);
    }

    #[test]
    fn limits_are_at_least_floor() {
        let mut limits = HangLimits::new(2 * UNKNOWN_NS);
        assert_eq!(of_step(&limits, 1), 2 * UNKNOWN_NS);
        limits.step_done(1, MS);
        assert_eq!(of_step(&limits, 1), 2 * MS + 2 * UNKNOWN_NS);
        assert_eq!(
            [Work::Remap { addresses: 0 }, Work::Attach].map(|work| limits.limit_ns(work)),
            [2 * UNKNOWN_NS; 2]
        );
    }

    #[test]
    fn each_hang_in_a_row_doubles_the_limit_until_a_step_succeeds() {
        let mut limits = measured(&[(1, 500 * MS)]);
        let usual = of_step(&limits, 1);
        limits.hung();
        assert_eq!(of_step(&limits, 1), 2 * usual);
        limits.hung();
        assert_eq!(
            (of_step(&limits, 1), limits.limit_ns(Work::Remap { addresses: 0 })),
            (4 * usual, 4 * FLOOR_NS)
        );
        (0..40).for_each(|_| limits.hung());
        assert_eq!(of_step(&limits, 1), 32 * usual);
        let mut unknown = HangLimits::new(FLOOR_NS);
        unknown.hung();
        assert_eq!(of_step(&unknown, 1), 2 * UNKNOWN_NS, "a first step that takes long ends as well");
        limits.step_done(1, 500 * MS);
        assert_eq!(of_step(&limits, 1), usual);
        let slow = measured(&[(1, 40_000 * MS)]);
        assert_eq!(
            of_step(&slow, 1),
            80_000 * MS + FLOOR_NS,
            "a step that takes long is not cut to the limit of unknown work"
        );
    }
}
