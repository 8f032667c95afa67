//! What orders the threads of a block: barriers, and for other blocks fences with atomic operations.
//!
//! Each warp has a clock that ticks at each barrier. An access has the time of its warp. It is before another one if the
//! other thread knows that time: a barrier passes on what the threads that it joins know.

use std::collections::HashMap;

use crate::slots::LANES;

/// The clocks of a block.
#[derive(Default)]
pub(crate) struct Clocks {
    /// Number of the block.
    pub block: u32,
    warps: Vec<WarpClock>,
    /// Barriers that all warps have passed together.
    pub full: u32,
    /// How often a thread of the block has released what the block did before.
    pub stamp: u32,
    /// Up to which of their stamps this block knows of others.
    acquired: HashMap<u32, u32>,
}

#[derive(Clone, Default)]
struct WarpClock {
    time: u32,
    /// Up to which time each other warp is known.
    known: Vec<u32>,
    /// Up to which time all lanes know each other.
    together: u32,
    /// `pairs[l][m]`: up to which time lane l knows lane m, where barriers had fewer lanes.
    pairs: Option<Box<[[u32; LANES]; LANES]>>,
    /// Lanes that have executed a fence.
    fenced: u32,
}

/// What the threads that arrive at a barrier know.
#[derive(Clone, Default, Debug)]
pub(crate) struct Knowledge(Vec<u32>);

impl Clocks {
    pub fn new(warps: usize) -> Self {
        Clocks { warps: vec![WarpClock::default(); warps], ..Clocks::default() }
    }

    /// A block begins.
    pub fn start(&mut self, block: u64) {
        let count = self.warps.len();
        let fresh = WarpClock { time: 1, known: vec![0; count], ..WarpClock::default() };
        let warps = vec![fresh; count];
        *self = Clocks { block: block as u32, warps, full: 1, stamp: 1, acquired: HashMap::new() };
    }

    /// The time of a warp.
    pub fn time(&self, warp: usize) -> u32 {
        self.warps[warp].time
    }

    /// Whether a thread of the block knows what `other` did at `time`, by barriers.
    pub fn knows(&self, (warp, lane): (usize, usize), other: (usize, usize), time: u32) -> bool {
        let mine = &self.warps[warp];
        if warp != other.0 {
            return mine.known[other.0] >= time;
        }
        let by_pair = || mine.pairs.as_ref().is_some_and(|pairs| pairs[lane][other.1] >= time);
        lane == other.1 || mine.together >= time || by_pair()
    }

    /// Whether a thread knows what all lanes of a warp did at `time`.
    pub fn knows_warp(&self, warp: usize, other: usize, time: u32) -> bool {
        let mine = &self.warps[warp];
        if warp == other { mine.together >= time } else { mine.known[other] >= time }
    }

    /// Whether this block knows what another one did at its `stamp`.
    pub fn knows_block(&self, block: u32, stamp: u32) -> bool {
        self.acquired.get(&block).is_some_and(|known| *known >= stamp)
    }

    /// `bar.warp.sync` by the lanes of `mask`, of those that are `alive`.
    pub fn warp_barrier(&mut self, warp: usize, mask: u32, alive: u32) {
        let clock = &mut self.warps[warp];
        if mask & alive == alive {
            clock.together = clock.time;
        } else {
            let together = clock.together;
            let pairs = clock.pairs.get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
            let lanes = || (0..LANES).filter(|lane| mask >> lane & 1 != 0);
            let mut joined = [together; LANES];
            for lane in lanes() {
                for (all, one) in joined.iter_mut().zip(pairs[lane]) {
                    *all = (*all).max(one);
                }
            }
            lanes().for_each(|lane| joined[lane] = clock.time);
            lanes().for_each(|lane| pairs[lane] = joined);
        }
        clock.time += 1;
    }

    /// A warp arrives at a barrier of the block.
    pub fn arrive(&mut self, warp: usize, all: &mut Knowledge) {
        all.0.resize(self.warps.len(), 0);
        let clock = &mut self.warps[warp];
        for (joined, known) in all.0.iter_mut().zip(&clock.known) {
            *joined = (*joined).max(*known);
        }
        all.0[warp] = clock.time;
        clock.time += 1;
    }

    /// A warp leaves a barrier of the block.
    pub fn leave(&mut self, warp: usize, all: &Knowledge) {
        let clock = &mut self.warps[warp];
        for (known, joined) in clock.known.iter_mut().zip(&all.0) {
            *known = (*known).max(*joined);
        }
        clock.together = clock.time - 1;
    }

    /// A fence by the lanes of `mask`.
    pub fn fence(&mut self, warp: usize, mask: u32) {
        self.warps[warp].fenced |= mask;
    }

    /// Whether a lane has executed a fence.
    pub fn fenced(&self, warp: usize, lane: usize) -> bool {
        self.warps[warp].fenced >> lane & 1 != 0
    }

    /// Adds what this block knows to `released`, and what is there to what it knows.
    pub fn exchange(&mut self, released: &mut HashMap<u32, u32>, release: bool) {
        for (block, stamp) in released.iter() {
            let known = self.acquired.entry(*block).or_default();
            *known = (*known).max(*stamp);
        }
        if release {
            released.extend(&self.acquired);
            released.insert(self.block, self.stamp);
            self.stamp += 1;
        }
    }
}
