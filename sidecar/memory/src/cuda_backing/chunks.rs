//! The chunks of a GPU, and the sidecar's addresses of them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use sluice_policy::ids::ChunkId;

use crate::backing::BackingError;
use crate::cuda::{Address, Chunk, Context, Range, granularity};
use crate::mapping::MappingError;
use crate::mapping::page_size::check_chunk_bytes;

/// Chunks by number. Chunk `c` is mapped at byte `c * chunk_bytes` of one range, so one copy can span consecutive
/// chunks.
#[derive(Debug)]
pub(super) struct CudaChunks {
    base: Address,
    chunk_bytes: u64,
    state: Mutex<State>,
    context: Context,
}

#[derive(Debug)]
struct State {
    view: Range,
    chunks: Vec<Option<Created>>,
}

/// A chunk that exists.
#[derive(Debug)]
struct Created {
    memory: Arc<Chunk>,
    /// Descriptor for the first engine. It holds the memory as a handle does, so it is closed with the chunk.
    descriptor: Option<OwnedFd>,
}

impl Created {
    /// Creates a chunk and exports it: an export takes longer than all other calls together (docs/gpu-probe.md), and
    /// creation has the time, while the scheduler waits for an export.
    fn new(context: &Context, bytes: u64) -> Result<Created, BackingError> {
        let memory = Chunk::create(context, bytes)?;
        let descriptor = Some(memory.export()?);
        Ok(Created { memory, descriptor })
    }
}

impl CudaChunks {
    /// Reserves the addresses.
    pub(super) fn reserve(
        context: &Context,
        chunk_bytes: u64,
        capacity_chunks: u32,
    ) -> Result<CudaChunks, BackingError> {
        check_chunk_bytes(chunk_bytes, granularity(context.device())?)?;
        let chunks = u64::from(capacity_chunks);
        let bytes = chunks.checked_mul(chunk_bytes).ok_or(MappingError::TooLarge { chunks, chunk_bytes })?;
        let view = Range::reserve(context, bytes)?;
        let base = view.at(0);
        let state = Mutex::new(State { view, chunks: (0..capacity_chunks).map(|_| None).collect() });
        Ok(CudaChunks { base, chunk_bytes, state, context: context.clone() })
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Returns the sidecar's address of byte `offset` of a chunk.
    pub(super) fn at(&self, chunk: ChunkId, offset: u64) -> Address {
        self.base + self.offset(chunk) + offset
    }

    fn offset(&self, chunk: ChunkId) -> u64 {
        u64::from(chunk.0) * self.chunk_bytes
    }

    pub(super) fn create(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        let create = |_| Created::new(&self.context, self.chunk_bytes);
        // Those before one that fails are dropped, which releases them.
        let made: Vec<Created> = chunks.iter().map(create).collect::<Result<_, _>>()?;
        let mut state = self.lock();
        for (chunk, made) in chunks.iter().zip(made) {
            state.chunks[chunk.index()] = Some(made);
        }
        Ok(())
    }

    /// After a device fault the driver refuses the call; the memory is then freed with the context.
    pub(super) fn release(&self, chunk: ChunkId) {
        let released = self.lock().chunks[chunk.index()].take();
        assert!(released.is_some(), "only a chunk that exists is released: {chunk:?}");
    }

    /// Maps all of the chunks, with access, or none.
    pub(super) fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        let state = &mut *self.lock();
        let mut mapped = 0;
        let done = chunks.iter().try_for_each(|chunk| {
            let created = state.chunks[chunk.index()].as_ref().expect("only a chunk that exists is mapped");
            state.view.map(self.offset(*chunk), &created.memory)?;
            mapped += 1;
            Ok(())
        });
        let done = done.and_then(|()| self.allow(&mut state.view, chunks));
        if done.is_err() {
            // It fails only after a device fault, and then nothing can be unmapped.
            let _ = chunks[..mapped].iter().try_for_each(|chunk| state.view.unmap(self.offset(*chunk)));
        }
        done
    }

    /// Allows access to each run of consecutive chunks by one call: a call takes longer than a mapping.
    fn allow(&self, view: &mut Range, chunks: &[ChunkId]) -> Result<(), BackingError> {
        for run in chunks.chunk_by(|one, next| one.0.checked_add(1) == Some(next.0)) {
            view.set_access(self.offset(run[0]), run.len() as u64 * self.chunk_bytes)?;
        }
        Ok(())
    }

    pub(super) fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError> {
        Ok(self.lock().view.unmap(self.offset(chunk))?)
    }

    /// Returns the descriptor that was made with the chunk, and later a new one: for the next engine. The lock is not
    /// held while the driver makes it.
    pub(super) fn export(&self, chunk: ChunkId) -> Result<OwnedFd, BackingError> {
        let memory = {
            let mut state = self.lock();
            let created = state.chunks[chunk.index()].as_mut().expect("only a chunk that exists is exported");
            if let Some(descriptor) = created.descriptor.take() {
                return Ok(descriptor);
            }
            created.memory.clone()
        };
        Ok(memory.export()?)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the chunks panics")
    }
}
