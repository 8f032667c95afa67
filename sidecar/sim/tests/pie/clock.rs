//! Simulates Pie's swapping: layers compute for one unit of ten ticks; swaps take r units, one in each direction at a
//! time.

use sluice_sim::paper::pie::closed_form::device_slots;
use sluice_sim::paper::pie::mapping::{Mapping, Side, Swap};
use sluice_sim::paper::pie::swapping::due;

/// Ticks of one layer's compute. r is given in tenths, so a swap takes r ticks.
pub const UNIT: u64 = 10;

/// When swaps are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// At the start of each layer's compute, as printed.
    AtLayerStarts,
    /// Also when a swap ends.
    AsSoonAsPossible,
}

/// A swap that began, and the layer being computed or waited for (both from 1, as in the figure).
pub type Begun = (u16, Side, u16);

pub struct Clock {
    pub mapping: Mapping,
    pub now: u64,
    pub begun: Vec<Begun>,
    /// Ticks from the start of each layer's swap out to the end of its swap in.
    pub stays: Vec<u64>,
    issue: Issue,
    r_tenths: u64,
    running: Vec<(u64, Swap)>,
    left_at: Vec<Option<u64>>,
}

impl Clock {
    /// Returns a clock with a queue of this length. The layers that fit start on the device.
    pub fn new(layers: u16, queue: u16, r_tenths: u64, issue: Issue) -> Clock {
        Clock {
            mapping: Mapping::new(layers, device_slots(layers, queue), queue),
            now: 0,
            begun: Vec::new(),
            stays: Vec::new(),
            issue,
            r_tenths,
            running: Vec::new(),
            left_at: vec![None; layers.into()],
        }
    }

    /// Runs one token; returns the ticks that compute waited.
    pub fn token(&mut self) -> u64 {
        let layers = self.mapping.entries().len() as u16;
        (0..layers).map(|layer| self.layer(layer)).sum()
    }

    fn layer(&mut self, layer: u16) -> u64 {
        let start = self.now;
        self.end_swaps(layer);
        if self.issue == Issue::AtLayerStarts {
            self.begin_swaps(layer);
        }
        while !self.mapping.computable(layer) {
            // The figure's rule also issues the swap of a layer that compute waits for.
            self.begin_swaps(layer);
            let (ends, _) =
                *self.running.iter().min_by_key(|(ends, _)| *ends).expect("what is waited for is on its way");
            self.now = ends;
            self.end_swaps(layer);
        }
        let stall = self.now - start;
        self.mapping.begin_compute(layer);
        let end = self.now + UNIT;
        self.begin_swaps(layer);
        while let Some(&(ends, _)) =
            self.running.iter().filter(|(ends, _)| *ends < end).min_by_key(|(ends, _)| *ends)
        {
            self.now = ends;
            self.end_swaps(layer);
        }
        self.now = end;
        self.mapping.end_compute(layer);
        stall
    }

    fn begin_swaps(&mut self, layer: u16) {
        for swap in due(&mut self.mapping, layer) {
            self.begun.push((swap.layer + 1, swap.to, layer + 1));
            if swap.to == Side::Host {
                self.left_at[usize::from(swap.layer)] = Some(self.now);
            }
            self.running.push((self.now + self.r_tenths, swap));
        }
    }

    fn end_swaps(&mut self, layer: u16) {
        let now = self.now;
        let ended: Vec<(u64, Swap)> = self.running.extract_if(.., |(ends, _)| *ends <= now).collect();
        for (_, swap) in &ended {
            self.mapping.commit(*swap);
            if let Some(left) = self.left_at[usize::from(swap.layer)].filter(|_| swap.to == Side::Device) {
                self.stays.push(now - left);
            }
        }
        if !ended.is_empty() && self.issue == Issue::AsSoonAsPossible {
            self.begin_swaps(layer);
        }
    }
}

/// Returns the steady-state stall per token, ticks: the mean over many tokens after the start-up.
pub fn settled_stall(layers: u16, queue: u16, r_tenths: u64, issue: Issue) -> u64 {
    const BEGINNING: u32 = 20;
    let mut clock = Clock::new(layers, queue, r_tenths, issue);
    (0..BEGINNING).for_each(|_| {
        clock.token();
    });
    let start = clock.now;
    let tokens = 20 * u64::from(layers);
    (0..tokens).for_each(|_| {
        clock.token();
    });
    (clock.now - start) / tokens - u64::from(layers) * UNIT
}
