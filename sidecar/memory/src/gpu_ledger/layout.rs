//! Where each word of the ledger file lies. All are 64 bits, aligned, in the byte order of the machine.

/// "SLUICELG".
pub(super) const MAGIC: u64 = u64::from_be_bytes(*b"SLUICELG");
/// Of this layout. Version 1 had the epoch of the turn in the header and one lock byte for all turns.
pub(super) const VERSION: u64 = 2;
/// Participants that one GPU may have.
pub const RECORDS: u32 = 64;
/// Earmarks that wait in one record, and accepted nonces kept in one.
pub const TRANSFERS: usize = 64;

/// Words of the header and of a record: a page each.
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
    /// The instance that the next participant gets.
    pub const NEXT_INSTANCE: usize = 6;
    /// The ticket that is drawn next.
    pub const NEXT_TICKET: usize = 7;
    /// Its first four bytes are a futex that is bumped when the turn may be had.
    pub const FUTEX: usize = 10;
    /// Instance that took the guard last; 0 = somebody without a record. Only tells for whom others wait.
    pub const GUARD_HOLDER: usize = 12;
    /// Length in bytes, then the bytes.
    pub const CLAIM: usize = 16;
    /// Longest claim id.
    pub const CLAIM_BYTES: usize = 128;
}

/// Words of a record, from its start.
pub(super) mod record {
    use super::TRANSFERS;

    pub const INSTANCE: usize = 0;
    pub const FLOOR: usize = 1;
    pub const SHARE: usize = 2;
    pub const HELD: usize = 3;
    /// Bytes that a transfer under way may have counted twice.
    pub const UNSETTLED: usize = 4;
    pub const TICKET: usize = 5;
    pub const PRIORITY: usize = 6;
    /// The epoch when the ticket was drawn.
    pub const TICKET_EPOCH: usize = 7;
    /// Length in bytes, then the bytes.
    pub const NAME: usize = 8;
    /// Longest name.
    pub const NAME_BYTES: usize = 256;
    /// The epoch of the turn that this participant took last.
    pub const SLICE_EPOCH: usize = 41;
    /// By then it releases that turn or writes a later time here, nanoseconds of the clock since boot; 0 = it does not say.
    pub const DEADLINE: usize = 42;
    /// The epoch of the turn that this participant released last, and when, nanoseconds of the clock since boot.
    pub const RELEASED_EPOCH: usize = 43;
    pub const RELEASED_AT: usize = 44;
    /// The ticket with which this participant was passed over: written by the one that did so, under the guard, and taken back by
    /// the owner when it runs again. 0 = it counts.
    pub const SKIPPED_TICKET: usize = 45;
    /// [`TRANSFERS`] times nonce, instance of the borrower, bytes.
    pub const EARMARKS: usize = 48;
    /// Words of one.
    pub const EARMARK_WORDS: usize = 3;
    /// [`TRANSFERS`] times nonce, instance of the lender.
    pub const ACCEPTED: usize = EARMARKS + TRANSFERS * EARMARK_WORDS;
    /// Words of one.
    pub const ACCEPTED_WORDS: usize = 2;
}

const _: () = assert!(record::NAME + 1 + record::NAME_BYTES / 8 <= record::SLICE_EPOCH);
const _: () = assert!(record::SKIPPED_TICKET < record::EARMARKS);
const _: () = assert!(record::ACCEPTED + TRANSFERS * record::ACCEPTED_WORDS <= PAGE_WORDS);
const _: () = assert!(header::CLAIM + 1 + header::CLAIM_BYTES / 8 <= PAGE_WORDS);

/// First word of record `index`.
pub(super) fn record_start(index: u32) -> usize {
    assert!(index < RECORDS, "record {index} is one of {RECORDS}");
    PAGE_WORDS * (1 + index as usize)
}

/// `text` as words: its length, then its bytes padded with zeros.
pub(super) fn text_words(text: &str) -> Vec<u64> {
    let bytes = text.as_bytes().chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    });
    std::iter::once(text.len() as u64).chain(bytes).collect()
}

/// The text at word `at`; `None` when its length is more than `limit_bytes`.
pub(super) fn text_at(load: impl Fn(usize) -> u64, at: usize, limit_bytes: usize) -> Option<String> {
    let bytes = usize::try_from(load(at)).ok().filter(|bytes| *bytes <= limit_bytes)?;
    let words = at + 1..at + 1 + bytes.div_ceil(8);
    let all: Vec<u8> = words.flat_map(|word| load(word).to_ne_bytes()).take(bytes).collect();
    Some(String::from_utf8_lossy(&all).into_owned())
}
