//! Slabs of more than one piece: all bytes arrive, in consecutive chunks and in others.

use sluice_policy::action::{Address, Fill, FillTarget, MapOp, Work};
use sluice_policy::event::Outcome;
use sluice_policy::ids::{ChunkId, Generation, LayerId};
use sluice_ports::conformance::SlabChunk;

use super::{CHUNK_BYTES, GpuMachine, is_case};
use crate::harness::{Harness, chunks, geometry, remap};

const LAYER: LayerId = LayerId(0);
/// Three pieces of eight chunks, the last one not full.
const PARTS: u32 = 23;

#[test]
fn a_slab_of_many_pieces_arrives_whole() {
    GpuMachine::new().run_case("cuda::copies::large_slab_arrives");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn large_slab_arrives() {
    if !is_case() {
        return;
    }
    let geometry = geometry(CHUNK_BYTES, PARTS, 1, u64::from(PARTS) * CHUNK_BYTES - 4096);
    let mut world = Harness::new(&geometry);
    world.succeed(Work::Create(chunks(0..PARTS)));
    // Consecutive, then with a step of 5, which visits every chunk because 23 is a prime.
    let orders = [1, 5].map(|step| (0..PARTS).map(|part| ChunkId(part * step % PARTS)).collect::<Vec<_>>());
    for (generation, order) in (1..).map(Generation).zip(orders) {
        let at = |part: usize| Address::Layer(LAYER, part as u32);
        let map = order.iter().enumerate().map(|(part, chunk)| MapOp::Map(at(part), *chunk)).collect();
        world.succeed(remap(map, vec![]));
        let target = FillTarget::Resident(LAYER);
        let outcome = world.run(Work::Fill(Fill { target, generation, after: None, chunks: order.clone() }));
        let whole = geometry.slab_bytes[0];
        assert!(
            matches!(outcome, Outcome::Done { bytes, duration_ns: 1.. } if bytes == whole),
            "{outcome:?}"
        );
        for part in 0..PARTS {
            let expected = Some(SlabChunk { layer: Some(LAYER), chunk: part });
            assert_eq!(world.contents(at(part as usize)), expected, "{generation:?}");
        }
        let unmap = order.iter().enumerate().map(|(part, chunk)| MapOp::Unmap(at(part), *chunk)).collect();
        world.succeed(remap(unmap, vec![]));
    }
}
