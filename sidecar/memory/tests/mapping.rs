//! The engine's half: constant addresses, refusals, and `PROT_NONE` wherever no chunk is mapped.

use sluice_memory::{ChunkPool, Mapping, MappingError, Range, RangeSizes};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::{ChunkId, KvChunkId, LayerId};

use super::engine_mapping::read;

const CHUNK: u64 = 64 << 10;
const KV_CHUNK: Address = Address::Kv(KvChunkId(1));
const LAYER: Address = Address::Layer(LayerId(1), 0);

fn sizes() -> RangeSizes {
    RangeSizes {
        global_chunks: 1,
        layer_chunks: vec![2, 3],
        kv_chunks: 4,
        activation_chunks: 1,
        staging_chunks: 1,
    }
}

fn pool() -> ChunkPool {
    let pool = ChunkPool::new(CHUNK, 4).unwrap();
    (0..4).for_each(|c| pool.create(ChunkId(c)).unwrap());
    pool
}

/// Returns start, end and permissions of the kernel's memory area that contains `at`.
fn mapped_area(at: *mut u8) -> (usize, usize, String) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let areas = maps.lines().map(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let hex = |s| usize::from_str_radix(s, 16).unwrap();
        (hex(start), hex(end), rest[..4].to_owned())
    });
    let mut found = areas.filter(|(start, end, _)| (*start..*end).contains(&(at as usize)));
    found.next().expect("the address is reserved")
}

#[test]
fn ranges_keep_their_addresses_and_a_guard_follows_each() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let all = [
        Range::Global,
        Range::Layer(LayerId(0)),
        Range::Layer(LayerId(1)),
        Range::Kv,
        Range::Activation,
        Range::Staging,
    ];
    let starts = all.map(|range| mapping.address(range) as u64);
    let chunks = [1, 2, 3, 4, 1];
    for (at, pair) in starts.windows(2).enumerate() {
        assert_eq!(pair[1] - pair[0], (chunks[at] + 1) * CHUNK, "{:?} and its guard", all[at]);
    }
    let pool = pool();
    mapping.apply(pool.file().unwrap(), &MapOp::Map(KV_CHUNK, ChunkId(0))).unwrap();
    assert_eq!(starts, all.map(|range| mapping.address(range) as u64));
    assert_eq!(mapping.position_ptr(KV_CHUNK).unwrap() as u64, starts[3] + CHUNK);
}

#[test]
fn unbacked_address_is_prot_none() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = pool();
    let at = mapping.position_ptr(KV_CHUNK).unwrap();
    assert_eq!(mapped_area(at).2, "---p");
    mapping.apply(pool.file().unwrap(), &MapOp::Map(KV_CHUNK, ChunkId(2))).unwrap();
    let (start, end, permissions) = mapped_area(at);
    assert_eq!((start, end, permissions.as_str()), (at as usize, at as usize + CHUNK as usize, "rw-s"));
    mapping.apply(pool.file().unwrap(), &MapOp::Unmap(KV_CHUNK, ChunkId(2))).unwrap();
    assert_eq!(mapped_area(at).2, "---p");
}

#[test]
fn inconsistent_change_is_refused_without_effect() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = pool();
    mapping.apply(pool.file().unwrap(), &MapOp::Map(KV_CHUNK, ChunkId(0))).unwrap();
    let mut refused = |op| mapping.apply(pool.file().unwrap(), &op).unwrap_err();
    let outside = Address::Layer(LayerId(0), 2);
    assert!(matches!(
        refused(MapOp::Map(KV_CHUNK, ChunkId(1))),
        MappingError::Occupied { found: ChunkId(0), .. }
    ));
    assert!(matches!(
        refused(MapOp::Unmap(KV_CHUNK, ChunkId(1))),
        MappingError::NotMapped { found: Some(_), .. }
    ));
    assert!(matches!(refused(MapOp::Unmap(LAYER, ChunkId(0))), MappingError::NotMapped { found: None, .. }));
    assert!(matches!(refused(MapOp::Map(outside, ChunkId(1))), MappingError::OutOfRange { .. }));
    assert!(matches!(refused(MapOp::Map(LAYER, ChunkId(4))), MappingError::BeyondPool { .. }));
    assert_eq!((mapping.chunk_at(KV_CHUNK), mapping.chunk_at(LAYER)), (Some(ChunkId(0)), None));
}

#[test]
fn refused_transaction_is_rolled_back() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = pool();
    mapping.apply(pool.file().unwrap(), &MapOp::Map(KV_CHUNK, ChunkId(0))).unwrap();
    let ops =
        [MapOp::Unmap(KV_CHUNK, ChunkId(0)), MapOp::Map(LAYER, ChunkId(0)), MapOp::Map(LAYER, ChunkId(1))];
    assert!(mapping.apply_all(pool.file().unwrap(), &ops).is_err());
    assert_eq!((mapping.chunk_at(KV_CHUNK), mapping.chunk_at(LAYER)), (Some(ChunkId(0)), None));
    assert_eq!(mapped_area(mapping.position_ptr(KV_CHUNK).unwrap()).2, "rw-s");
}

#[test]
fn failed_rollback_is_reported_with_cause() {
    use rustix::fd::AsFd;
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = rustix::fs::memfd_create("shrinks", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&pool, 4 * CHUNK).unwrap();
    mapping.apply(pool.as_fd(), &MapOp::Map(KV_CHUNK, ChunkId(3))).unwrap();
    // The sidecar's seals forbid this: the rollback cannot map the chunk again, because the file ends before
    // it.
    rustix::fs::ftruncate(&pool, CHUNK).unwrap();
    let ops = [MapOp::Unmap(KV_CHUNK, ChunkId(3)), MapOp::Unmap(LAYER, ChunkId(1))];
    let Err(MappingError::RollbackFailed { refused, stuck }) = mapping.apply_all(pool.as_fd(), &ops) else {
        panic!("it can be neither made nor taken back")
    };
    assert!(matches!(*refused, MappingError::NotMapped { address: LAYER, .. }), "{refused}");
    assert!(matches!(*stuck, MappingError::BeyondPool { chunk: ChunkId(3), .. }), "{stuck}");
}

#[test]
fn contiguous_chunks_map_together_or_not_at_all() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = pool();
    let layer = |at| Address::Layer(LayerId(1), at);
    let run = |first: u32| (0..3).map(move |at| MapOp::Map(layer(at), ChunkId(first + at)));
    mapping.apply_all(pool.file().unwrap(), &run(1).collect::<Vec<_>>()).unwrap();
    assert_eq!([0, 1, 2].map(|at| mapping.chunk_at(layer(at))), [1, 2, 3].map(|c| Some(ChunkId(c))));
    let start = mapping.address(Range::Layer(LayerId(1))) as usize;
    let expected = (start, start + 3 * CHUNK as usize, "rw-s".to_owned());
    assert_eq!(
        mapped_area(mapping.position_ptr(layer(1)).unwrap()),
        expected,
        "the kernel has one area for all"
    );
    pool.write(ChunkId(3), 0, b"sluice").unwrap();
    assert_eq!(&read(&mapping, layer(2), CHUNK as usize).unwrap()[..6], b"sluice");

    mapping.apply(pool.file().unwrap(), &MapOp::Unmap(layer(0), ChunkId(1))).unwrap();
    let Err(MappingError::Occupied { address, chunk, found }) =
        mapping.apply_all(pool.file().unwrap(), &run(0).collect::<Vec<_>>())
    else {
        panic!("two of three addresses are taken")
    };
    assert_eq!((address, chunk, found), (layer(1), ChunkId(1), ChunkId(2)));
    assert_eq!(mapping.chunk_at(layer(0)), None);
    // The last chunk is beyond the pool: the first two are unmapped again, also those of a run within a
    // transaction.
    let kv_chunks = (0..3).map(|at| MapOp::Map(Address::Kv(KvChunkId(at)), ChunkId(2 + at)));
    let ops: Vec<_> = std::iter::once(MapOp::Map(layer(0), ChunkId(0))).chain(kv_chunks).collect();
    let beyond = mapping.apply_all(pool.file().unwrap(), &ops).unwrap_err();
    assert!(matches!(beyond, MappingError::BeyondPool { chunk: ChunkId(4), .. }), "{beyond}");
    assert_eq!((mapping.chunk_at(layer(0)), mapping.backed_prefix_chunks(Range::Kv)), (None, 0));
}

#[test]
fn one_chunk_shows_the_same_bytes_at_every_address() {
    let mut mapping = Mapping::reserve(CHUNK, sizes()).unwrap();
    let pool = pool();
    let addresses = [LAYER, Address::Layer(LayerId(0), 1), KV_CHUNK, Address::Staging(0)];
    for address in addresses {
        mapping.apply(pool.file().unwrap(), &MapOp::Map(address, ChunkId(3))).unwrap();
    }
    pool.write(ChunkId(3), 100, b"sluice").unwrap();
    for address in addresses {
        assert_eq!(&read(&mapping, address, CHUNK as usize).unwrap()[100..106], b"sluice");
    }
    assert_eq!(mapping.backed_prefix_chunks(Range::Layer(LayerId(1))), 1);
    assert_eq!(mapping.backed_prefix_chunks(Range::Layer(LayerId(0))), 0, "its front is not backed");
}

#[test]
fn drop_unmaps_reservation() {
    let largest = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let bytes = maps.lines().map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        });
        bytes.max().unwrap()
    };
    const TERABYTE: u64 = 1 << 40;
    let mapping = Mapping::reserve(2 << 20, RangeSizes { kv_chunks: 1 << 19, ..sizes() }).unwrap();
    assert!(largest() >= TERABYTE);
    drop(mapping);
    assert!(largest() < TERABYTE);
}

#[test]
fn chunk_size_not_multiple_of_page_is_refused() {
    assert!(matches!(Mapping::reserve(1000, sizes()), Err(MappingError::ChunkSize { .. })));
    assert!(matches!(Mapping::reserve(0, sizes()), Err(MappingError::ChunkSize { .. })));
    assert!(matches!(Mapping::reserve(1 << 62, sizes()), Err(MappingError::TooLarge { .. })));
}

#[test]
fn chunks_follow_the_page_of_the_machine() {
    let page = rustix::param::page_size() as u64;
    // A run under an emulator says which pages it wants.
    if let Ok(wanted) = std::env::var("SLUICE_TEST_PAGE_BYTES") {
        assert_eq!(page.to_string(), wanted);
    }
    let refused = Mapping::reserve(page / 2, sizes());
    assert!(matches!(refused, Err(MappingError::ChunkSize { page_bytes, .. }) if page_bytes == page));
    Mapping::reserve(page, sizes()).unwrap();
}

#[test]
fn shared_chunk_ends_exclusive_prefix() {
    let mut mapping = Mapping::reserve(CHUNK, RangeSizes { activation_chunks: 3, ..sizes() }).unwrap();
    let pool = pool();
    let ops: Vec<_> = (0..3).map(|at| MapOp::Map(Address::Activation(at), ChunkId(at))).collect();
    mapping.apply_all(pool.file().unwrap(), &ops).unwrap();
    let prefixes = |mapping: &Mapping| {
        [mapping.backed_prefix_chunks(Range::Activation), mapping.exclusive_prefix_chunks(Range::Activation)]
    };
    assert_eq!(prefixes(&mapping), [3, 3]);
    // An inflation that defers the unmapping of the old address.
    mapping.apply(pool.file().unwrap(), &MapOp::Map(KV_CHUNK, ChunkId(2))).unwrap();
    assert_eq!(prefixes(&mapping), [3, 2]);
    mapping.apply(pool.file().unwrap(), &MapOp::Unmap(KV_CHUNK, ChunkId(2))).unwrap();
    assert_eq!(prefixes(&mapping), [3, 3]);
    mapping.apply(pool.file().unwrap(), &MapOp::Unmap(Address::Activation(0), ChunkId(0))).unwrap();
    assert_eq!(prefixes(&mapping), [0, 0], "from the front");
}
