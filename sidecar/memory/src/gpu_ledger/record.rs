//! One participant's record: all participants read it, its owner writes it.

use sluice_policy::peers::Peer;

use super::error::LedgerError;
use super::layout::{RECORDS, TRANSFERS, record, record_start, text_at, text_words};
use super::mapped_words::MappedWords;

const HELD_MISMATCH: &str = "a record says that less is held than its owner holds";

/// An earmark as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EarmarkEntry {
    pub slot: usize,
    pub nonce: u64,
    /// Instance of the borrower.
    pub to: u64,
    pub bytes: u64,
}

/// Record `index` of the mapped file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    words: &'a MappedWords,
    start: usize,
    pub index: u32,
}

/// Returns all records, including vacant ones.
pub(super) fn all(words: &MappedWords) -> impl Iterator<Item = Record<'_>> {
    (0..RECORDS).map(|index| Record::new(words, index))
}

/// Returns the record of `instance`.
pub(super) fn of_instance(words: &MappedWords, instance: u64) -> Option<Record<'_>> {
    all(words).find(|record| record.instance() == instance)
}

impl<'a> Record<'a> {
    pub(super) fn new(words: &'a MappedWords, index: u32) -> Record<'a> {
        Record { words, start: record_start(index), index }
    }

    /// Returns word `at` of [`record`].
    pub(super) fn get(&self, at: usize) -> u64 {
        self.words.load(self.start + at)
    }

    pub(super) fn set(&self, at: usize, value: u64) {
        self.words.store(self.start + at, value);
    }

    pub(super) fn instance(&self) -> u64 {
        self.get(record::INSTANCE)
    }

    pub(super) fn held(&self) -> u64 {
        self.get(record::HELD)
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { index: self.index, instance: self.instance() }
    }

    pub(super) fn name(&self) -> String {
        text_at(|at| self.get(at), record::NAME, record::NAME_BYTES).unwrap_or_default()
    }

    pub(super) fn set_name(&self, name: &str) {
        for (at, word) in (record::NAME..).zip(text_words(name)) {
            self.set(at, word);
        }
    }

    pub(super) fn add_held(&self, bytes: u64) {
        self.words.add(self.start + record::HELD, bytes);
    }

    /// Fails if the word is smaller than `bytes`: another process has written it.
    pub(super) fn subtract_held(&self, bytes: u64) -> Result<(), LedgerError> {
        self.words
            .subtract(self.start + record::HELD, bytes)
            .map_err(|_| self.words.mark_damaged(HELD_MISMATCH))
    }

    /// Returns the earmarks that are not cleared.
    pub(super) fn earmarks(&self) -> impl Iterator<Item = EarmarkEntry> + use<'a> {
        let record = *self;
        (0..TRANSFERS).filter_map(move |slot| {
            let at = earmark(slot);
            let (nonce, [to, bytes]) = record.read_committed(at, [at + 1, at + 2])?;
            Some(EarmarkEntry { slot, nonce, to, bytes })
        })
    }

    /// Whether `slot` still contains the earmark `nonce`.
    pub(super) fn has_earmark_at(&self, slot: usize, nonce: u64) -> bool {
        self.get(earmark(slot)) == nonce
    }

    /// Returns the nonce at `at` and the words at `others` that it commits. The nonce is written last and
    /// cleared first, so the words belong to it while it is unchanged, even for a reader without the guard.
    fn read_committed<const N: usize>(&self, at: usize, others: [usize; N]) -> Option<(u64, [u64; N])> {
        loop {
            let nonce = Some(self.get(at)).filter(|nonce| *nonce != 0)?;
            let words = others.map(|other| self.get(other));
            if self.get(at) == nonce {
                return Some((nonce, words));
            }
        }
    }

    pub(super) fn earmark(&self, nonce: u64) -> Option<EarmarkEntry> {
        self.earmarks().find(|entry| entry.nonce == nonce)
    }

    pub(super) fn free_earmark(&self) -> Option<usize> {
        (0..TRANSFERS).find(|slot| self.get(earmark(*slot)) == 0)
    }

    pub(super) fn write_earmark(&self, entry: EarmarkEntry) {
        let at = earmark(entry.slot);
        self.set(at + 1, entry.to);
        self.set(at + 2, entry.bytes);
        self.set(at, entry.nonce);
    }

    pub(super) fn clear_earmark(&self, slot: usize) {
        self.set(earmark(slot), 0);
    }

    /// Returns slot, nonce and lender's instance of each accepted earmark.
    pub(super) fn accepted(&self) -> impl Iterator<Item = (usize, u64, u64)> + use<'a> {
        let record = *self;
        (0..TRANSFERS).filter_map(move |slot| {
            let (nonce, [lender]) = record.read_committed(accepted(slot), [accepted(slot) + 1])?;
            Some((slot, nonce, lender))
        })
    }

    pub(super) fn has_accepted(&self, lender: u64, nonce: u64) -> bool {
        self.accepted().any(|(_, of, from)| (of, from) == (nonce, lender))
    }

    pub(super) fn free_accepted(&self) -> Option<usize> {
        (0..TRANSFERS).find(|slot| self.get(accepted(*slot)) == 0)
    }

    pub(super) fn write_accepted(&self, slot: usize, lender: u64, nonce: u64) {
        self.set(accepted(slot) + 1, lender);
        self.set(accepted(slot), nonce);
    }

    pub(super) fn clear_accepted(&self, slot: usize) {
        self.set(accepted(slot), 0);
    }

    /// Makes the record of an exited participant vacant. Clears the instance first, after which no word of
    /// the record counts.
    pub(super) fn clear(&self) {
        let fixed = [
            record::INSTANCE,
            record::HELD,
            record::UNSETTLED,
            record::FLOOR,
            record::SHARE,
            record::TICKET,
            record::PRIORITY,
            record::TICKET_EPOCH,
            record::SLICE_EPOCH,
            record::DEADLINE,
            record::RELEASED_EPOCH,
            record::RELEASED_AT,
            record::SKIPPED_TICKET,
        ];
        let nonces = (0..TRANSFERS).flat_map(|slot| [earmark(slot), accepted(slot)]);
        for at in fixed.into_iter().chain(nonces) {
            self.words.store_if_changed(self.start + at, 0);
        }
    }
}

fn earmark(slot: usize) -> usize {
    record::EARMARKS + slot * record::EARMARK_WORDS
}

fn accepted(slot: usize) -> usize {
    record::ACCEPTED + slot * record::ACCEPTED_WORDS
}
