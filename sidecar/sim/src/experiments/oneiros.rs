//! Oneiros' limit on the number of layers that move without a stall.

use sluice_policy::remap::uniform;
use sluice_policy::step_model::{Layout, SlotRule, Times, stall_under_ns};

use super::{ComparisonRow, ExperimentReport, Figure, Series};

/// The values of r in `TABLE`.
const RATIOS: [u64; 9] = [1, 2, 3, 4, 5, 6, 8, 12, 16];

/// Number of layers, and for each r the largest stall-free alpha with one slot and with two alternating slots.
const TABLE: [(u16, [(u16, u16); 9]); 6] = [
    (24, [(11, 22), (7, 10), (5, 6), (3, 4), (3, 2), (2, 2), (1, 1), (0, 0), (0, 0)]),
    (32, [(15, 30), (9, 14), (7, 8), (5, 6), (4, 4), (3, 3), (2, 2), (1, 0), (0, 0)]),
    (40, [(19, 38), (12, 18), (9, 11), (7, 8), (5, 6), (4, 4), (3, 3), (2, 1), (1, 0)]),
    (48, [(23, 46), (15, 22), (11, 14), (8, 10), (7, 7), (5, 6), (4, 4), (2, 2), (1, 1)]),
    (64, [(31, 62), (20, 30), (15, 19), (11, 14), (9, 10), (8, 8), (6, 6), (3, 3), (2, 2)]),
    (80, [(39, 78), (25, 38), (19, 24), (15, 18), (12, 14), (10, 11), (7, 8), (5, 4), (3, 3)]),
];

/// Returns the largest alpha without a stall, with slots that alternate over tokens.
fn largest(layers: u16, ratio: u64, beta: u8) -> u16 {
    let (compute, transfer) = (vec![1; layers.into()], vec![ratio; layers.into()]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let stalls = |alpha: u16| {
        let layout = Layout { moving: uniform(layers, alpha + u16::from(beta)), beta };
        alpha > 0 && stall_under_ns(&times, &layout, SlotRule::Alternating) > 0
    };
    (0..=layers - u16::from(beta)).rev().find(|&alpha| !stalls(alpha)).unwrap_or(0)
}

/// Compares the table of largest stall-free alpha.
pub fn alpha() -> ExperimentReport {
    let cells = TABLE
        .iter()
        .flat_map(|(layers, row)| RATIOS.iter().zip(row).map(move |(r, cell)| (*layers, *r, *cell)));
    let rows = cells.map(|(layers, ratio, (one, two))| {
        let ours = (largest(layers, ratio, 1), largest(layers, ratio, 2));
        let text = |(one, two): (u16, u16)| format!("{one} / {two}");
        ComparisonRow::equal(format!("{layers} layers, r {ratio}"), &text((one, two)), &text(ours))
    });
    let line = |(layers, beta): (u16, u8)| Series {
        name: format!("{layers} layers, {beta} slot{}", if beta == 1 { "" } else { "s" }),
        points: (1..=20).map(|ratio| (ratio as f64, f64::from(largest(layers, ratio, beta)))).collect(),
    };
    ExperimentReport::new(
        rows.collect(),
        Figure {
            title: "Oneiros 5.4: layers whose memory KV can use without a stall".to_owned(),
            x: "r = copy of a layer / compute of a layer".to_owned(),
            y: "layers given away".to_owned(),
            names: Vec::new(),
            lines: [(40, 1), (40, 2), (80, 1), (80, 2)].into_iter().map(line).collect(),
        },
    )
}
