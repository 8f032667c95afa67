//! States as the text of `--once`.

mod peers;

use sluice_wire::state::{Move, OwnerBytes, Percentiles, Phase, Residency, Tenant, TokenCounts};

use super::*;
use crate::top::SidecarPoll;

const NOW: u64 = 1_700_000_000_000;
const CHUNK: u64 = 64 << 10;
const TEXT: &str = "\
sluice top   2 tenants, 1 without an answer
GPU local-story-0   default/story   30 MiB, a cell is one chunk of 64 KiB
GGGGGGGGGGGGGGGGGGGGGGGGWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWSSSS
SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK
KKKKKKkkkkkkkkkkkkkkkkkkkkkkkkAAAAAAAAAAAAAAAAAAAAAAAA........................................................
........................................
G global  W layers  S slots  K kv used  k kv cached/free  A activations  . free
  TENANT        PHASE     RUN+WAIT  TOK/S   KV  A/B/CAP   TBT-ENG   TBT-OUT      TTFT PREEMPT  RECOMP LOST
  default/story active        4+12    123  75%    2/1/5     12/30     50/61   120/340       3    1204    0
  default/gone  no answer: connection refused

default/story   Active for 12s   policy Oneiros   no engine, 0 lost
memory   G 1.5 MiB  W 12 MiB  S 3 MiB  K 4.5 MiB  k 1.5 MiB  A 1.5 MiB  . 6 MiB
layers   RR0RR0RR0
kv       300 used  60 cached  40 free  of 400 blocks of 2 KiB  fragmented 0.0 %
latency  p50/p99 ms: TBT engine 12/30, out 50/61 (- met)  TTFT 120/340 (- met)
work     3 preempted  1204 recomputed  0 steps  deposit 0 in 0 streams
link     -  0 B copied  a layer takes - ms to copy, - ms to compute, r -
moves
   2.3s ago  remap_own         3 MiB  layers 2,5,8  for kv
   5.0s ago  free_chunks       3 MiB  for kv

problem  default/gone: connection refused";

/// 480 chunks: 24 global, 192 layers, 48 slots, 96 kv (three quarters used), 24 activations, 96 free.
fn state(name: &str) -> State {
    let mut state = State {
        at_unix_ms: NOW,
        tenant: Tenant {
            namespace: "default".into(),
            name: name.into(),
            model: name.into(),
            gpu: format!("local-{name}-0"),
        },
        phase: Phase::Active,
        phase_since_unix_ms: NOW - 12_000,
        policy: "Oneiros".into(),
        ..State::default()
    };
    state.memory.capacity_bytes = 480 * CHUNK;
    state.memory.chunk_bytes = CHUNK;
    state.memory.owners = OwnerBytes {
        weights_global_bytes: 24 * CHUNK,
        weights_layers_bytes: 192 * CHUNK,
        slots_bytes: 48 * CHUNK,
        kv_bytes: 96 * CHUNK,
        activation_bytes: 24 * CHUNK,
        free_bytes: 96 * CHUNK,
        ..OwnerBytes::default()
    };
    (state.kv.layer_blocks_total, state.kv.layer_blocks_used, state.kv.layer_blocks_cached) = (400, 300, 60);
    (state.kv.layer_blocks_free, state.kv.layer_block_bytes, state.kv.utilisation_permille) = (40, 2048, 750);
    (state.remap.alpha, state.remap.beta, state.remap.cap_layers) = (2, 1, 5);
    state.remap.moving_layers = vec![2, 5, 8];
    state.layers = (0..9)
        .map(|l| if l % 3 == 2 { Residency::Moving { slot: 0 } } else { Residency::Resident })
        .collect();
    (state.queue.running, state.queue.waiting) = (4, 12);
    state.figures.engine_tbt = Percentiles { samples: 9, p50_ns: 12_000_000, p99_ns: 30_000_000 };
    state.figures.delivered_tbt = Percentiles { samples: 9, p50_ns: 50_000_000, p99_ns: 61_000_000 };
    state.figures.ttft = Percentiles { samples: 9, p50_ns: 120_000_000, p99_ns: 340_000_000 };
    (state.figures.preemptions_total, state.figures.recomputed_tokens_total) = (3, 1204);
    state.moves = vec![moved(NOW - 5_000, "free_chunks", &[]), moved(NOW - 2_300, "remap_own", &[2, 5, 8])];
    state
}

fn moved(at_unix_ms: u64, reason: &str, layers: &[u16]) -> Move {
    Move {
        at_unix_ms,
        reason: reason.into(),
        detail: "for kv".into(),
        layers: layers.into(),
        bytes: 48 * CHUNK,
    }
}

fn answered(name: &str) -> SidecarPoll {
    SidecarPoll { title: format!("default/{name}"), state: Ok(state(name)), token_rate: Some(123.4) }
}

fn silent(name: &str) -> SidecarPoll {
    let state = Err("connection refused".into());
    SidecarPoll { title: format!("default/{name}"), state, token_rate: None }
}

/// What `--once` prints, in lines of at most `width` columns.
fn rows(sightings: &[SidecarPoll], width: usize) -> Vec<String> {
    lines(sightings, false, width).iter().map(|line| line.to_string().trim_end().to_owned()).collect()
}

fn lines(sightings: &[SidecarPoll], colour: bool, width: usize) -> Vec<Line<'static>> {
    text(&RenderContext { polls: sightings, colour, now_unix_ms: NOW, empty_text: "no tenant" }, width)
}

#[test]
fn no_detail_is_cut_at_80_columns() {
    let mut sighting = answered("a-tenant-with-a-name-of-some-length");
    let state = sighting.state.as_mut().unwrap();
    let slow = |p50_ns| Percentiles { samples: 9, p50_ns, p99_ns: 9_876_000_000 };
    state.engine.pid = Some(1_234_567);
    (state.figures.engine_tbt, state.figures.delivered_tbt) = (slow(1_234_000_000), slow(2_345_000_000));
    (state.figures.ttft, state.slo.tbt_attained_permille) = (slow(3_456_000_000), Some(1000));
    state.slo.ttft_attained_permille = Some(1000);
    (state.figures.t_transfer_ns, state.figures.t_compute_ns) = (Some(16_400_000), Some(2_200_000));
    (state.figures.r_permille, state.figures.link_bytes_per_second) = (Some(70_100), Some(100_000_000));
    (state.memory.overhead_bytes, state.memory.owners.staging_bytes) = (CHUNK, CHUNK);
    state.memory.owners.earmarked_bytes = CHUNK;
    state.memory.owners.free_bytes -= 3 * CHUNK;
    state.moves.push(moved(NOW - 100, "remap_own", &(0..40).collect::<Vec<_>>()));
    state.engine.failure = Some("word ".repeat(30) + "end");
    let shown = rows(&[sighting], 80);
    let words = shown.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    for whole in [
        "GPU local-a-tenant-with-a-name-of-some-length-0 30 MiB oGGG",
        "policy Oneiros engine pid 1234567, 0 lost failure word",
        "TBT engine 1234/9876, out 2345/9876 (100.0 % met) TTFT 3456/9876 (100.0 % met) work",
        "a layer takes 16 ms to copy, 2.2 ms to compute, r 70.1 moves",
        "remap_own 3 MiB 40 layers for kv",
        "word word end memory",
        "E earmarked . free TENANT",
        "default/a-tenant-… active",
    ] {
        assert!(words.contains(whole), "{whole}: {shown:#?}");
    }
}

#[test]
fn a_cell_stands_for_as_few_chunks_as_fit() {
    let view =
        RenderContext { polls: &[answered("a")], colour: false, now_unix_ms: NOW, empty_text: "no tenant" };
    let cells = |width, rows| {
        let lines = map(&view, &GpuTenants::group_by_gpu(&view)[0], "t", &state("a"), width, rows);
        lines[1..].iter().map(|l| l.to_string().len()).sum::<usize>()
    };
    assert_eq!((cells(80, 6), cells(80, 3), cells(80, 1)), (480, 240, 80));
}

#[test]
fn unreachable_sidecar_has_its_own_row() {
    let shown = rows(&[silent("gone"), answered("story")], 80);
    assert_eq!(shown[0], "sluice top   2 tenants, 1 without an answer");
    assert!(shown.iter().any(|r| r == "  default/gone  no answer: connection refused"), "{shown:#?}");
    assert!(shown.iter().any(|r| r.starts_with("  default/story active ")), "{shown:#?}");
}

#[test]
fn empty_screen_shows_source_text() {
    let shown = rows(&[], 80);
    let expected = "sluice top   no tenant";
    assert_eq!(shown.join("\n").trim_end(), expected);
}

#[test]
fn every_width_has_all_tenants() {
    for width in [0, 1, 2, 20, 79, 80, 250] {
        let shown = rows(&[answered("story"), silent("gone"), answered("b")], width);
        assert_eq!(shown[0], "sluice top   3 tenants, 1 without an answer", "{width} columns");
    }
}

#[test]
fn colours_are_used_only_when_allowed() {
    let coloured = |colour| {
        let lines = lines(&[answered("story"), silent("gone")], colour, 80);
        lines.iter().flat_map(|line| &line.spans).filter(|span| span.style.fg.is_some()).count()
    };
    assert_eq!(coloured(false), 0);
    assert!(coloured(true) > 20, "the map at least");
}

#[test]
fn the_text_has_every_column_and_every_sidecar() {
    assert_eq!(rows(&[answered("story"), silent("gone")], 110).join("\n"), TEXT);
}

#[test]
fn unbalanced_ledger_is_reported() {
    let mut sighting = answered("story");
    sighting.state.as_mut().unwrap().memory.owners.free_bytes -= 1;
    let shown = rows(&[sighting], 80);
    assert!(shown[1].contains("DOES NOT BALANCE"), "{shown:#?}");
}

#[test]
fn loading_layers_and_a_failure_are_shown() {
    let mut sighting = answered("story");
    let state = sighting.state.as_mut().unwrap();
    (state.layers[0], state.phase) = (Residency::Loading, Phase::Failed);
    state.engine.failure = Some("config.json: num_hidden_layers: missing".into());
    let shown = rows(&[sighting], 80);
    assert!(shown.contains(&"layers   .R0RR0RR0".to_owned()), "{shown:#?}");
    assert!(shown.contains(&"failure  config.json: num_hidden_layers: missing".to_owned()), "{shown:#?}");
}

#[test]
fn aborted_tokens_and_manual_sleep_are_shown() {
    let mut sighting = answered("story");
    let state = sighting.state.as_mut().unwrap();
    state.slo.ttft_attained_permille = Some(666);
    state.slo.ttft_window = TokenCounts { tokens: 3, given_up: 1, asleep: 0 };
    (state.phase, state.sleep_ordered) = (Phase::Hibernated, true);
    let shown = rows(&[sighting], 110).join("\n");
    for words in [
        "TTFT 120/340 (66.6 % met, 1 given up)",
        "default/story asleep ",
        "default/story   Asleep by hand for 12s",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
}

#[test]
fn a_tenant_that_uses_no_kv_is_not_fragmented() {
    let mut sighting = answered("story");
    let state = sighting.state.as_mut().unwrap();
    (state.kv.layer_blocks_used, state.kv.layer_blocks_cached, state.kv.fragmentation_permille) =
        (0, 360, 1000);
    let shown = rows(&[sighting], 80);
    assert!(
        shown.contains(&"kv       0 used  360 cached  40 free  of 400 blocks of 2 KiB".to_owned()),
        "{shown:#?}"
    );
}

#[test]
fn decisions_that_moved_no_byte_do_not_hide_moves() {
    let mut sighting = answered("story");
    let state = sighting.state.as_mut().unwrap();
    let before = rows(&[answered("story")], 80);
    let decided = (0..20).map(|at| Move { bytes: 0, ..moved(NOW - 20 + at, "plan", &[]) });
    state.moves.extend(decided);
    assert_eq!(rows(&[sighting.clone()], 80), before);
    sighting.state.as_mut().unwrap().moves.retain(|moved| moved.bytes == 0);
    let shown = rows(&[sighting], 80);
    assert!(shown.contains(&"  none yet".to_owned()), "{shown:#?}");
}
