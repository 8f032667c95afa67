//! The page of words that two processes share.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::Error;
use crate::cuda::stream::poll_until;
use crate::cuda::{Address, Context, HostMemory};

/// Bytes of the page.
const BYTES: u64 = 4096;
/// Words of a cache line: words that different sides write lie in different lines.
const LINE: u64 = 8;

/// What the waiting side waits for; values grow.
pub const GO: u64 = 0;
/// What the waiting side waits for and resets.
pub const FLAG: u64 = LINE;
/// Written by the kernel that waited.
pub const SEEN: u64 = 2 * LINE;
/// Written by the waiting stream just before it waits.
pub const ARMED: u64 = 3 * LINE;
/// For a process alone.
pub const STARTED: u64 = 4 * LINE;
/// Opens the way for work that is timed.
pub const GATE: u64 = 5 * LINE;
/// One word for each layer of a graph.
pub const LAYER: u64 = 6 * LINE;

/// At least every value that anybody waits for, also on a circle.
const RELEASE: u64 = 1 << 62;

/// The page, registered with the device.
#[derive(Debug)]
pub struct SignalPage {
    memory: HostMemory,
    start: Address,
    /// Whether this is the process that made it.
    is_owner: bool,
}

impl SignalPage {
    /// A new page of zeros.
    pub fn new(context: &Context) -> Result<SignalPage, Error> {
        let memory = HostMemory::registered(context, BYTES)?;
        Ok(SignalPage { start: memory.address()?, memory, is_owner: true })
    }

    /// The page of another process.
    pub fn from_file(context: &Context, file: OwnedFd) -> Result<SignalPage, Error> {
        let memory = HostMemory::from_file(context, file, BYTES)?;
        Ok(SignalPage { start: memory.address()?, memory, is_owner: false })
    }

    /// Its file, for the other process.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// The device's address of a word.
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

    /// Waits until a word is at least `value`, at most `limit`.
    pub fn wait_for(&self, word: u64, value: u64, limit: Duration) -> Result<(), Error> {
        poll_until(limit, "a word that the device writes", || Ok(self.get(word) >= value))
    }
}

impl Drop for SignalPage {
    /// Ends every wait for it, so that no driver waits for the work that does before it lets the page go.
    fn drop(&mut self) {
        if self.is_owner {
            (0..BYTES / 8).for_each(|word| self.set(word, RELEASE));
        }
    }
}
