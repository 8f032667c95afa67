//! The engine's side of the memory: it maps chunks of the pool's file, or imports those of a GPU.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sluice_memory::cuda::{Context, Device, Driver, Stream};
use sluice_memory::{ChunkPool, CudaMapping, Mapping, RangeSizes};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::ChunkId;

/// Set in processes whose memory is that of a GPU.
pub const GPU_VAR: &str = "SLUICE_TEST_GPU";

/// Whether the memory is that of a GPU: in processes that the tests of CUDA start.
pub fn on_gpu() -> bool {
    std::env::var_os(GPU_VAR).is_some()
}

/// Creates a context.
pub fn gpu() -> Context {
    Context::new(Device::open(Driver::open().unwrap(), 0).unwrap()).unwrap()
}

/// The engine's side of the memory.
pub trait EngineMapping {
    fn apply_all(&mut self, ops: &[MapOp]) -> bool;
    /// Returns the bytes of the chunk behind an address.
    fn read(&self, address: Address) -> Option<Vec<u8>>;
    fn write(&self, address: Address, offset: usize, bytes: &[u8]);
    fn release(&mut self, chunk: ChunkId);
}

/// Maps chunks of the pool's file.
struct HostEngine {
    pool: OwnedFd,
    mapping: Mapping,
}

impl EngineMapping for HostEngine {
    fn apply_all(&mut self, ops: &[MapOp]) -> bool {
        self.mapping.apply_all(self.pool.as_fd(), ops).is_ok()
    }

    fn read(&self, address: Address) -> Option<Vec<u8>> {
        read(&self.mapping, address, self.mapping.chunk_bytes() as usize)
    }

    fn write(&self, address: Address, offset: usize, bytes: &[u8]) {
        assert!(self.mapping.chunk_at(address).is_some(), "{address:?} is backed");
        let at = self.mapping.position_ptr(address).unwrap().wrapping_add(offset);
        // SAFETY: a whole chunk backs the address, and the bytes fit the rest of it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
    }

    fn release(&mut self, _chunk: ChunkId) {}
}

/// Imports chunks of a GPU when they are mapped.
struct CudaEngine {
    pool: Arc<ChunkPool>,
    mapping: CudaMapping,
    stream: Stream,
    imported: BTreeSet<ChunkId>,
}

impl CudaEngine {
    fn new(pool: Arc<ChunkPool>, geometry: &Geometry, sizes: &RangeSizes) -> CudaEngine {
        let context = gpu();
        let mapping = CudaMapping::reserve(&context, geometry.chunk_bytes, sizes).unwrap();
        CudaEngine { pool, mapping, stream: Stream::new(&context).unwrap(), imported: BTreeSet::new() }
    }
}

impl EngineMapping for CudaEngine {
    fn apply_all(&mut self, ops: &[MapOp]) -> bool {
        for op in ops {
            let MapOp::Map(_, chunk) = *op else { continue };
            if self.imported.insert(chunk) {
                let [descriptor] = <[OwnedFd; 1]>::try_from(self.pool.export(&[chunk]).unwrap()).unwrap();
                self.mapping.import(chunk, descriptor.as_fd()).unwrap();
            }
        }
        self.mapping.apply_all(ops).is_ok()
    }

    fn read(&self, address: Address) -> Option<Vec<u8>> {
        self.mapping.chunk_at(address)?;
        let mut bytes = vec![0; self.mapping.chunk_bytes() as usize];
        // SAFETY: the stream is finished before the bytes are used.
        unsafe { self.stream.download_bytes(&mut bytes, self.mapping.position(address).unwrap()).unwrap() };
        self.stream.finish().unwrap();
        Some(bytes)
    }

    fn write(&self, address: Address, offset: usize, bytes: &[u8]) {
        let at = self.mapping.position(address).unwrap() + offset as u64;
        // SAFETY: the stream is finished before the bytes go.
        unsafe { self.stream.upload_bytes(at, bytes).unwrap() };
        self.stream.finish().unwrap();
    }

    fn release(&mut self, chunk: ChunkId) {
        if self.imported.remove(&chunk) {
            self.mapping.release(chunk).unwrap();
        }
    }
}

/// Reserves the engine's ranges for the memory of `pool`.
pub fn new_engine_mapping(
    pool: Arc<ChunkPool>,
    geometry: &Geometry,
    sizes: RangeSizes,
) -> Box<dyn EngineMapping> {
    match pool.file().map(|file| file.try_clone_to_owned().unwrap()) {
        Some(file) => {
            let mapping = Mapping::reserve(geometry.chunk_bytes, sizes).unwrap();
            Box::new(HostEngine { pool: file, mapping })
        }
        None => Box::new(CudaEngine::new(pool, geometry, &sizes)),
    }
}

/// Returns the bytes of the chunk behind an address.
pub fn read(mapping: &Mapping, address: Address, chunk_bytes: usize) -> Option<Vec<u8>> {
    mapping.chunk_at(address)?;
    let mut bytes = vec![0; chunk_bytes];
    let at = mapping.position_ptr(address).unwrap();
    // SAFETY: a whole chunk backs the address.
    unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), chunk_bytes) };
    Some(bytes)
}
