//! What is counted against the capacity.

use sluice_policy::peers::Peer;

use super::error::LedgerError;
use super::guard::Shared;
use super::layout::record as word;
use super::record::{self, Entry, Record};
use super::share;
use super::words::Words;

/// A set of records: one bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Living(u64);

impl Living {
    /// As if nobody were dead. What is counted so is never too little.
    pub(super) const ALL: Living = Living(u64::MAX);

    pub(super) fn insert(&mut self, index: u32) {
        self.0 |= 1 << index;
    }

    pub(super) fn has(self, index: u32) -> bool {
        self.0 & (1 << index) != 0
    }

    /// The records of those who live.
    pub(super) fn records(self, words: &Words) -> impl Iterator<Item = Record<'_>> {
        record::all(words).filter(move |record| record.instance() != 0 && self.has(record.index))
    }

    /// The record of a life that goes on.
    pub(super) fn of_instance(self, words: &Words, instance: u64) -> Option<Record<'_>> {
        record::of_instance(words, instance).filter(|record| self.has(record.index))
    }
}

/// What became of an earmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarmarkState {
    /// Its bytes are counted and wait for the borrower.
    Waiting,
    /// The borrower holds its bytes: the lender can clear it.
    Accepted,
    /// The borrower is dead, so its bytes are not counted: the lender can clear it.
    Orphaned,
}

/// Bytes that left a lender for a borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earmark {
    /// Names it; unique for each lender.
    pub nonce: u64,
    /// Instance of the borrower.
    pub to: u64,
    /// How many.
    pub bytes: u64,
    /// What became of it.
    pub state: EarmarkState,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Participant {
    /// Record and life.
    pub peer: Peer,
    /// As it joined.
    pub name: String,
    /// Whether its sidecar or its engine lives. The dead count nothing.
    pub live: bool,
    /// Bytes that it never lends while it is not hibernated.
    pub floor_bytes: u64,
    /// Bytes that it may hold without asking.
    pub share_bytes: u64,
    /// Bytes that it has reserved.
    pub held_bytes: u64,
    /// What it has earmarked for others and not cleared yet.
    pub earmarks: Vec<Earmark>,
    /// Nonce and lender's instance of what it has accepted and not forgotten yet.
    pub accepted: Vec<(u64, u64)>,
    /// Whether it waits for the turn.
    pub waits: bool,
    /// Whether it has the turn.
    pub has_turn: bool,
}

/// Who has how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerAudit {
    /// Of the GPU.
    pub capacity_bytes: u64,
    /// Held or earmarked, over all that live.
    pub counted_bytes: u64,
    /// At most so many of these are counted twice: a sidecar died within a transfer and its engine has not ended yet.
    pub unsettled_bytes: u64,
    /// Shares of all that live.
    pub shares_bytes: u64,
    /// Counted for each that lives.
    pub participants: Vec<(Peer, u64)>,
}

/// Bytes counted over `living`.
pub(super) fn counted(words: &Words, living: Living) -> u64 {
    living.records(words).map(|record| of_record(words, &record, living)).fold(0, u64::saturating_add)
}

fn of_record(words: &Words, record: &Record<'_>, living: Living) -> u64 {
    let waiting = record
        .earmarks()
        .filter(|entry| state(words, record.instance(), entry, living) == EarmarkState::Waiting)
        .map(|entry| entry.bytes);
    waiting.fold(record.held(), u64::saturating_add)
}

/// What became of an earmark of the lender.
pub(super) fn state(words: &Words, lender: u64, entry: &Entry, living: Living) -> EarmarkState {
    match living.of_instance(words, entry.to) {
        None => EarmarkState::Orphaned,
        Some(borrower) if borrower.has_accepted(lender, entry.nonce) => EarmarkState::Accepted,
        Some(_) => EarmarkState::Waiting,
    }
}

impl Shared {
    /// Without the guard, so that nobody who is frozen within it keeps others from looking. Each record, and each earmark,
    /// is as it was at one moment; together they are of the time that the look took.
    pub(super) fn survey(&self) -> Result<Vec<Participant>, LedgerError> {
        self.words.sound()?;
        let holder = self.turn_holder()?.map_or(0, |held| held.peer.instance);
        let mut found = Vec::new();
        for record in record::all(&self.words) {
            found.extend(self.look(&record, holder)?);
        }
        self.words.sound()?;
        Ok(found)
    }

    /// Looked at again when another life took the record meanwhile.
    fn look(&self, record: &Record<'_>, holder: u64) -> Result<Option<Participant>, LedgerError> {
        loop {
            let peer = record.peer();
            if peer.instance == 0 {
                return Ok(None);
            }
            let seen = self.participant(record, peer, holder)?;
            if record.instance() == peer.instance {
                return Ok(Some(seen));
            }
        }
    }

    fn participant(&self, record: &Record<'_>, peer: Peer, holder: u64) -> Result<Participant, LedgerError> {
        let mut earmarks = Vec::new();
        for entry in record.earmarks() {
            earmarks.extend(self.earmark(record, peer, &entry)?);
        }
        Ok(Participant {
            peer,
            name: record.name(),
            live: self.lives(peer.index)?,
            floor_bytes: record.get(word::FLOOR),
            share_bytes: record.get(word::SHARE),
            held_bytes: record.held(),
            earmarks,
            accepted: record.accepted().map(|(_, nonce, lender)| (nonce, lender)).collect(),
            waits: record.get(word::TICKET) != 0,
            has_turn: peer.instance == holder,
        })
    }

    /// `None` when it was cleared meanwhile: then what its borrower had accepted may be forgotten, and seems to wait.
    fn earmark(
        &self,
        record: &Record<'_>,
        lender: Peer,
        entry: &Entry,
    ) -> Result<Option<Earmark>, LedgerError> {
        let Entry { slot, nonce, to, bytes } = *entry;
        let mut living = Living::default();
        if let Some(borrower) = record::of_instance(&self.words, to)
            && self.lives(borrower.index)?
        {
            living.insert(borrower.index);
        }
        let state = state(&self.words, lender.instance, entry, living);
        Ok(record.marks(slot, nonce).then_some(Earmark { nonce, to, bytes, state }))
    }

    pub(super) fn audit(&self) -> Result<LedgerAudit, LedgerError> {
        let _guard = self.lock(0)?;
        let living = self.living()?;
        let words = &self.words;
        let of = |record: Record<'_>| (record.peer(), of_record(words, &record, living));
        let unsettled = living.records(words).map(|record| record.get(word::UNSETTLED));
        balanced(LedgerAudit {
            capacity_bytes: self.capacity_bytes(),
            counted_bytes: counted(words, living),
            unsettled_bytes: unsettled.fold(0, u64::saturating_add),
            shares_bytes: share::sum(words, living, word::SHARE),
            participants: living.records(words).map(of).collect(),
        })
    }
}

fn balanced(audit: LedgerAudit) -> Result<LedgerAudit, LedgerError> {
    let LedgerAudit { capacity_bytes: capacity, counted_bytes: counted, unsettled_bytes: unsettled, .. } =
        audit;
    if counted.saturating_sub(unsettled) > capacity {
        return Err(LedgerError::Overcounted { counted, unsettled, capacity });
    }
    if audit.shares_bytes > capacity {
        return Err(LedgerError::Overdealt { shares: audit.shares_bytes, capacity });
    }
    Ok(audit)
}
