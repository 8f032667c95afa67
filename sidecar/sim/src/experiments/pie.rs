//! Pie's worked example, and the longest queues without a stall.

use sluice_policy::closed_form::pie::{
    device_slots, expansion_permille, longest_queue, longest_queue_at_layer_starts,
};
use sluice_policy::pie::mapping::{Mapping, Side};
use sluice_policy::pie::swapping::due;

use super::{Figure, Line, Report, Row};

/// Layers, r in tenths, the longest queue when swaps are issued as soon as possible and at layer starts.
const LONGEST: [(u16, u64, u16, u16); 6] =
    [(9, 20, 4, 4), (40, 20, 19, 19), (40, 25, 15, 13), (48, 17, 27, 23), (48, 25, 18, 15), (32, 65, 4, 4)];

/// The first swaps of Fig. 4: 9 layers, a swap takes two layer times, a queue of four.
fn first_swaps() -> String {
    const LAYERS: u16 = 9;
    const SWAP: u16 = 2;
    let mut mapping = Mapping::new(LAYERS, device_slots(LAYERS, 4), 4);
    let (mut running, mut told) = (Vec::new(), Vec::new());
    for layer in 0..4 {
        let (ended, still): (Vec<_>, Vec<_>) = running.into_iter().partition(|(ends, _)| *ends <= layer);
        ended.into_iter().for_each(|(_, swap)| mapping.commit(swap));
        running = still;
        for swap in due(&mut mapping, layer) {
            let way = if swap.to == Side::Host { "out" } else { "in" };
            told.push(format!("layer {}: {way} {}", layer + 1, swap.layer + 1));
            running.push((layer + SWAP, swap));
        }
    }
    told.join(", ")
}

/// Fig. 4 and the formula behind it.
pub fn fig4() -> Report {
    let paper = "layer 2: out 1, layer 4: out 3, layer 4: in 8".to_owned();
    let mut rows = vec![
        Row::equal("first swaps", &paper, &first_swaps()),
        Row::equal("expansion, permille", &1285, &expansion_permille(9, 4)),
        Row::equal("expansion of 40 layers at r 2, permille", &1739, &expansion_permille(40, 19)),
    ];
    for (layers, r_tenths, soon, starts) in LONGEST {
        let r = format!("{}.{}", r_tenths / 10, r_tenths % 10);
        let ours =
            (longest_queue(layers, r_tenths * 100), longest_queue_at_layer_starts(layers, r_tenths * 100));
        let told = |(soon, starts): (u16, u16)| format!("{soon} / {starts}");
        rows.push(Row::equal(
            format!("{layers} layers, r {r}: longest queue, by event / at layer starts"),
            &told((soon, starts)),
            &told(ours),
        ));
    }
    let line = |layers: u16| Line {
        name: format!("{layers} layers"),
        points: (10..=200)
            .map(|tenths| {
                let queue = longest_queue(layers, tenths * 100);
                (tenths as f64 / 10.0, expansion_permille(layers, queue) as f64 / 1000.0)
            })
            .collect(),
    };
    Report::new(
        rows,
        Figure {
            title: "Pie 3.3: how much larger each layer's cache can be".to_owned(),
            x: "r = swap of a layer / compute of a layer".to_owned(),
            y: "expansion".to_owned(),
            lines: [32, 40, 48].into_iter().map(line).collect(),
        },
    )
}
