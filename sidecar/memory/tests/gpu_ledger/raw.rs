//! Reads the ledger file without the code under test, by the offsets of layout version 2. The test knows
//! which instances it killed.

use std::path::Path;

const PAGE_WORDS: usize = 512;

/// One record.
#[derive(Debug)]
pub struct RawRecord {
    pub instance: u64,
    pub share: u64,
    pub held: u64,
    pub unsettled: u64,
    /// Nonce, borrower, bytes.
    pub earmarks: Vec<[u64; 3]>,
    /// Nonce, lender.
    pub accepted: Vec<[u64; 2]>,
}

/// Returns all records with an instance.
pub fn records(folder: &Path) -> Vec<RawRecord> {
    let bytes = std::fs::read(folder.join("ledger")).unwrap();
    let words: Vec<u64> =
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(words.len(), PAGE_WORDS * 65, "a header and 64 records");
    words.chunks_exact(PAGE_WORDS).skip(1).filter(|words| words[0] != 0).map(record).collect()
}

fn record(words: &[u64]) -> RawRecord {
    let entries = |from: usize, each: usize| words[from..from + 64 * each].chunks_exact(each);
    RawRecord {
        instance: words[0],
        share: words[2],
        held: words[3],
        unsettled: words[4],
        earmarks: entries(48, 3).map(|e| [e[0], e[1], e[2]]).filter(|e| e[0] != 0).collect(),
        accepted: entries(240, 2).map(|e| [e[0], e[1]]).filter(|e| e[0] != 0).collect(),
    }
}

/// Returns the bytes that count while the instances `alive` are live, and how many of these may be counted
/// twice.
pub fn counted(folder: &Path, alive: &[u64]) -> (u64, u64) {
    let records = records(folder);
    let live: Vec<_> = records.iter().filter(|record| alive.contains(&record.instance)).collect();
    let waits = |lender: u64, earmark: &[u64; 3]| {
        let borrower = live.iter().find(|record| record.instance == earmark[1]);
        borrower.is_some_and(|borrower| !borrower.accepted.contains(&[earmark[0], lender]))
    };
    let mut sum = 0;
    for record in &live {
        let waiting = record.earmarks.iter().filter(|earmark| waits(record.instance, earmark));
        sum += record.held + waiting.map(|earmark| earmark[2]).sum::<u64>();
    }
    (sum, live.iter().map(|record| record.unsettled).sum())
}
