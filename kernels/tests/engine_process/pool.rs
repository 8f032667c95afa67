//! The chunks of a minimal sidecar: ranges of one file, or allocations of a GPU.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluice_link::message::Device;
use sluice_link::region::Region;
use sluice_link::vocabulary::ChunkId;
use sluice_memory::cuda::{self, Chunk, Context, Driver, Range, Stream};

use crate::specs::on_gpu;

/// Memory of all chunks.
pub enum Pool {
    Host(Region),
    Gpu(GpuPool),
}

/// Chunks of a GPU, all mapped one after another.
pub struct GpuPool {
    stream: Stream,
    range: Range,
    chunks: Vec<Arc<Chunk>>,
    uuid: [u8; 16],
}

impl Pool {
    /// Creates `chunks` chunks, on a GPU if the process is one for that.
    pub fn new(chunks: u32, chunk_bytes: u64) -> Pool {
        if on_gpu() {
            return Pool::Gpu(GpuPool::new(chunks, chunk_bytes));
        }
        let bytes = u64::from(chunks) * chunk_bytes;
        Pool::Host(Region::create("sluice-test-pool", bytes as usize).unwrap())
    }

    pub fn device(&self) -> Device {
        match self {
            Pool::Host(_) => Device::Host,
            Pool::Gpu(gpu) => Device::Cuda { uuid: gpu.uuid },
        }
    }

    /// Returns the file of all chunks.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Pool::Host(region) => Some(region.fd()),
            Pool::Gpu(_) => None,
        }
    }

    /// Exports the chunks that have descriptors of their own.
    pub fn export(&self) -> Vec<(ChunkId, OwnedFd)> {
        match self {
            Pool::Host(_) => Vec::new(),
            Pool::Gpu(gpu) => {
                let all = (0..).zip(&gpu.chunks);
                all.map(|(id, chunk)| (ChunkId(id), chunk.export().unwrap())).collect()
            }
        }
    }

    /// Writes bytes, from byte `start` of the pool on.
    pub fn write(&self, start: u64, bytes: &[u8]) {
        match self {
            Pool::Host(region) => {
                let words = region.words(start as usize / 4, bytes.len() / 4).unwrap();
                for (word, bytes) in words.iter().zip(bytes.chunks_exact(4)) {
                    word.store(
                        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
                        Ordering::Relaxed,
                    );
                }
            }
            Pool::Gpu(gpu) => {
                // SAFETY: the bytes are not written before the copy has ended.
                unsafe { gpu.stream.upload_bytes(gpu.range.at(start), bytes) }.unwrap();
                gpu.stream.finish().unwrap();
            }
        }
    }

    /// Reads bytes, from byte `start` of the pool on.
    pub fn read(&self, start: u64, bytes: usize) -> Vec<u8> {
        match self {
            Pool::Host(region) => {
                let words = region.words(start as usize / 4, bytes / 4).unwrap();
                words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect()
            }
            Pool::Gpu(gpu) => {
                let mut read = vec![0; bytes];
                // SAFETY: the bytes are not accessed before the copy has ended.
                unsafe { gpu.stream.download_bytes(&mut read, gpu.range.at(start)) }.unwrap();
                gpu.stream.finish().unwrap();
                read
            }
        }
    }
}

impl GpuPool {
    fn new(chunks: u32, chunk_bytes: u64) -> GpuPool {
        let device = cuda::Device::open(Driver::open().unwrap(), 0).unwrap();
        let context = Context::new(device).unwrap();
        let mut range = Range::reserve(&context, u64::from(chunks) * chunk_bytes).unwrap();
        let create = |at| {
            let chunk = Chunk::create(&context, chunk_bytes).unwrap();
            range.map_with_access(u64::from(at) * chunk_bytes, &chunk).unwrap();
            chunk
        };
        let chunks = (0..chunks).map(create).collect();
        GpuPool { stream: Stream::new(&context).unwrap(), range, chunks, uuid: device.uuid_bytes().unwrap() }
    }
}
