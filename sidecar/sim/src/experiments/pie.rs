//! Pie's worked example, and the longest queues without a stall.

use std::collections::BTreeSet;

use super::{ComparisonRow, DeviationReason, ExperimentReport, Figure, PaperValue, Series};
use crate::paper::pie::closed_form::{
    device_slots, expansion_permille, longest_queue, longest_queue_at_layer_starts,
};
use crate::paper::pie::mapping::{Mapping, Side, Swap};
use crate::paper::pie::swapping::due;

/// Number of layers, r in tenths, and the longest queue with swaps issued as soon as possible and at layer starts.
const LONGEST: [(u16, u64, u16, u16); 6] =
    [(9, 20, 4, 4), (40, 20, 19, 19), (40, 25, 15, 13), (48, 17, 27, 23), (48, 25, 18, 15), (32, 65, 4, 4)];

/// Number of layers of Fig. 4, and the time of a swap in layer times.
const LAYERS: u16 = 9;
const SWAP: u64 = 2;

/// Fig. 4's machine in layer times: swaps are issued when a layer starts to compute or waits.
struct SwapModel {
    mapping: Mapping,
    now: u64,
    running: Vec<(u64, Swap)>,
    /// Swaps, with the current layer at their start. Layers count from 1, as in the figure.
    swap_log: Vec<String>,
    swapped_out_at: [u64; LAYERS as usize],
    /// Layer times from the start of a layer's swap-out to the end of its swap-in.
    absent_times: BTreeSet<u64>,
}

impl SwapModel {
    fn new(queue: u16) -> SwapModel {
        SwapModel {
            mapping: Mapping::new(LAYERS, device_slots(LAYERS, queue), queue),
            now: 0,
            running: Vec::new(),
            swap_log: Vec::new(),
            swapped_out_at: [0; LAYERS as usize],
            absent_times: BTreeSet::new(),
        }
    }

    /// Returns the layer times that one token waits.
    fn token(&mut self) -> u64 {
        let begun = self.now;
        (0..LAYERS).for_each(|layer| self.layer(layer));
        self.now - begun - u64::from(LAYERS)
    }

    fn layer(&mut self, layer: u16) {
        self.swap(layer);
        while !self.mapping.computable(layer) {
            self.now += 1;
            self.swap(layer);
        }
        self.mapping.begin_compute(layer);
        self.now += 1;
        self.mapping.end_compute(layer);
    }

    fn swap(&mut self, at: u16) {
        let now = self.now;
        for (_, swap) in self.running.extract_if(.., |(ends, _)| *ends <= now) {
            self.mapping.commit(swap);
            if swap.to == Side::Device && self.swapped_out_at[usize::from(swap.layer)] > 0 {
                self.absent_times.insert(now - self.swapped_out_at[usize::from(swap.layer)]);
            }
        }
        for swap in due(&mut self.mapping, at) {
            let way = if swap.to == Side::Host { "out" } else { "in" };
            self.swap_log.push(format!("layer {}: {way} {}", at + 1, swap.layer + 1));
            if swap.to == Side::Host {
                self.swapped_out_at[usize::from(swap.layer)] = now;
            }
            self.running.push((now + SWAP, swap));
        }
    }
}

/// Number of warm-up tokens, and of observed tokens after them.
const WARMUP_TOKENS: u32 = 10;
const OBSERVED_TOKENS: u32 = 80;

/// Returns a machine after warm-up, and the layer times that its observed tokens wait.
fn steady_state(queue: u16) -> (SwapModel, u64) {
    let mut machine = SwapModel::new(queue);
    for _ in 0..WARMUP_TOKENS {
        machine.token();
    }
    machine.absent_times.clear();
    let waits = (0..OBSERVED_TOKENS).map(|_| machine.token()).sum();
    (machine, waits)
}

fn first_swaps() -> String {
    let mut machine = SwapModel::new(4);
    machine.token();
    machine.swap_log[..3].join(", ")
}

const PHASE: &str = "three of four tokens wait for the closed form F r + 1 - n; the fourth waits for one \
                     more, because 5.5 swaps in a token shift the queue against it";

/// Compares the steady state: how long a layer stays, and the waits with a queue that is one layer too long.
fn long_run() -> Vec<ComparisonRow> {
    let (fits, none) = steady_state(4);
    let stays: Vec<_> = fits.absent_times.iter().map(u64::to_string).collect();
    let (_, waits) = steady_state(5);
    let closed = PaperValue {
        unit: "layer times",
        paper: 2.0,
        range: (2.0, 2.0),
        reason: Some(DeviationReason { why: PHASE, from: 2.0, to: 2.25 }),
    };
    let mean = waits as f64 / f64::from(OBSERVED_TOKENS);
    vec![
        ComparisonRow::equal("a queue of four: layer times of a stay", &"8".to_owned(), &stays.join(", ")),
        ComparisonRow::equal("a queue of four: layer times that tokens wait", &0, &none),
        ComparisonRow::compare_change("", "a queue of five: layer times that a token waits", &closed, mean),
    ]
}

/// Reproduces Fig. 4 and the formula behind it.
pub fn fig4() -> ExperimentReport {
    let paper = "layer 2: out 1, layer 4: out 3, layer 4: in 8".to_owned();
    let mut rows = vec![
        ComparisonRow::equal("first swaps", &paper, &first_swaps()),
        ComparisonRow::equal("expansion, permille", &1285, &expansion_permille(9, 4)),
        ComparisonRow::equal("expansion of 40 layers at r 2, permille", &1739, &expansion_permille(40, 19)),
    ];
    rows.extend(long_run());
    for (layers, r_tenths, soon, starts) in LONGEST {
        let r = format!("{}.{}", r_tenths / 10, r_tenths % 10);
        let ours =
            (longest_queue(layers, r_tenths * 100), longest_queue_at_layer_starts(layers, r_tenths * 100));
        let text = |(soon, starts): (u16, u16)| format!("{soon} / {starts}");
        rows.push(ComparisonRow::equal(
            format!("{layers} layers, r {r}: longest queue, by event / at layer starts"),
            &text((soon, starts)),
            &text(ours),
        ));
    }
    let line = |layers: u16| Series {
        name: format!("{layers} layers"),
        points: (10..=200)
            .map(|tenths| {
                let queue = longest_queue(layers, tenths * 100);
                (tenths as f64 / 10.0, expansion_permille(layers, queue) as f64 / 1000.0)
            })
            .collect(),
    };
    ExperimentReport::new(
        rows,
        Figure {
            title: "Pie 3.3: how much larger each layer's cache can be".to_owned(),
            x: "r = swap of a layer / compute of a layer".to_owned(),
            y: "expansion".to_owned(),
            names: Vec::new(),
            lines: [32, 40, 48].into_iter().map(line).collect(),
        },
    )
}
