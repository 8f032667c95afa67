//! Pause-Resume: who is paused when no placement keeps the batch in time, and who goes on when.
//!
//! Under `OrbitFlow` the victim is the request with most bytes, its KV and the tokens of its deposit together, since the deposit
//! is what its client reads meanwhile, and a pause ends only after some running request has completed and a plan with the paused
//! one is feasible; `Unified` has rules of its own for both ([`super::deadline`]). The oldest admitted request never is a victim,
//! so that something always ends (DESIGN 7). All pauses of a request together
//! are bounded; from then on it is immune: it is overdue, and goes on before all others, who make room for it. Only the oldest
//! does not. While the tenant sleeps nobody is paused by another, and no time counts.
//!
//! Source: OrbitFlow 4.2; the bound and immunity are ours: the paper allows any number of pauses.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::digest::mix;
use crate::ids::{Nanos, RequestId};

/// Bytes of one token in a deposit (OrbitFlow 4.4).
pub const TOKEN_BYTES: u64 = 4;

/// All pauses of a request together take at most this, nanoseconds, unless told otherwise: 10 s, the time after which a
/// reader of a stream takes it for dead.
pub const DEFAULT_BOUND_NS: u64 = 10_000_000_000;

/// A running request that might be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which one; ids are in order of arrival.
    pub id: RequestId,
    /// Its KV, bytes, on both sides of the link.
    pub kv_bytes: u64,
    /// Tokens made and not delivered yet.
    pub deposit: u32,
}

impl Candidate {
    fn bytes(&self) -> u64 {
        self.kv_bytes + u64::from(self.deposit) * TOKEN_BYTES
    }
}

/// Why a paused request does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedSince {
    /// Nothing has completed since it was paused: what made it one too many is still there.
    NothingCompleted,
    /// No placement of the batch with it fits or keeps in time.
    NoPlan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    since: Nanos,
    completed_since: bool,
}

/// Who is paused, and how long each request has been in all.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    bound_ns: u64,
    paused: BTreeMap<RequestId, Pause>,
    /// Of ended pauses, nanoseconds.
    spent_ns: BTreeMap<RequestId, u64>,
    /// Since when the tenant sleeps.
    asleep: Option<Nanos>,
}

impl Pauses {
    /// Nobody is paused. All pauses of one request together take at most `bound_ns`.
    pub fn new(bound_ns: u64) -> Pauses {
        Pauses { bound_ns, ..Pauses::default() }
    }

    /// The running requests in the order in which they would be paused: most bytes first, of equals the youngest. Without the
    /// oldest of all and without immune ones.
    pub fn victims(&self, now: Nanos, running: &[Candidate]) -> Vec<RequestId> {
        let everyone = running.iter().map(|candidate| candidate.id).chain(self.paused.keys().copied());
        let oldest = everyone.min();
        let mut victims: Vec<&Candidate> = (running.iter())
            .filter(|candidate| Some(candidate.id) != oldest && !self.immune(candidate.id, now))
            .collect();
        victims.sort_by_key(|candidate| Reverse((candidate.bytes(), candidate.id)));
        victims.into_iter().map(|candidate| candidate.id).collect()
    }

    /// A number that differs when anything here does.
    pub fn digest_word(&self) -> u64 {
        let paused = self
            .paused
            .iter()
            .flat_map(|(id, pause)| [id.0, pause.since.0, u64::from(pause.completed_since)]);
        let spent = self.spent_ns.iter().flat_map(|(id, ns)| [id.0, *ns]);
        paused
            .chain(spent)
            .chain(self.asleep.map(|since| since.0))
            .fold(self.bound_ns, |word, next| mix(word ^ next))
    }

    /// Whether this request is paused now.
    pub fn is_paused(&self, id: RequestId) -> bool {
        self.paused.contains_key(&id)
    }

    /// Whether this request has been paused for as long as one may be.
    pub fn immune(&self, id: RequestId, now: Nanos) -> bool {
        self.total_ns(id, now) >= self.bound_ns
    }

    /// The time this request has been paused in all, nanoseconds.
    pub fn total_ns(&self, id: RequestId, now: Nanos) -> u64 {
        let ended_ns = self.spent_ns.get(&id).copied().unwrap_or(0);
        let until = self.asleep.unwrap_or(now);
        let running_ns = self.paused.get(&id).map_or(0, |pause| until.since(pause.since));
        ended_ns.saturating_add(running_ns)
    }

    /// This request no longer runs.
    ///
    /// # Panics
    /// If it is paused already.
    pub fn pause(&mut self, id: RequestId, now: Nanos) {
        let before = self.paused.insert(id, Pause { since: now, completed_since: false });
        assert!(before.is_none(), "a paused request is not paused again");
    }

    /// A running request has completed or was ended.
    pub fn on_finish(&mut self, id: RequestId) {
        self.on_cancel(id);
        self.paused.values_mut().for_each(|pause| pause.completed_since = true);
    }

    /// A request that waited was given up: what it held nobody misses.
    pub fn on_cancel(&mut self, id: RequestId) {
        self.paused.remove(&id);
        self.spent_ns.remove(&id);
    }

    /// Whether the tenant sleeps. Said whenever that may have changed.
    pub fn on_sleep(&mut self, asleep: bool, now: Nanos) {
        match (self.asleep, asleep) {
            (None, true) => self.asleep = Some(now),
            (Some(since), false) => {
                self.asleep = None;
                let nap =
                    |pause: &mut Pause| pause.since = pause.since.plus(now.since(since.max(pause.since)));
                self.paused.values_mut().for_each(nap);
            }
            _ => {}
        }
    }

    /// The paused request that must go on before all others, if one must: the oldest of those that are immune.
    pub fn overdue(&self, now: Nanos) -> Option<RequestId> {
        self.paused.keys().copied().find(|id| self.immune(*id, now))
    }

    /// Whether this paused request may go on, if a plan with it is `feasible`. An immune one waits for no completion. When
    /// nothing runs, `idle`, there is nothing to wait for either.
    ///
    /// # Errors
    /// Why it stays paused.
    ///
    /// # Panics
    /// If it is not paused.
    pub fn can_resume(
        &self,
        id: RequestId,
        now: Nanos,
        feasible: bool,
        idle: bool,
    ) -> Result<(), PausedSince> {
        let pause = self.paused.get(&id).expect("only a paused request goes on");
        if !(pause.completed_since || idle || self.immune(id, now)) {
            return Err(PausedSince::NothingCompleted);
        }
        if feasible { Ok(()) } else { Err(PausedSince::NoPlan) }
    }

    /// This request runs again.
    ///
    /// # Panics
    /// If it was not paused.
    pub fn resume(&mut self, id: RequestId, now: Nanos) {
        let total_ns = self.total_ns(id, now);
        self.paused.remove(&id).expect("only a paused request goes on");
        self.spent_ns.insert(id, total_ns);
    }
}
