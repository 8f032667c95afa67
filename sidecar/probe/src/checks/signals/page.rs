//! The page of words that two processes share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluice_memory::cuda::{Address, Context, PinnedMemory, stream::poll_until};

use crate::Error;

/// Bytes of the page.
const BYTES: u64 = 4096;
/// Words per cache line: words of different writers are in different lines.
const LINE: u64 = 8;

/// Word that the waiting side waits for; its values grow.
pub const GO: u64 = 0;
/// Word that the waiting side waits for and resets.
pub const FLAG: u64 = LINE;
/// Written by the kernel that waited.
pub const SEEN: u64 = 2 * LINE;
/// Written by the waiting stream just before its wait.
pub const ARMED: u64 = 3 * LINE;
/// Used within a single process.
pub const STARTED: u64 = 4 * LINE;
/// Releases timed work.
pub const GATE: u64 = 5 * LINE;
/// First of the words for the layers of a graph.
pub const LAYER: u64 = 6 * LINE;

/// At least every awaited value, also in cyclic comparison.
const RELEASE: u64 = 1 << 62;

/// The page, registered with the device.
#[derive(Debug)]
pub struct SignalPage {
    memory: PinnedMemory,
    start: Address,
    /// Whether this process created the page.
    is_owner: bool,
}

impl SignalPage {
    /// Creates a page of zeros.
    pub fn new(context: &Context) -> Result<SignalPage, Error> {
        let memory = PinnedMemory::registered(context, BYTES)?;
        Ok(SignalPage { start: memory.address()?, memory, is_owner: true })
    }

    /// Maps the page of another process.
    pub fn from_file(context: &Context, file: OwnedFd) -> Result<SignalPage, Error> {
        let memory = PinnedMemory::from_file(context, file, BYTES)?;
        Ok(SignalPage { start: memory.address()?, memory, is_owner: false })
    }

    /// Returns the page's file, for the other process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Returns the device address of a word.
    pub fn address(&self, word: u64) -> Address {
        self.start + word * 8
    }

    /// Writes a word.
    pub fn set(&self, word: u64, value: u64) {
        self.memory.word(word).store(value, Ordering::SeqCst);
    }

    /// Reads a word.
    pub fn get(&self, word: u64) -> u64 {
        self.memory.word(word).load(Ordering::SeqCst)
    }

    /// Waits at most `limit` until a word is at least `value`.
    pub fn wait_for(&self, word: u64, value: u64, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "a word that the device writes", || Ok(self.get(word) >= value))
    }
}

impl Drop for SignalPage {
    /// Ends every wait on the page, because unregistering it may make the driver wait for that work.
    fn drop(&mut self) {
        if self.is_owner {
            (0..BYTES / 8).for_each(|word| self.set(word, RELEASE));
        }
    }
}
