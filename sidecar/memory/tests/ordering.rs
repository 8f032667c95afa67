//! Slots under an engine of any reading speed: it never sees another layer's bytes. The reference model is
//! the list of copies: while a generation is being read, its slot contains exactly its layer.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluice_memory::{Faults, Mapping};
use sluice_policy::action::{Address, Fill, FillTarget, MapOp, Work};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{ChunkId, Generation, LayerId, SlotId};
use sluice_ports::conformance::SlabChunk;

use super::engine_mapping::read;
use super::harness::{ControlPage, Harness, chunks, decode, geometry, ranges};

const LAYERS: u16 = 4;
const PARTS: u32 = 3;

/// One use of a slot by a layer, and how long its reader takes.
#[derive(Clone, Debug)]
struct LayerUse {
    slot: u8,
    layer: u16,
    read: Duration,
    /// Time between two orders.
    pause: Duration,
}

fn layer_use() -> impl Strategy<Value = LayerUse> {
    (0..2u8, 0..LAYERS / 2, 0..1500u64, 0..800u64).prop_map(|(slot, half, read_us, pause_us)| LayerUse {
        slot,
        // Each layer has a fixed slot, because its address has fixed chunks.
        layer: half * 2 + u16::from(slot),
        read: Duration::from_micros(read_us),
        pause: Duration::from_micros(pause_us),
    })
}

/// Runs the engine: for each use it waits for the generation, checks the slab before and after its work, and
/// sets `done`.
fn reader(
    geometry: Geometry,
    page: Arc<ControlPage>,
    mapping: Mapping,
    stays: Vec<LayerUse>,
) -> Result<(), String> {
    for (at, stay) in stays.iter().enumerate() {
        let (layer, generation) = (LayerId(stay.layer), Generation(at as u64 + 1));
        if !page.wait_ready(layer, generation) {
            return Err(format!("{stay:?}: {generation:?} is never shown"));
        }
        let intact = || (0..PARTS).all(|part| has_layer_bytes(&geometry, &mapping, layer, part));
        let before = intact();
        std::thread::sleep(stay.read);
        if !before || !intact() {
            return Err(format!("{stay:?}: its slot holds another layer's bytes"));
        }
        page.set_done(layer, generation);
    }
    Ok(())
}

fn has_layer_bytes(geometry: &Geometry, mapping: &Mapping, layer: LayerId, part: u32) -> bool {
    let bytes = read(mapping, Address::Layer(layer, part), geometry.chunk_bytes as usize).unwrap();
    decode(geometry, &bytes) == Some(SlabChunk { layer: Some(layer), chunk: part })
}

/// Submits the copy of every use after its pause; each waits for the previous reader of its slot.
fn run(stays: &[LayerUse], faults: Faults, copy_threads: usize) -> Result<(), String> {
    let geometry = geometry(16 << 10, 2 * PARTS, usize::from(LAYERS), u64::from(PARTS) * (16 << 10));
    let mut world = Harness::with(&geometry, |options| options.copy_threads = copy_threads);
    world.succeed(Work::Create(chunks(0..2 * PARTS)));
    world.memory.set_faults(faults);
    let mut mapping = Mapping::reserve(geometry.chunk_bytes, ranges(&geometry)).unwrap();
    for layer in 0..LAYERS {
        let first = u32::from(layer % 2) * PARTS;
        for part in 0..PARTS {
            let map = MapOp::Map(Address::Layer(LayerId(layer), part), ChunkId(first + part));
            mapping.apply(world.memory.pool_file().unwrap(), &map).unwrap();
        }
    }
    let (page, of_reader) = (world.page.clone(), stays.to_vec());
    let reader = std::thread::spawn(move || reader(geometry, page, mapping, of_reader));
    let mut before = [None; 2];
    for (at, stay) in stays.iter().enumerate() {
        std::thread::sleep(stay.pause);
        let slot = usize::from(stay.slot);
        world.submit_work(Work::Fill(copy(stay, at as u64 + 1, before[slot])));
        before[slot] = Some((LayerId(stay.layer), Generation(at as u64 + 1)));
        world.collect();
    }
    reader.join().expect("the reader does not panic")
}

fn copy(stay: &LayerUse, generation: u64, after: Option<(LayerId, Generation)>) -> Fill {
    let first = u32::from(stay.slot) * PARTS;
    Fill {
        target: FillTarget::Slot(SlotId(stay.slot), LayerId(stay.layer)),
        generation: Generation(generation),
        after,
        chunks: chunks(first..first + PARTS),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reader_sees_only_its_own_layer_in_slot(
        stays in prop::collection::vec(layer_use(), 1..24),
        threads in 1..3usize,
    ) {
        prop_assert_eq!(run(&stays, Faults::default(), threads), Ok(()));
    }
}

#[test]
fn skipping_reader_wait_fails_the_check() {
    let stay = |layer| LayerUse { slot: 0, layer, read: Duration::from_millis(100), pause: Duration::ZERO };
    let stays = [stay(0), stay(2)];
    assert_eq!(run(&stays, Faults::default(), 1), Ok(()));
    let broken = Faults { skip_after_wait: true, ..Faults::default() };
    let found = run(&stays, broken, 1).expect_err("a copy that does not wait is noticed");
    assert!(found.contains("another layer's bytes"), "{found}");
}
