//! A backing that records its calls: create, map, unmap, release, copies, waits and signals, in order.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use sluice_memory::backing::{Backing, BackingError, Caching, CopyLane, Region, SignalWord};
use sluice_policy::ids::{ChunkId, Generation};

/// The calls so far, one text each. A copy into several chunks counts as one for each chunk.
#[derive(Clone, Debug, Default)]
pub struct CallLog(Arc<Mutex<Vec<String>>>);

impl CallLog {
    fn push(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }

    pub fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Records and passes on.
pub struct RecordedBacking {
    inner: Box<dyn Backing>,
    chunk_bytes: u64,
    log: CallLog,
}

impl RecordedBacking {
    pub fn new(inner: Box<dyn Backing>, chunk_bytes: u64, log: CallLog) -> RecordedBacking {
        RecordedBacking { inner, chunk_bytes, log }
    }
}

impl std::fmt::Debug for RecordedBacking {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(to)
    }
}

impl Backing for RecordedBacking {
    fn create(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        self.log.push(format!("create {chunks:?}"));
        self.inner.create(chunks)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(format!("release {chunk:?}"));
        self.inner.release(chunk)
    }

    fn map(&self, chunks: &[ChunkId]) -> Result<(), BackingError> {
        self.log.push(format!("map {chunks:?}"));
        self.inner.map(chunks)
    }

    fn unmap(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(format!("unmap {chunk:?}"));
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
}

impl CopyLane for RecordedLane {
    unsafe fn upload(
        &mut self,
        chunks: &[ChunkId],
        offset: u64,
        bytes: &[u8],
        caching: Caching,
    ) -> Result<(), BackingError> {
        let chunk_bytes = self.chunk_bytes;
        let (mut at, mut left) = (offset, bytes.len() as u64);
        while left > 0 {
            let here = left.min(chunk_bytes - at % chunk_bytes);
            let chunk = chunks[(at / chunk_bytes) as usize];
            self.log.push(format!("upload {chunk:?} at {} bytes {here}", at % chunk_bytes));
            (at, left) = (at + here, left - here);
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.upload(chunks, offset, bytes, caching) }
    }

    unsafe fn download(&mut self, chunk: ChunkId, offset: u64, bytes: &mut [u8]) -> Result<(), BackingError> {
        self.log.push(format!("download {chunk:?} at {offset} bytes {}", bytes.len()));
        // SAFETY: the caller's promise.
        unsafe { self.inner.download(chunk, offset, bytes) }
    }

    unsafe fn copy(
        &mut self,
        from: (ChunkId, u64),
        to: (ChunkId, u64),
        bytes: u64,
    ) -> Result<(), BackingError> {
        self.log.push(format!("copy {from:?} to {to:?} bytes {bytes}"));
        // SAFETY: the caller's promise.
        unsafe { self.inner.copy(from, to, bytes) }
    }

    unsafe fn poison(&mut self, chunk: ChunkId) -> Result<(), BackingError> {
        self.log.push(format!("poison {chunk:?}"));
        // SAFETY: the caller's promise.
        unsafe { self.inner.poison(chunk) }
    }

    fn wait(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        self.log.push(format!("wait {word:?} {generation:?}"));
        self.inner.wait(word, generation)
    }

    fn signal(&mut self, word: SignalWord, generation: Generation) -> Result<(), BackingError> {
        self.log.push(format!("signal {word:?} {generation:?}"));
        self.inner.signal(word, generation)
    }

    fn finish(&mut self) -> Result<(), BackingError> {
        self.log.push("finish".into());
        self.inner.finish()
    }
}
