//! Counts the bytes of all live participants against the capacity of the GPU.

use sluice_policy::peers::Peer;

use super::error::LedgerError;
use super::guard::LedgerFiles;
use super::layout::record as word;
use super::live_set::{LiveSet, sum_word};
use super::mapped_words::MappedWords;
use super::record::{self, EarmarkEntry, Record};

/// State of an earmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarmarkState {
    /// Its bytes are counted until the borrower accepts them.
    Waiting,
    /// The borrower holds its bytes; the lender can clear it.
    Accepted,
    /// The borrower has exited, so its bytes are not counted; the lender can clear it.
    Orphaned,
}

/// Bytes that a lender has reserved for a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earmark {
    /// Identifies it; unique per lender.
    pub nonce: u64,
    /// Instance of the borrower.
    pub to: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Its state.
    pub state: EarmarkState,
}

/// Contents of one record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Record and instance.
    pub peer: Peer,
    /// Name with which it joined.
    pub name: String,
    /// Whether its sidecar or its engine is running. Exited participants count nothing.
    pub is_live: bool,
    /// Bytes that it does not lend unless it is hibernated.
    pub floor_bytes: u64,
    /// Bytes that it may hold without asking.
    pub share_bytes: u64,
    /// Bytes that it has reserved.
    pub held_bytes: u64,
    /// Its earmarks for other participants that it has not cleared.
    pub earmarks: Vec<Earmark>,
    /// Nonce and lender's instance of each accepted earmark that it has not cleared.
    pub accepted: Vec<(u64, u64)>,
    /// Whether it waits for the time slice.
    pub is_waiting: bool,
    /// Whether it holds the time slice.
    pub has_slice: bool,
}

/// Bytes counted per participant and in total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerAudit {
    /// Capacity of the GPU, bytes.
    pub capacity_bytes: u64,
    /// Bytes held or earmarked by live participants.
    pub counted_bytes: u64,
    /// Upper bound of the counted bytes that are counted twice, because a sidecar exited within a transfer
    /// while its engine still runs.
    pub unsettled_bytes: u64,
    /// Sum of the shares of live participants, bytes.
    pub shares_bytes: u64,
    /// Counted bytes of each live participant.
    pub participants: Vec<(Peer, u64)>,
}

/// Returns the bytes counted over `living`.
pub(super) fn sum_counted(words: &MappedWords, living: LiveSet) -> u64 {
    living.records(words).map(|record| record_bytes(words, &record, living)).fold(0, u64::saturating_add)
}

fn record_bytes(words: &MappedWords, record: &Record<'_>, living: LiveSet) -> u64 {
    let waiting = record
        .earmarks()
        .filter(|entry| earmark_state(words, record.instance(), entry, living) == EarmarkState::Waiting)
        .map(|entry| entry.bytes);
    waiting.fold(record.held(), u64::saturating_add)
}

/// Returns the state of an earmark of `lender`.
pub(super) fn earmark_state(
    words: &MappedWords,
    lender: u64,
    entry: &EarmarkEntry,
    living: LiveSet,
) -> EarmarkState {
    match living.of_instance(words, entry.to) {
        None => EarmarkState::Orphaned,
        Some(borrower) if borrower.has_accepted(lender, entry.nonce) => EarmarkState::Accepted,
        Some(_) => EarmarkState::Waiting,
    }
}

impl LedgerFiles {
    /// Reads without the guard, so that a process that is frozen while it holds the guard cannot block
    /// readers. Each record and each earmark is consistent by itself; together they span the duration of the
    /// call.
    pub(super) fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.words.check_valid()?;
        let holder = self.active_slice()?.map_or(0, |held| held.peer.instance);
        let mut found = Vec::new();
        for record in record::all(&self.words) {
            found.extend(self.read_participant(&record, holder)?);
        }
        self.words.check_valid()?;
        Ok(found)
    }

    /// Reads again if another instance claimed the record during the read.
    fn read_participant(&self, record: &Record<'_>, holder: u64) -> Result<Option<Participant>, LedgerError> {
        loop {
            let peer = record.peer();
            if peer.instance == 0 {
                return Ok(None);
            }
            let seen = self.build_participant(record, peer, holder)?;
            if record.instance() == peer.instance {
                return Ok(Some(seen));
            }
        }
    }

    fn build_participant(
        &self,
        record: &Record<'_>,
        peer: Peer,
        holder: u64,
    ) -> Result<Participant, LedgerError> {
        let mut earmarks = Vec::new();
        for entry in record.earmarks() {
            earmarks.extend(self.read_earmark(record, peer, &entry)?);
        }
        Ok(Participant {
            peer,
            name: record.name(),
            is_live: self.is_live(peer.index)?,
            floor_bytes: record.get(word::FLOOR),
            share_bytes: record.get(word::SHARE),
            held_bytes: record.held(),
            earmarks,
            accepted: record.accepted().map(|(_, nonce, lender)| (nonce, lender)).collect(),
            is_waiting: record.get(word::TICKET) != 0,
            has_slice: peer.instance == holder,
        })
    }

    /// Returns `None` if the earmark was cleared during the read: its borrower may have cleared the accepted
    /// nonce too, and the earmark would look as if it were waiting.
    fn read_earmark(
        &self,
        record: &Record<'_>,
        lender: Peer,
        entry: &EarmarkEntry,
    ) -> Result<Option<Earmark>, LedgerError> {
        let EarmarkEntry { slot, nonce, to, bytes } = *entry;
        let mut living = LiveSet::default();
        if let Some(borrower) = record::of_instance(&self.words, to)
            && self.is_live(borrower.index)?
        {
            living.insert(borrower.index);
        }
        let state = earmark_state(&self.words, lender.instance, entry, living);
        Ok(record.has_earmark_at(slot, nonce).then_some(Earmark { nonce, to, bytes, state }))
    }

    pub(super) fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        let _guard = self.lock(0)?;
        let living = self.live_set()?;
        let words = &self.words;
        let of = |record: Record<'_>| (record.peer(), record_bytes(words, &record, living));
        let unsettled = living.records(words).map(|record| record.get(word::UNSETTLED));
        check_audit(LedgerAudit {
            capacity_bytes: self.capacity_bytes(),
            counted_bytes: sum_counted(words, living),
            unsettled_bytes: unsettled.fold(0, u64::saturating_add),
            shares_bytes: sum_word(words, living, word::SHARE),
            participants: living.records(words).map(of).collect(),
        })
    }
}

fn check_audit(audit: LedgerAudit) -> Result<LedgerAudit, LedgerError> {
    let LedgerAudit { capacity_bytes: capacity, counted_bytes: counted, unsettled_bytes: unsettled, .. } =
        audit;
    if counted.saturating_sub(unsettled) > capacity {
        return Err(LedgerError::Overcounted { counted, unsettled, capacity });
    }
    if audit.shares_bytes > capacity {
        return Err(LedgerError::SharesOvercommitted { shares: audit.shares_bytes, capacity });
    }
    Ok(audit)
}
