//! A neighbour asks. What it gets is decided here, from what holds at this moment: what it saw of this tenant may be old.

use super::{Letter, Terms, Trader};
use crate::action::Earmark;
use crate::brain::{Brain, Claim};
use crate::ids::Nanos;
use crate::neighbours::Peer;
use crate::neighbours::grants::Nonce;
use crate::neighbours::refusal::Refusal;

impl Trader {
    pub(super) fn asked(
        &mut self,
        now: Nanos,
        (peer, nonce): (Peer, Nonce),
        chunks: u32,
        ttl_ns: u64,
        brain: &mut Brain,
    ) {
        let expires = now.plus(ttl_ns.min(self.terms.ttl_ns));
        let chunks = match self.lends_to(now, peer, brain) {
            Ok(most) => chunks.min(most),
            Err(why) => return self.refuse(Earmark { peer, nonce }, why, brain),
        };
        if self.book.lent(nonce, peer, chunks, expires).is_ok() {
            brain.give(Earmark { peer, nonce }, chunks, Claim::Loan);
        } else {
            self.refuse(Earmark { peer, nonce }, Refusal::Nothing, brain);
        }
    }

    /// Most chunks that this neighbour gets now: the asker's rule, by what is known here.
    fn lends_to(&self, now: Nanos, peer: Peer, brain: &Brain) -> Result<u32, Refusal> {
        let most = brain.lendable()?;
        let above = self.terms.priority_of(peer).is_some_and(|priority| priority < self.terms.priority);
        if brain.active() && above {
            return Err(Refusal::Active);
        }
        match self.residence_left_ns(now) {
            0 => Ok(most),
            left_ns => Err(Refusal::MinResidence { left_ns }),
        }
    }

    pub(super) fn refuse(&mut self, Earmark { peer, nonce }: Earmark, why: Refusal, brain: &mut Brain) {
        brain.note(why.reason());
        self.letters.push(Letter::Refuse { peer, nonce, why });
    }

    /// Looks whether all layers have memory, and notes since when.
    pub(super) fn note_residence(&mut self, now: Nanos, brain: &Brain) {
        let whole = brain.loaded() && brain.absent_layers() == 0;
        self.whole_since = whole.then(|| self.whole_since.unwrap_or(now));
    }

    /// For so long nothing is lent because layers came back a moment ago, nanoseconds.
    fn residence_left_ns(&self, now: Nanos) -> u64 {
        let resident_ns = self.whole_since.map_or(u64::MAX, |since| now.since(since));
        self.terms.min_residence_ns.saturating_sub(resident_ns)
    }
}

impl Terms {
    /// The directive's word on a neighbour; none where it is not known.
    fn priority_of(&self, peer: Peer) -> Option<i32> {
        self.priorities.iter().find(|(known, _)| *known == peer).map(|(_, priority)| *priority)
    }
}
