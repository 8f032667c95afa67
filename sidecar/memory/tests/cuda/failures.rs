//! Calls of the driver that fail: nothing is half done.

use std::os::fd::AsFd;

use sluice_memory::backing::SignalWord;
use sluice_memory::{ChunkPool, CudaBacking, CudaMapping, MappingError, PoolError, RangeSizes};
use sluice_policy::action::{Address, Fill, FillTarget, MapOp, Work};
use sluice_policy::event::{Failure, Outcome};
use sluice_policy::ids::{ChunkId, Generation, KvChunkId, LayerId};
use sluice_ports::Memory;

use super::{CHUNK_BYTES, GpuMachine, is_case};
use crate::engine_mapping::gpu;
use crate::engine_process::FAULTS_VAR;
use crate::harness::{Harness, chunks, geometry, map_layer, remap};

const LAYER: LayerId = LayerId(0);

fn world() -> Harness {
    // One layer of one and a half chunks.
    Harness::new(&geometry(CHUNK_BYTES, 6, 1, CHUNK_BYTES * 3 / 2))
}

fn fill(generation: u64) -> Work {
    let (target, generation) = (FillTarget::Resident(LAYER), Generation(generation));
    Work::Fill(Fill { target, generation, after: None, chunks: chunks(0..2) })
}

fn kv(chunk: u32) -> Address {
    Address::Kv(KvChunkId(chunk))
}

#[test]
fn create_that_fails_at_the_third_chunk_creates_none() {
    GpuMachine::new()
        .with("SLUICE_STANDIN_FAULTS", "cuMemCreate=2@3")
        .run_case("cuda::failures::third_create_fails");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn third_create_fails() {
    if !is_case() {
        return;
    }
    let mut world = world();
    assert_eq!(world.run(Work::Create(chunks(0..4))), Outcome::Failed(Failure::OutOfMemory));
    assert_eq!(world.memory.used_bytes(), 0);
    let refused = world.memory.pool().export(&[ChunkId(0)]);
    assert!(matches!(refused, Err(PoolError::Missing { .. })));
    world.succeed(Work::Create(chunks(0..4)));
    assert_eq!(world.memory.used_bytes(), 4 * CHUNK_BYTES);
}

#[test]
fn chunks_that_cannot_be_exported_are_not_created() {
    GpuMachine::new()
        .with("SLUICE_STANDIN_FAULTS", "cuMemExportToShareableHandle=2@3")
        .run_case("cuda::failures::third_create_fails");
}

#[test]
fn a_chunk_is_exported_when_it_is_created() {
    // The fifth export is the second one of chunk 0.
    GpuMachine::new()
        .with("SLUICE_STANDIN_FAULTS", "cuMemExportToShareableHandle=304@5")
        .run_case("cuda::failures::only_the_second_export_calls_the_driver");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn only_the_second_export_calls_the_driver() {
    if !is_case() {
        return;
    }
    let mut world = world();
    world.succeed(Work::Create(chunks(0..4)));
    let first = world.memory.pool().export(&chunks(0..4)).unwrap();
    let refused = world.memory.pool().export(&chunks(0..1));
    assert!(matches!(refused, Err(PoolError::Backing(_))), "{refused:?}");
    drop(first);
    assert_eq!(world.memory.pool().export(&chunks(0..4)).unwrap().len(), 4);
    // Chunk 3 is released with a descriptor that no engine got, and the driver gets all its memory back.
    world.succeed(Work::Release(chunks(3..4)));
    world.succeed(Work::Create(chunks(3..4)));
    world.succeed(Work::Release(chunks(3..4)));
    assert_eq!(world.memory.used_bytes(), 3 * CHUNK_BYTES);
}

#[test]
fn a_full_gpu_is_out_of_memory() {
    // Two contexts of 32 MiB, and two chunks.
    GpuMachine::new()
        .with("SLUICE_STANDIN_BYTES", &((64 << 20) + 2 * CHUNK_BYTES).to_string())
        .run_case("cuda::failures::third_chunk_does_not_fit");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn third_chunk_does_not_fit() {
    if !is_case() {
        return;
    }
    let (context, _engine) = (gpu(), gpu());
    let backing = CudaBacking::new(&context, CHUNK_BYTES, 4, None).unwrap();
    let pool = ChunkPool::over(Box::new(backing), CHUNK_BYTES, 4);
    pool.create_lazy(&chunks(0..2)).unwrap();
    let error = pool.create_lazy(&chunks(2..3)).unwrap_err();
    assert!(
        matches!(error, PoolError::OutOfMemory { chunk: ChunkId(2), used_bytes, .. } if used_bytes == 2 * CHUNK_BYTES),
        "{error}"
    );
    pool.release(ChunkId(0)).unwrap();
    pool.create_lazy(&chunks(2..3)).unwrap();
    [1, 2].iter().for_each(|chunk| pool.release(ChunkId(*chunk)).unwrap());
}

#[test]
fn a_transaction_that_fails_in_the_middle_changes_nothing() {
    // The engine maps one chunk and then two more: the last fails.
    GpuMachine::new()
        .with(FAULTS_VAR, "cuMemMap=2@3")
        .run_case("cuda::failures::last_map_of_a_transaction_fails");
}

#[test]
fn a_transaction_whose_access_fails_changes_nothing() {
    // The engine allows access once and then in this transaction.
    GpuMachine::new()
        .with(FAULTS_VAR, "cuMemSetAccess=2@2")
        .run_case("cuda::failures::last_map_of_a_transaction_fails");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn last_map_of_a_transaction_fails() {
    if !is_case() {
        return;
    }
    let mut world = world();
    world.succeed(Work::Create(chunks(0..4)));
    world.succeed(remap(vec![MapOp::Map(kv(0), ChunkId(0))], vec![]));
    world.write_bytes(sluice_policy::ids::LayerBlockId(0), vec![7; 64]);
    let ops =
        vec![MapOp::Unmap(kv(0), ChunkId(0)), MapOp::Map(kv(1), ChunkId(0)), MapOp::Map(kv(0), ChunkId(1))];
    assert_eq!(world.run(remap(ops.clone(), vec![])), Outcome::Failed(Failure::Refused));
    assert_eq!(world.read(kv(0)).unwrap()[..64], [7; 64]);
    assert_eq!(world.read(kv(1)), None);
    world.memory.audit([(kv(0), ChunkId(0))].into_iter()).unwrap();
    world.succeed(remap(ops, vec![]));
    assert_eq!(world.read(kv(1)).unwrap()[..64], [7; 64]);
}

#[test]
fn a_failed_copy_publishes_nothing_and_the_next_one_succeeds() {
    GpuMachine::new()
        .with("SLUICE_STANDIN_FAULTS", "cuMemcpyHtoDAsync_v2=1@1")
        .run_case("cuda::failures::first_copy_fails");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn first_copy_fails() {
    if !is_case() {
        return;
    }
    let mut world = world();
    world.succeed(Work::Create(chunks(0..2)));
    world.succeed(remap(map_layer(&world.geometry, LAYER, 0), vec![]));
    let word = SignalWord::Ready(Some(LAYER));
    assert_eq!(world.run(fill(1)), Outcome::Failed(Failure::CopyFailed));
    assert_eq!((world.page.ready(Some(LAYER)), world.page.device_word(word)), (Generation(0), Generation(0)));
    world.succeed(fill(2));
    assert_eq!((world.page.ready(Some(LAYER)), world.page.device_word(word)), (Generation(2), Generation(2)));
    assert!(world.contents(Address::Layer(LAYER, 1)).is_some());
}

#[test]
fn a_stream_that_writes_no_word_leaves_it_to_the_cpu() {
    GpuMachine::new()
        .with("SLUICE_STANDIN_FAULTS", "cuStreamWriteValue64_v2=drop")
        .run_case("cuda::failures::word_is_written_by_the_cpu_alone");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn word_is_written_by_the_cpu_alone() {
    if !is_case() {
        return;
    }
    let mut world = world();
    world.succeed(Work::Create(chunks(0..2)));
    world.succeed(fill(1));
    let word = SignalWord::Ready(Some(LAYER));
    assert_eq!((world.page.ready(Some(LAYER)), world.page.device_word(word)), (Generation(1), Generation(0)));
}

#[test]
fn a_chunk_outlives_its_mappings() {
    GpuMachine::new().run_case("cuda::failures::mapped_chunk_is_not_released");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn mapped_chunk_is_not_released() {
    if !is_case() {
        return;
    }
    let context = gpu();
    let backing = CudaBacking::new(&context, CHUNK_BYTES, 2, None).unwrap();
    let pool = ChunkPool::over(Box::new(backing), CHUNK_BYTES, 2);
    pool.create_lazy(&chunks(0..2)).unwrap();
    let sizes = RangeSizes { kv_chunks: 4, ..RangeSizes::default() };
    let mut mapping = CudaMapping::reserve(&context, CHUNK_BYTES, &sizes).unwrap();
    let unknown = mapping.apply_all(&[MapOp::Map(kv(0), ChunkId(0))]);
    assert!(matches!(unknown, Err(MappingError::NotImported { chunk: ChunkId(0) })));
    for (chunk, descriptor) in (0..).map(ChunkId).zip(pool.export(&chunks(0..2)).unwrap()) {
        mapping.import(chunk, descriptor.as_fd()).unwrap();
    }
    // One chunk at many addresses.
    let ops: Vec<_> = (0..4).map(|at| MapOp::Map(kv(at), ChunkId(0))).collect();
    mapping.apply_all(&ops).unwrap();
    let refused = mapping.release(ChunkId(0));
    assert!(matches!(refused, Err(MappingError::Mapped { chunk: ChunkId(0), addresses: 4 })));
    let ops: Vec<_> = (0..4).map(|at| MapOp::Unmap(kv(at), ChunkId(0))).collect();
    mapping.apply_all(&ops).unwrap();
    mapping.release(ChunkId(0)).unwrap();
    // Dropping the rest in any order releases it: first the pool, whose chunk 1 the engine has imported.
    drop(pool);
    mapping.apply_all(&[MapOp::Map(kv(0), ChunkId(1))]).unwrap();
    drop(context);
}

#[test]
fn memory_is_released_after_the_engine_has_let_go() {
    GpuMachine::new().run_case("cuda::failures::release_waits_for_the_engine");
}

#[test]
#[ignore = "a process of the other tests, which start it"]
fn release_waits_for_the_engine() {
    if !is_case() {
        return;
    }
    let mut world = world();
    world.succeed(Work::Create(chunks(0..2)));
    for chunk in [0, 1] {
        world.succeed(remap(vec![MapOp::Map(kv(chunk), ChunkId(chunk))], vec![]));
        world.succeed(remap(vec![MapOp::Unmap(kv(chunk), ChunkId(chunk))], vec![]));
    }
    world.hold_engine(true);
    let release = world.submit_work(Work::Release(chunks(0..1)));
    world.wait_for_held_answer();
    assert_eq!((world.outcome(release), world.memory.used_bytes()), (None, 2 * CHUNK_BYTES));
    world.hold_engine(false);
    assert!(matches!(world.wait(release), Outcome::Done { .. }));
    assert_eq!(world.memory.used_bytes(), CHUNK_BYTES);
    // An engine that has exited holds nothing.
    world.hold_engine(true);
    let release = world.submit_work(Work::Release(chunks(1..2)));
    world.wait_for_held_answer();
    world.detach_engine();
    world.memory.on_engine_lost();
    assert!(matches!(world.wait(release), Outcome::Done { .. }));
    assert_eq!(world.memory.used_bytes(), 0);
}
