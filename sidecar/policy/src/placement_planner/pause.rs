//! Pause-Resume: tracks the requests paused because no placement keeps the batch on time, and when they resume.
//!
//! Under `OrbitFlow` the victim has the most bytes, KV and deposited tokens together, because its client reads the
//! deposit during the pause. A pause ends only after a running request completed and a plan with the paused request is
//! feasible. `Unified` has its own rules for both ([`super::deadline`]). The oldest admitted request is never a victim,
//! so that a request always completes. The total pause time of a request is bounded. At the bound the
//! request is immune and overdue: it resumes before all others, which are paused for it, except the oldest. While the
//! tenant sleeps no request is paused for another, and no time counts.
//!
//! Source: OrbitFlow 4.2; the bound and immunity are ours: the paper allows any number of pauses.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;

use sluice_common::random::mix;

use crate::ids::{Nanos, RequestId};

/// Bytes of one deposited token (OrbitFlow 4.4).
pub const TOKEN_BYTES: u64 = 4;

/// Default bound on a request's total pause time, nanoseconds: 10 s, after which a reader assumes that the stream is
/// broken.
pub const DEFAULT_BOUND_NS: u64 = 10_000_000_000;

/// A running request that may be paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The request; ids increase in order of arrival.
    pub id: RequestId,
    /// Its KV on both sides of the link, bytes.
    pub kv_bytes: u64,
    /// Tokens generated and not delivered yet.
    pub deposit: u32,
}

impl Candidate {
    fn bytes(&self) -> u64 {
        self.kv_bytes + u64::from(self.deposit) * TOKEN_BYTES
    }
}

/// Why a paused request cannot resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedSince {
    /// No request has completed since the pause, so its cause remains.
    NothingCompleted,
    /// No placement of the batch with it fits or is on time.
    NoPlan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    since: Nanos,
    completed_since: bool,
}

/// The paused requests, and the total pause time of each request.
#[derive(Clone, Debug, Default)]
pub struct Pauses {
    bound_ns: u64,
    paused: BTreeMap<RequestId, Pause>,
    /// Time of ended pauses, nanoseconds.
    spent_ns: BTreeMap<RequestId, u64>,
    /// Since when the tenant sleeps.
    asleep: Option<Nanos>,
}

impl Pauses {
    /// Returns an empty set. The pauses of one request together take at most `bound_ns`.
    pub fn new(bound_ns: u64) -> Pauses {
        Pauses { bound_ns, ..Pauses::default() }
    }

    /// Returns the running requests in pause order: most bytes first, of equals the youngest. Excludes the oldest of
    /// all and the immune ones.
    pub fn victims(&self, now: Nanos, running: &[Candidate]) -> Vec<RequestId> {
        let everyone = running.iter().map(|candidate| candidate.id).chain(self.paused.keys().copied());
        let oldest = everyone.min();
        let mut victims: Vec<&Candidate> = (running.iter())
            .filter(|candidate| Some(candidate.id) != oldest && !self.immune(candidate.id, now))
            .collect();
        victims.sort_by_key(|candidate| Reverse((candidate.bytes(), candidate.id)));
        victims.into_iter().map(|candidate| candidate.id).collect()
    }

    /// Returns a digest of the state.
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

    /// Whether this request is paused.
    pub fn is_paused(&self, id: RequestId) -> bool {
        self.paused.contains_key(&id)
    }

    /// Whether this request reached the pause bound.
    pub fn immune(&self, id: RequestId, now: Nanos) -> bool {
        self.total_ns(id, now) >= self.bound_ns
    }

    /// Returns the total pause time of this request, nanoseconds.
    pub fn total_ns(&self, id: RequestId, now: Nanos) -> u64 {
        let ended_ns = self.spent_ns.get(&id).copied().unwrap_or(0);
        let until = self.asleep.unwrap_or(now);
        let running_ns = self.paused.get(&id).map_or(0, |pause| until.since(pause.since));
        ended_ns.saturating_add(running_ns)
    }

    /// Records that this request is paused.
    ///
    /// # Panics
    /// If it is already paused.
    pub fn pause(&mut self, id: RequestId, now: Nanos) {
        let before = self.paused.insert(id, Pause { since: now, completed_since: false });
        assert!(before.is_none(), "a paused request is not paused again");
    }

    /// Records that a running request completed or ended.
    pub fn on_finish(&mut self, id: RequestId) {
        self.on_cancel(id);
        self.paused.values_mut().for_each(|pause| pause.completed_since = true);
    }

    /// Removes a cancelled waiting request. It frees no running request's memory, so it does not let others resume.
    pub fn on_cancel(&mut self, id: RequestId) {
        self.paused.remove(&id);
        self.spent_ns.remove(&id);
    }

    /// Records whether the tenant sleeps; call it after every possible change.
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

    /// Returns the paused request that must resume before all others: the oldest immune one.
    pub fn overdue(&self, now: Nanos) -> Option<RequestId> {
        self.paused.keys().copied().find(|id| self.immune(*id, now))
    }

    /// Whether this paused request may resume, if a plan with it is `feasible`. An immune request does not wait for a
    /// completion; nor does any request if `idle`, when no request runs.
    ///
    /// # Errors
    /// The reason why it stays paused.
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
        let pause = self.paused.get(&id).expect("only a paused request resumes");
        if !(pause.completed_since || idle || self.immune(id, now)) {
            return Err(PausedSince::NothingCompleted);
        }
        if feasible { Ok(()) } else { Err(PausedSince::NoPlan) }
    }

    /// Records that this request runs again.
    ///
    /// # Panics
    /// If it was not paused.
    pub fn resume(&mut self, id: RequestId, now: Nanos) {
        let total_ns = self.total_ns(id, now);
        self.paused.remove(&id).expect("only a paused request resumes");
        self.spent_ns.insert(id, total_ns);
    }
}
