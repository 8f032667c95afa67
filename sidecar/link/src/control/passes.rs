//! The passes of an engine that schedules by itself: two counters in the header of the page, and a ring of the times of
//! the last passes behind the generations.
//!
//! One thread of the worker writes, and the sidecar reads without a lock. An entry has a sequence number that is odd
//! while it is written: a reader that finds it odd, or changed after its reads, drops what it has read (a sequence lock
//! of one writer).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::extended_page::{PASS_RECORDS, page_bytes, records_start};
use super::{
    ControlError, ControlPage, GenerationWord, LINE_LONGS, PASSES_BEGUN, PASSES_ENDED, WaitLimit, WaitResult,
    wait,
};

/// Header word with a publication counter and the number of waiters, of 32 bits each.
const PASS_WAITERS: usize = 7;

/// The times of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassRecord {
    /// Number of the pass, from 1.
    pub pass: u64,
    /// Duration of the pass.
    pub total_ns: u64,
    /// Time of it in which the worker waited for moving layers.
    pub stall_ns: u64,
    /// Tokens that passed through the model.
    pub tokens: u32,
    /// Sequences that they belong to.
    pub sequences: u32,
}

/// Where a reader of the ring is.
#[derive(Debug, Default)]
pub struct PassCursor {
    /// The last pass that it has read or passed over.
    read: u64,
}

impl PassCursor {
    /// Begins behind the passes that have ended already.
    pub fn at_end(page: &ControlPage) -> PassCursor {
        PassCursor { read: page.passes_ended() }
    }
}

/// An entry of the ring.
struct Entry<'a> {
    sequence: &'a AtomicU64,
    words: [&'a AtomicU64; 4],
}

impl ControlPage {
    /// Creates a page for `layers` layers and for passes, with all generations 0.
    pub fn create_with_passes(layers: u16) -> Result<ControlPage, ControlError> {
        ControlPage::create_sized(layers, page_bytes(layers))
    }

    /// Maps the peer's page, which must have room for passes.
    pub fn open_with_passes(fd: OwnedFd, layers: u16) -> Result<ControlPage, ControlError> {
        ControlPage::open_sized(fd, layers, page_bytes(layers))
    }

    /// Worker: begins a pass, and returns its number. The numbers go on where an earlier worker ended.
    pub fn begin_pass(&self) -> u64 {
        let word = self.pass_word(PASSES_BEGUN);
        let pass = word.value.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        word.wake();
        pass
    }

    /// Sidecar: waits until pass `pass` or a later one has begun.
    pub fn wait_pass_begun(&self, pass: u64, limit: WaitLimit<'_>) -> WaitResult {
        wait(&self.pass_word(PASSES_BEGUN), |begun| begun >= pass, limit)
    }

    /// Worker: ends the pass that [`ControlPage::begin_pass`] has begun last. One thread at a time.
    ///
    /// # Panics
    /// The page was not opened with passes.
    pub fn end_pass(&self, record: PassRecord) {
        self.write(record);
        self.pass_word(PASSES_ENDED).publish(record.pass);
    }

    /// Returns the number of the last pass that has begun.
    pub fn passes_begun(&self) -> u64 {
        self.header(PASSES_BEGUN).load(Ordering::SeqCst)
    }

    /// Returns the number of the last pass that has ended.
    pub fn passes_ended(&self) -> u64 {
        self.header(PASSES_ENDED).load(Ordering::SeqCst)
    }

    /// Sidecar: waits until pass `pass` or a later one has ended.
    pub fn wait_pass_ended(&self, pass: u64, limit: WaitLimit<'_>) -> WaitResult {
        wait(&self.pass_word(PASSES_ENDED), |ended| ended >= pass, limit)
    }

    /// Sidecar: appends the records of passes that have ended since the last call to `records`, at most
    /// [`PASS_RECORDS`], in the order of passes. Returns the number of passes without one: overwritten before they were
    /// read, or never ended.
    ///
    /// # Panics
    /// The page was not opened with passes.
    pub fn read_passes(&self, cursor: &mut PassCursor, records: &mut Vec<PassRecord>) -> u64 {
        let ended = self.passes_ended();
        let Some(passes) = ended.checked_sub(cursor.read).filter(|passes| *passes > 0) else { return 0 };
        let before = records.len();
        let first = ended - passes.min(PASS_RECORDS) + 1;
        records.extend((first..=ended).filter_map(|pass| self.pass_record(pass)));
        cursor.read = ended;
        passes - (records.len() - before) as u64
    }

    /// Returns the record of a pass; `None` if it is not there, is being written, or was overwritten.
    ///
    /// # Panics
    /// The page was not opened with passes.
    pub fn pass_record(&self, pass: u64) -> Option<PassRecord> {
        let Entry { sequence, words } = self.entry(pass);
        // Entries of a new page are those of pass 0, which there is not.
        if pass == 0 || sequence.load(Ordering::Acquire) != written(pass) {
            return None;
        }
        let [number, total_ns, stall_ns, counts] = words.map(|word| word.load(Ordering::Relaxed));
        // Orders the reads above before the second read of the sequence number.
        fence(Ordering::Acquire);
        let is_whole = sequence.load(Ordering::Relaxed) == written(pass) && number == pass;
        let (tokens, sequences) = ((counts >> 32) as u32, counts as u32);
        is_whole.then_some(PassRecord { pass, total_ns, stall_ns, tokens, sequences })
    }

    fn write(&self, record: PassRecord) {
        let Entry { sequence, words } = self.entry(record.pass);
        sequence.store(written(record.pass).wrapping_sub(1), Ordering::Relaxed);
        // Orders the odd number before the writes below.
        fence(Ordering::Release);
        let counts = u64::from(record.tokens) << 32 | u64::from(record.sequences);
        for (word, value) in words.into_iter().zip([record.pass, record.total_ns, record.stall_ns, counts]) {
            word.store(value, Ordering::Relaxed);
        }
        sequence.store(written(record.pass), Ordering::Release);
    }

    fn entry(&self, pass: u64) -> Entry<'_> {
        let start = records_start(self.layers) / 8 + (pass % PASS_RECORDS) as usize * LINE_LONGS;
        let long = |at| self.region.long(start + at).expect("the page was opened with passes");
        Entry { sequence: long(0), words: [1, 2, 3, 4].map(long) }
    }

    /// A counter of passes. Both counters have the same waiters.
    fn pass_word(&self, counter: usize) -> GenerationWord<'_> {
        let words = self.region.words(2 * PASS_WAITERS, 2).expect("the header is in the page");
        let [published, waiters] = words else { unreachable!("two words were asked for") };
        GenerationWord { value: self.header(counter), published, waiters }
    }
}

/// Returns the sequence number of an entry that holds pass `pass`. It is even; the odd number before it is that of an
/// entry which is being written.
fn written(pass: u64) -> u64 {
    pass.wrapping_mul(2)
}
