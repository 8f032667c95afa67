//! The engine's side of the memory: it maps chunks of the pool's file here, or imports those of a GPU in a process of its
//! own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use sluice_memory::cuda::{Context, Device, Driver};
use sluice_memory::{ChunkPool, Mapping, RangeSizes};
use sluice_policy::action::{Address, MapOp};
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::ChunkId;

use super::engine_process::RemoteEngine;

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
        None => Box::new(RemoteEngine::start(pool, geometry, &sizes)),
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
