//! A backing that records its calls: create, map, unmap, release, copies, waits and signals, in order.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use sluice_memory::backing::{Backing, BackingError, Caching, CopyLane, Region, SignalWord};
use sluice_policy::ids::{ChunkId, Generation};

use super::harness::word_offset;

/// A call to a backing, or to the driver that carries it out. Chunks are numbers, and words their place in the control
/// page; both count from the least that occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create,
    Release(u64),
    Map(u64),
    Unmap(u64),
    /// Bytes that lie in one chunk, from an offset on.
    Upload(u64, Bytes),
    Download(u64, Bytes),
    Copy {
        from: (u64, u64),
        to: (u64, u64),
        bytes: u64,
    },
    Poison(u64),
    Wait(u64, u64),
    Signal(u64, u64),
}

/// A part of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub offset: u64,
    pub bytes: u64,
}

/// Splits bytes at the ends of chunks. Returns the index of each part's chunk, and the part.
pub fn parts(offset: u64, bytes: u64, chunk_bytes: u64) -> impl Iterator<Item = (u64, Bytes)> {
    let end = offset + bytes;
    let mut at = offset;
    std::iter::from_fn(move || {
        let here = (end - at).min(chunk_bytes - at % chunk_bytes);
        let part = (at / chunk_bytes, Bytes { offset: at % chunk_bytes, bytes: here });
        at += here;
        (here > 0).then_some(part)
    })
}

/// The calls so far.
#[derive(Clone, Debug, Default)]
pub struct CallLog(Arc<Mutex<Vec<Call>>>);

impl CallLog {
    fn push(&self, call: Call) {
        self.0.lock().unwrap().push(call);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().clone()
    }
}

/// Records and passes on.
pub struct RecordedBacking {
    inner: Box<dyn Backing>,
    chunk_bytes: u64,
    log: CallLog,
    late_waits: bool,
}

impl RecordedBacking {
    /// With `late_waits`, a wait of a copy is passed on after the first bytes of the copy: a fault.
    pub fn new(inner: Box<dyn Backing>, chunk_bytes: u64, log: CallLog, late_waits: bool) -> RecordedBacking {
        RecordedBacking { inner, chunk_bytes, log, late_waits }
    }
}

impl std::fmt::Debug for RecordedBacking {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(to)
    }
}

impl Backing for RecordedBacking {
    fn create(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        chunks.iter().for_each(|_| self.log.push(Call::Create));
        self.inner.create(chunks)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(Call::Release(chunk.0.into()));
        self.inner.release(chunk)
    }

    fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        chunks.iter().for_each(|chunk| self.log.push(Call::Map(chunk.0.into())));
        self.inner.map(chunks)
    }

    fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(Call::Unmap(chunk.0.into()));
        self.inner.unmap(chunk)
    }

    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, BackingError> {
        self.inner.export(chunk)
    }

    fn lane(&self) -> Box<dyn CopyLane> {
        Box::new(RecordedLane {
            inner: self.inner.lane(),
            chunk_bytes: self.chunk_bytes,
            log: self.log.clone(),
            late_waits: self.late_waits,
            held: None,
        })
    }

    fn file(&self) -> Option<BorrowedFd<'_>> {
        self.inner.file()
    }

    fn host_region(&self, bytes: u64) -> Result<Region, BackingError> {
        self.inner.host_region(bytes)
    }

    fn piece_bytes(&self) -> Option<usize> {
        self.inner.piece_bytes()
    }

    fn signals(&self) -> bool {
        self.inner.signals()
    }

    fn is_backed(&self, chunk: ChunkId) -> bool {
        self.inner.is_backed(chunk)
    }

    fn ensure_backed(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.inner.ensure_backed(chunk)
    }

    fn is_populated(&self, chunk: ChunkId) -> bool {
        self.inner.is_populated(chunk)
    }

    fn populate(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.inner.populate(chunk)
    }

    fn mark_written(&self, chunk: ChunkId) {
        self.inner.mark_written(chunk);
    }
}

struct RecordedLane {
    inner: Box<dyn CopyLane>,
    chunk_bytes: u64,
    log: CallLog,
    late_waits: bool,
    /// A wait that is not passed on yet.
    held: Option<(SignalWord, Generation)>,
}

impl CopyLane for RecordedLane {
    unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), BackingError> {
        for (index, part) in parts(offset, bytes.len() as u64, self.chunk_bytes) {
            self.log.push(Call::Upload(chunks[index as usize].0.into(), part));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.upload(chunks, offset, bytes, caching) }?;
        self.held.take().map_or(Ok(()), |(word, generation)| self.inner.wait(word, generation))
    }

    unsafe fn download(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), BackingError> {
        let part = Bytes { offset, bytes: bytes.len() as u64 };
        self.log.push(Call::Download(chunk.0.into(), part));
        // SAFETY: the caller's promise.
        unsafe { self.inner.download(chunk, offset, bytes) }
    }

    unsafe fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), BackingError> {
        let place = |(chunk, offset): (ChunkId, u64)| (u64::from(chunk.0), offset);
        self.log.push(Call::Copy { from: place(from), to: place(to), bytes });
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy(from, to, bytes) }
    }

    unsafe fn poison(&mut self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(Call::Poison(chunk.0.into()));
        // SAFETY: the caller's promise.
        unsafe { self.inner.poison(chunk) }
    }

    fn wait(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        word_offset(word).into_iter().for_each(|at| self.log.push(Call::Wait(at, generation.0)));
        if self.late_waits {
            self.held = Some((word, generation));
            return Ok(());
        }
        self.inner.wait(word, generation)
    }

    fn signal(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        word_offset(word).into_iter().for_each(|at| self.log.push(Call::Signal(at, generation.0)));
        self.inner.signal(word, generation)
    }

    fn finish(&mut self) -> Result<(), BackingError> {
        self.inner.finish()
    }
}
