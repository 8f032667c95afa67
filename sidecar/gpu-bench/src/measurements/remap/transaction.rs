//! The time of a transaction that gives a layer's chunks to KV, and of the one that takes them back.

use std::os::fd::AsFd;

use sluice_memory::cuda::{Chunk, PinnedMemory};
use sluice_memory::{CudaMapping, MappingError, Range, RangeSizes};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::ids::{ChunkId, KvChunkId, LayerId};
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::statistics::{Figure, timed};

use crate::device_data::{DeviceData, LIMIT};
use crate::scale::Scale;
use crate::shapes::Shape;

/// Bytes of a chunk: the default of pools; on the stand-in that of the device, because its layers are small.
fn chunk_bytes(bench: &Bench) -> u64 {
    Scale::of(bench).pick(2 << 20, 16 << 20, 16 << 20)
}

/// Measures the engine's part of both transactions for a layer of `bytes` bytes, by the host's clock. The reversion
/// ends when the layer's weights are there again.
pub fn measure(bench: &Bench, data: &DeviceData, shape: &Shape, bytes: u64) -> Result<[Figure; 2], Error> {
    let chunk_bytes = chunk_bytes(bench);
    let chunks = u32::try_from(bytes.div_ceil(chunk_bytes)).expect("a layer has fewer than 2^32 chunks");
    let mut mapping = mapping(bench, chunk_bytes, chunks).map_err(refused)?;
    let host = PinnedMemory::registered(&bench.context, bytes)?;
    let (mut remap, mut reversion) = (Vec::new(), Vec::new());
    let [give, take] = [moves(chunks, layer, kv), moves(chunks, kv, layer)];
    for _ in 0..Scale::of(bench).pick(2, 5, 20) {
        timed(&mut remap, || mapping.apply_all(&give)).map_err(refused)?;
        timed(&mut reversion, || -> Result<(), Error> {
            mapping.apply_all(&take).map_err(refused)?;
            data.stream.upload(mapping.address(Range::Layer(LayerId(0))), &host, 0, bytes)?;
            Ok(data.stream.finish_within(LIMIT)?)
        })?;
    }
    // Chunks are unmapped before they are released.
    mapping
        .apply_all(&(0..chunks).map(|place| MapOp::Unmap(layer(place), ChunkId(place))).collect::<Vec<_>>())
        .map_err(refused)?;
    let (name, mib) = (shape.name, chunk_bytes >> 20);
    Ok([
        Figure::of(format!("{name}: remap of a layer of {chunks} x {mib} MiB"), "us", &remap),
        Figure::of(format!("{name}: its reversion, with its weights"), "us", &reversion),
    ])
}

/// Returns a mapping whose only layer is backed.
fn mapping(bench: &Bench, chunk_bytes: u64, chunks: u32) -> Result<CudaMapping, MappingError> {
    let sizes = RangeSizes {
        global_chunks: 0,
        layer_chunks: vec![chunks],
        kv_chunks: chunks,
        activation_chunks: 0,
        staging_chunks: 0,
    };
    let mut mapping = CudaMapping::reserve(&bench.context, chunk_bytes, &sizes)?;
    for chunk in 0..chunks {
        // The import keeps the memory alive.
        let memory = Chunk::create(&bench.context, chunk_bytes)?;
        mapping.import(ChunkId(chunk), memory.export()?.as_fd())?;
    }
    let all: Vec<MapOp> = (0..chunks).map(|place| MapOp::Map(layer(place), ChunkId(place))).collect();
    mapping.apply_all(&all)?;
    Ok(mapping)
}

/// Returns the changes that move each chunk.
fn moves(chunks: u32, from: fn(u32) -> Address, to: fn(u32) -> Address) -> Vec<MapOp> {
    let unmap = (0..chunks).map(|place| MapOp::Unmap(from(place), ChunkId(place)));
    unmap.chain((0..chunks).map(|place| MapOp::Map(to(place), ChunkId(place)))).collect()
}

fn layer(place: u32) -> Address {
    Address::Layer(LayerId(0), place)
}

fn kv(place: u32) -> Address {
    Address::Kv(KvChunkId(place))
}

/// A refused transaction is an answer of the device: the order was valid.
fn refused(error: MappingError) -> Error {
    Error::Otherwise(format!("refused a transaction: {error}"))
}
