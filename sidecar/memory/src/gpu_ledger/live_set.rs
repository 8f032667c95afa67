//! The live participants as a set of records.

use super::mapped_words::MappedWords;
use super::record::{self, Record};

/// A set of records, one bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LiveSet(u64);

impl LiveSet {
    /// Treats all participants as live, so the count is never too small.
    pub(super) const ALL: LiveSet = LiveSet(u64::MAX);

    pub(super) fn insert(&mut self, index: u32) {
        self.0 |= 1 << index;
    }

    pub(super) fn contains(self, index: u32) -> bool {
        self.0 & (1 << index) != 0
    }

    /// Returns the records of the live participants.
    pub(super) fn records(self, words: &MappedWords) -> impl Iterator<Item = Record<'_>> {
        record::all(words).filter(move |record| record.instance() != 0 && self.contains(record.index))
    }

    /// Returns the record of a live instance.
    pub(super) fn of_instance(self, words: &MappedWords, instance: u64) -> Option<Record<'_>> {
        record::of_instance(words, instance).filter(|record| self.contains(record.index))
    }
}

/// Sums the word `at` over `living`. Saturates, so that a value that a faulty peer wrote causes no panic
/// here.
pub(super) fn sum_word(words: &MappedWords, living: LiveSet, at: usize) -> u64 {
    living.records(words).map(|record| record.get(at)).fold(0, u64::saturating_add)
}
