//! Offsets of the words in the ledger file. Each word is an aligned 64-bit value in native byte order.

/// "SLUICELG".
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"SLUICELG");
/// Version of this layout. Version 1 had the epoch in the header and one lock byte for all time slices.
pub(super) const VERSION: u64 = 2;
/// Maximum number of participants of one GPU.
pub const RECORDS: u32 = 64;
/// Maximum number of waiting earmarks, and of accepted nonces, per record.
pub const TRANSFERS: usize = 64;

/// Words of the header and of each record: one page.
const PAGE_WORDS: usize = 512;
/// Words of the file.
pub(super) const FILE_WORDS: usize = PAGE_WORDS * (1 + RECORDS as usize);
/// Bytes of the file.
pub(super) const FILE_BYTES: usize = FILE_WORDS * 8;

/// Words of the header.
pub(super) mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// Two words.
    pub const BOOT_ID: usize = 2;
    pub const CAPACITY: usize = 4;
    pub const CHUNK: usize = 5;
    /// Instance number of the next participant.
    pub const NEXT_INSTANCE: usize = 6;
    /// Number of the next ticket.
    pub const NEXT_TICKET: usize = 7;
    /// Its first four bytes are a futex, incremented to wake waiters.
    pub const FUTEX: usize = 10;
    /// Instance that took the guard last; 0 = a process without a record. Used only in messages.
    pub const GUARD_HOLDER: usize = 12;
    /// Length in bytes, then the bytes.
    pub const CLAIM: usize = 16;
    /// Maximum length of a claim id.
    pub const CLAIM_BYTES: usize = 128;
}

/// Words of a record, relative to its start.
pub(super) mod record {
    use super::TRANSFERS;

    pub const INSTANCE: usize = 0;
    pub const FLOOR: usize = 1;
    pub const SHARE: usize = 2;
    pub const HELD: usize = 3;
    /// Bytes that a transfer in progress may count twice.
    pub const UNSETTLED: usize = 4;
    pub const TICKET: usize = 5;
    pub const PRIORITY: usize = 6;
    /// Epoch in which the ticket was drawn.
    pub const TICKET_EPOCH: usize = 7;
    /// Length in bytes, then the bytes.
    pub const NAME: usize = 8;
    /// Maximum length of a name.
    pub const NAME_BYTES: usize = 256;
    /// Epoch of the time slice that this participant took last.
    pub const SLICE_EPOCH: usize = 41;
    /// Time by which it releases that time slice or writes a later deadline, nanoseconds of the boot-time
    /// clock; 0 = no deadline.
    pub const DEADLINE: usize = 42;
    /// Epoch of the time slice that this participant released last, and the time of the release, nanoseconds
    /// of the boot-time clock.
    pub const RELEASED_EPOCH: usize = 43;
    pub const RELEASED_AT: usize = 44;
    /// Ticket with which this participant was skipped; 0 = not skipped. The skipping participant writes it
    /// under the guard; the owner clears it when it runs again.
    pub const SKIPPED_TICKET: usize = 45;
    /// [`TRANSFERS`] entries of nonce, borrower's instance, bytes.
    pub const EARMARKS: usize = 48;
    /// Words per entry.
    pub const EARMARK_WORDS: usize = 3;
    /// [`TRANSFERS`] entries of nonce, lender's instance.
    pub const ACCEPTED: usize = EARMARKS + TRANSFERS * EARMARK_WORDS;
    /// Words per entry.
    pub const ACCEPTED_WORDS: usize = 2;
}

const _: () = assert!(record::NAME + 1 + record::NAME_BYTES / 8 <= record::SLICE_EPOCH);
const _: () = assert!(record::SKIPPED_TICKET < record::EARMARKS);
const _: () = assert!(record::ACCEPTED + TRANSFERS * record::ACCEPTED_WORDS <= PAGE_WORDS);
const _: () = assert!(header::CLAIM + 1 + header::CLAIM_BYTES / 8 <= PAGE_WORDS);

/// Returns the first word of record `index`.
pub(super) fn record_start(index: u32) -> usize {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    PAGE_WORDS * (1 + index as usize)
}

/// Encodes `text` as words: its length, then its bytes padded with zeros.
pub(super) fn text_words(text: &str) -> Vec<u64> {
    let bytes = text.as_bytes().chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    });
    std::iter::once(text.len() as u64).chain(bytes).collect()
}

/// Returns the text at word `at`; `None` if its length exceeds `limit_bytes`.
pub(super) fn text_at(load: impl Fn(usize) -> u64, at: usize, limit_bytes: usize) -> Option<String> {
    let bytes = usize::try_from(load(at)).ok().filter(|bytes| *bytes <= limit_bytes)?;
    let words = at + 1..at + 1 + bytes.div_ceil(8);
    let all: Vec<u8> = words.flat_map(|word| load(word).to_ne_bytes()).take(bytes).collect();
    Some(String::from_utf8_lossy(&all).into_owned())
}
