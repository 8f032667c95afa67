//! Physical memory: capacity, allocation and release of the machine's memory, seals.

use sluice_memory::{ChunkPool, Faults, PoolError};
use sluice_policy::action::{Address, Fill, FillTarget, MapOp, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, KvChunkId, LayerId};
use sluice_policy::reason::Reason;
use sluice_ports::conformance::SlabChunk;

use super::harness::{Harness, chunks, geometry, map_layer, remap};

/// Returns the bytes that the file occupies.
fn allocated_bytes(pool: &ChunkPool) -> u64 {
    rustix::fs::fstat(pool.file().unwrap()).unwrap().st_blocks as u64 * 512
}

#[test]
fn create_allocates_and_release_frees_memory() {
    for chunk_bytes in [64 << 10, 2 << 20] {
        let pool = ChunkPool::new(chunk_bytes, 8).unwrap();
        assert_eq!(allocated_bytes(&pool), 0);
        (0..8).for_each(|c| pool.create(ChunkId(c)).unwrap());
        assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (8 * chunk_bytes, 8 * chunk_bytes));
        (2..5).for_each(|c| pool.release(ChunkId(c)).unwrap());
        assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (5 * chunk_bytes, 5 * chunk_bytes));
        (0..2).chain(5..8).for_each(|c| pool.release(ChunkId(c)).unwrap());
        assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (0, 0));
    }
}

#[test]
fn lazy_chunk_reads_zero_and_allocates_on_write() {
    for chunk_bytes in [64 << 10, 2 << 20] {
        let pool = ChunkPool::new(chunk_bytes, 4).unwrap();
        pool.create_lazy(&[ChunkId(0), ChunkId(1), ChunkId(3)]).unwrap();
        assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (0, 3 * chunk_bytes));
        assert!([0, 1, 3].iter().all(|c| pool.exists(ChunkId(*c)) && !pool.is_backed(ChunkId(*c))));
        let bytes: Vec<u8> = (0..chunk_bytes as u32).map(|at| (at % 251) as u8).collect();
        pool.write(ChunkId(1), 0, &bytes).unwrap();
        pool.write(ChunkId(3), chunk_bytes - 7, b"the end").unwrap();
        let mut found = vec![1; chunk_bytes as usize];
        pool.read(ChunkId(1), 0, &mut found).unwrap();
        assert!(found == bytes);
        pool.read(ChunkId(3), 0, &mut found).unwrap();
        let end = found.split_off(chunk_bytes as usize - 7);
        assert!(end == b"the end" && found.iter().all(|byte| *byte == 0));
        pool.ensure_backed(ChunkId(0)).unwrap();
        assert!(pool.is_backed(ChunkId(0)));
        pool.write(ChunkId(0), 0, b"sluice").unwrap();
        pool.ensure_backed(ChunkId(3)).unwrap();
        assert_eq!(allocated_bytes(&pool), 3 * chunk_bytes);
        [0, 1, 3].iter().for_each(|c| pool.release(ChunkId(*c)).unwrap());
        assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (0, 0));
        pool.create_lazy(&[ChunkId(0)]).unwrap();
        assert!(!pool.is_backed(ChunkId(0)), "the pages of its former life have gone");
        pool.read(ChunkId(0), 0, &mut found[..6]).unwrap();
        assert_eq!(&found[..6], [0; 6]);
    }
}

#[test]
fn lazy_create_is_all_or_nothing() {
    let pool = ChunkPool::new(64 << 10, 4).unwrap();
    pool.create(ChunkId(2)).unwrap();
    for (chunks, exists) in [([0, 2], true), ([0, 4], false), ([1, 1], true)] {
        let error = pool.create_lazy(&chunks.map(ChunkId)).unwrap_err();
        assert_eq!(matches!(error, PoolError::Exists { .. }), exists, "{error}");
        assert!(!pool.exists(ChunkId(0)) && !pool.exists(ChunkId(1)));
    }
    assert_eq!((allocated_bytes(&pool), pool.used_bytes()), (64 << 10, 64 << 10));
    pool.create_lazy(&[0, 1, 3].map(ChunkId)).unwrap();
}

#[test]
fn weight_pages_allocate_on_copy_and_kv_pages_before_map() {
    let layer = LayerId(0);
    let geometry = geometry(64 << 10, 4, 1, 128 << 10);
    let mut world = Harness::new(&geometry);
    let allocated = |world: &Harness| {
        rustix::fs::fstat(world.memory.pool_file().unwrap()).unwrap().st_blocks as u64 * 512
            / geometry.chunk_bytes
    };
    world.succeed_with_reason(Reason::Load, Work::Create(chunks(0..4)));
    assert_eq!(allocated(&world), 4, "no peer waits for a tenant that loads");
    world.succeed(Work::Release(chunks(0..4)));
    world.succeed_with_reason(Reason::Wake, Work::Create(chunks(0..4)));
    assert_eq!(allocated(&world), 0);
    world.hold_engine(true);
    let kv = (2..4).map(|c| MapOp::Map(Address::Kv(KvChunkId(c)), ChunkId(c)));
    let ops: Vec<_> = map_layer(&geometry, layer, 0).into_iter().chain(kv).collect();
    let order = world.submit_work(remap(ops, vec![]));
    world.settle();
    assert_eq!(
        (world.outcome(order), allocated(&world)),
        (None, 2),
        "the engine has it, and may write to KV"
    );
    world.hold_engine(false);
    world.wait(order);
    let target = FillTarget::Resident(layer);
    let mut fill = |generation| {
        let generation = Generation(generation);
        world.run(Work::Fill(Fill { target, generation, after: None, chunks: chunks(0..2) }))
    };
    let measured = |outcome| matches!(outcome, Outcome::Done { bytes, duration_ns: 1.. } if bytes > 0);
    let fills = [1, 2, 3].map(|generation| measured(fill(generation)));
    assert_eq!(fills, [false, false, true], "what makes pages and what maps them tell nothing of the link");
    assert_eq!(allocated(&world), 4);
    let part = |part| Some(SlabChunk { layer: Some(layer), chunk: part });
    let at = |part| world.contents(Address::Layer(layer, part));
    assert_eq!([at(0), at(1)], [part(0), part(1)]);
}

#[test]
fn one_chunk_more_than_the_capacity_is_out_of_memory() {
    let pool = ChunkPool::new(64 << 10, 3).unwrap();
    (0..3).for_each(|c| pool.create(ChunkId(c)).unwrap());
    assert!(matches!(pool.create(ChunkId(3)), Err(PoolError::OutOfMemory { .. })));
    assert_eq!(allocated_bytes(&pool), 3 * (64 << 10));
}

#[test]
fn missing_chunk_cannot_be_read_written_or_released() {
    let pool = ChunkPool::new(64 << 10, 2).unwrap();
    pool.create(ChunkId(0)).unwrap();
    let missing = |result: Result<(), PoolError>| matches!(result, Err(PoolError::Missing { .. }));
    for chunk in [ChunkId(1), ChunkId(9)] {
        assert!(missing(pool.write(chunk, 0, b"x")));
        assert!(missing(pool.read(chunk, 0, &mut [0])));
        assert!(missing(pool.copy((ChunkId(0), 0), (chunk, 0), 8)));
        assert!(missing(pool.poison(chunk)));
        assert!(missing(pool.release(chunk)));
    }
    assert!(matches!(pool.create(ChunkId(0)), Err(PoolError::Exists { .. })));
    assert!(matches!(pool.write(ChunkId(0), 65535, b"xy"), Err(PoolError::OutsideChunk { .. })));
    assert_eq!(allocated_bytes(&pool), 64 << 10, "nothing was touched");
}

#[test]
fn a_recreated_chunk_holds_zeros() {
    let pool = ChunkPool::new(64 << 10, 1).unwrap();
    pool.create(ChunkId(0)).unwrap();
    pool.poison(ChunkId(0)).unwrap();
    pool.release(ChunkId(0)).unwrap();
    pool.create(ChunkId(0)).unwrap();
    let mut bytes = vec![1; 64 << 10];
    pool.read(ChunkId(0), 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn a_peer_cannot_truncate_or_grow_the_file() {
    let pool = ChunkPool::new(64 << 10, 2).unwrap();
    let peer = pool.file().unwrap().try_clone_to_owned().unwrap();
    for bytes in [0, 1 << 20] {
        assert_eq!(rustix::fs::ftruncate(&peer, bytes), Err(rustix::io::Errno::PERM));
    }
    let more = rustix::fs::fcntl_add_seals(&peer, rustix::fs::SealFlags::WRITE);
    assert_eq!(more, Err(rustix::io::Errno::PERM));
}

#[test]
fn failed_allocation_leaves_no_chunk_and_recovers() {
    let mut world = Harness::new(&geometry(64 << 10, 4, 1, 64 << 10));
    world.memory.set_faults(Faults { fail_creates: 1, ..Faults::default() });
    assert_eq!(world.run(Work::Create(chunks(0..4))), Outcome::Failed(Failure::OutOfMemory));
    assert_eq!(sluice_ports::Memory::used_bytes(&world.memory), 0);
    world.succeed(Work::Create(chunks(0..4)));
}

#[test]
fn streaming_write_is_exact_at_any_alignment() {
    let pool = ChunkPool::new(64 << 10, 1).unwrap();
    pool.create(ChunkId(0)).unwrap();
    let source: Vec<u8> = (0..64 << 10).map(|at: u32| (at % 251) as u8).collect();
    for (offset, bytes) in [(0, 64 << 10), (1, 1000), (63, 65), (64, 64), (7, 20), (130, 0), (65, 64 << 9)] {
        pool.poison(ChunkId(0)).unwrap();
        pool.write_streaming(ChunkId(0), offset as u64, &source[3.min(offset)..][..bytes]).unwrap();
        let mut found = vec![0; 64 << 10];
        pool.read(ChunkId(0), 0, &mut found).unwrap();
        let mut expected = vec![0xFF; 64 << 10];
        expected[offset..offset + bytes].copy_from_slice(&source[3.min(offset)..][..bytes]);
        assert!(found == expected, "{bytes} bytes at {offset}");
    }
}
