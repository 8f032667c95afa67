//! What moved in the memory of one GPU, from the lists of its sidecars.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use sluice_wire::State;
use sluice_wire::state::Move;

use crate::text::formatting::{move_count, move_text, moved_memory};
use crate::view::title;

/// Moves of one tenant for one reason between two readings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoggedMove {
    /// Its number among those of the GPU, counted from 1. It is sent again with the same number after its size changed.
    pub number: u64,
    /// Number of the last change of any entry of the GPU when this one changed.
    #[serde(skip)]
    changed_at: u64,
    /// When the last of them was, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// Tenant of the moves.
    pub title: Arc<str>,
    /// The label of the policy's `Reason`.
    pub reason: String,
    /// Description of the last move for the user; empty = the sidecar only reports their number.
    pub detail: String,
    /// How many they are.
    pub count: u32,
    /// Bytes of all.
    pub bytes: u64,
}

/// An entry of a sidecar's list of moves as it was at the last reading.
#[derive(Clone, Debug)]
struct MergedMove {
    moved: Move,
    /// Number of the [`LoggedMove`] that counts it.
    number: u64,
}

impl MergedMove {
    fn is_same(&self, moved: &Move) -> bool {
        self.moved.at_unix_ms == moved.at_unix_ms && self.moved.reason == moved.reason
    }

    /// Whether this last entry became `moved`: a sidecar adds moves to its last entry while their reason stays the
    /// same.
    fn is_growth_of(&self, moved: &Move) -> bool {
        let has_more = match (move_count(&self.moved.detail), move_count(&moved.detail)) {
            (Some(known), Some(times)) => times > known && moved.bytes >= self.moved.bytes,
            _ => false,
        };
        moved.reason == self.moved.reason && moved.at_unix_ms > self.moved.at_unix_ms && has_more
    }
}

/// The moves of one GPU that are kept, oldest first. Their number is bounded.
#[derive(Debug, Default)]
pub(super) struct MoveLog {
    logged: VecDeque<LoggedMove>,
    max: usize,
    /// Changes so far: new moves, and those that got another size.
    changes: u64,
    /// Number of the last move.
    last_number: u64,
    /// The entries of each tenant at the last reading, oldest first.
    entries: BTreeMap<Arc<str>, Vec<MergedMove>>,
}

impl MoveLog {
    /// None; at most `most` are kept.
    pub fn new(most: usize) -> MoveLog {
        MoveLog { max: most, ..MoveLog::default() }
    }

    /// Those that are kept, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &LoggedMove> {
        self.logged.iter()
    }

    /// Forgets what is older than `oldest_unix_ms`, and the entries of tenants that `is_there` denies.
    pub fn trim(&mut self, oldest_unix_ms: u64, is_there: impl Fn(&str) -> bool) {
        self.entries.retain(|title, _| is_there(title));
        while self.logged.len() > self.max
            || self.logged.front().is_some_and(|one| one.at_unix_ms < oldest_unix_ms)
        {
            self.logged.pop_front();
        }
    }

    /// Those that changed after change number `since`, and the number of the last change.
    pub fn since(&self, since: u64) -> (Vec<LoggedMove>, u64) {
        // The number of an earlier GPU of this name is of no use.
        let since = if since > self.changes { 0 } else { since };
        (self.logged.iter().filter(|one| one.changed_at > since).cloned().collect(), self.changes)
    }

    /// A state repeats its last moves. Those that are new are added, one for each reason. Those that are known and
    /// have another size by now get it: a sidecar counts the bytes of a loan once they have moved.
    pub fn add(&mut self, state: &State, oldest_unix_ms: u64) {
        let name: Arc<str> = title(state).into();
        let mut known = self.entries.remove(&name).unwrap_or_default();
        let mut grown =
            known.last().filter(|last| !moved_memory(state).any(|one| last.is_same(one))).cloned();
        let first_new = self.last_number + 1;
        let mut entries = Vec::new();
        for moved in moved_memory(state).filter(|moved| moved.at_unix_ms >= oldest_unix_ms) {
            let same = known.iter().position(|entry| entry.is_same(moved)).map(|at| known.remove(at));
            let number = match same {
                Some(entry) => {
                    self.change(entry.number, &entry.moved, moved);
                    entry.number
                }
                None => {
                    let before = grown.take().filter(|entry| entry.is_growth_of(moved));
                    self.count(&name, moved, before.map(|entry| entry.moved), first_new)
                }
            };
            entries.push(MergedMove { moved: without_layers(moved), number });
        }
        self.entries.insert(name, entries);
    }

    /// Counts what `moved` has more than `before`, together with the moves from number `first_new` on that have its
    /// reason.
    fn count(&mut self, name: &Arc<str>, moved: &Move, before: Option<Move>, first_new: u64) -> u64 {
        let (known_times, known_bytes) =
            before.map_or((0, 0), |before| (move_count(&before.detail).unwrap_or(1), before.bytes));
        let count = move_count(&moved.detail).unwrap_or(1).saturating_sub(known_times);
        let bytes = moved.bytes.saturating_sub(known_bytes);
        self.changes += 1;
        let fits = |one: &&mut LoggedMove| {
            one.number >= first_new && one.title == *name && one.reason == moved.reason
        };
        if let Some(one) = self.logged.iter_mut().find(fits) {
            (one.at_unix_ms, one.count) = (moved.at_unix_ms, one.count.saturating_add(count));
            (one.bytes, one.changed_at) = (one.bytes.saturating_add(bytes), self.changes);
            one.detail = detail(moved);
            return one.number;
        }
        self.last_number += 1;
        self.logged.push_back(LoggedMove {
            number: self.last_number,
            changed_at: self.changes,
            at_unix_ms: moved.at_unix_ms,
            title: name.clone(),
            reason: moved.reason.clone(),
            detail: detail(moved),
            count,
            bytes,
        });
        self.last_number
    }

    /// An entry that was counted as `before` is `now`: the move `number` that counts it changes by the difference.
    fn change(&mut self, number: u64, before: &Move, now: &Move) {
        if (before.bytes, &before.detail) == (now.bytes, &now.detail) {
            return;
        }
        let Some(one) = self.logged.iter_mut().find(|one| one.number == number) else { return };
        let times = |moved: &Move| move_count(&moved.detail).unwrap_or(1);
        self.changes += 1;
        one.changed_at = self.changes;
        // The move may count a part of the entry, so the difference is added and nothing is set.
        one.bytes += now.bytes.saturating_sub(before.bytes);
        one.bytes = one.bytes.saturating_sub(before.bytes.saturating_sub(now.bytes));
        one.count = one.count.saturating_add(times(now).saturating_sub(times(before)));
        if one.at_unix_ms == now.at_unix_ms {
            one.detail = detail(now);
        }
    }
}

/// Returns the description of a move for the user; empty if its sidecar only reports the number of moves.
fn detail(moved: &Move) -> String {
    if move_count(&moved.detail).is_some() { String::new() } else { move_text(moved) }
}

fn without_layers(moved: &Move) -> Move {
    let (reason, detail) = (moved.reason.clone(), moved.detail.clone());
    Move { at_unix_ms: moved.at_unix_ms, reason, detail, layers: Vec::new(), bytes: moved.bytes }
}
