//! Which copy has a direction of the link next: of all that want it the most urgent one, by the policy's rule. What is under way
//! is not interrupted: a copy is the quantum here.

use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::ids::{ActionId, Nanos};

use super::Device;
use crate::machine::{Passage, Way};

/// KV that crosses the link between two steps, or comes home beside them: the operation at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    pub(crate) id: ActionId,
    pub(crate) way: Way,
    pub(crate) bytes: u64,
    /// When it is needed, or what waits behind it, if anybody waits.
    pub(crate) due: Option<Nanos>,
    /// Since when it wants the link.
    pub(crate) since: Nanos,
    /// Its place on the link, once it has one.
    pub(crate) passage: Option<Passage>,
}

/// What may have the link.
#[derive(Clone, Copy, Debug)]
enum Next {
    /// By its place among those that wait.
    Copy(usize),
    /// The first one.
    WriteBack,
    Crossing,
}

impl Device {
    /// In each direction that is free the most urgent copy begins.
    pub(super) fn serve_link(&mut self) {
        loop {
            self.note_startable();
            match [Way::In, Way::Out].into_iter().find_map(|way| self.next_on(way)) {
                Some(Next::Copy(at)) => {
                    let waiting = self.copies.remove(at).expect("what is next waits");
                    self.start_copy(waiting.id, waiting.copy);
                }
                Some(Next::WriteBack) => self.start_write_back(),
                Some(Next::Crossing) => self.start_crossing(),
                None => return,
            }
        }
    }

    fn next_on(&self, way: Way) -> Option<Next> {
        if self.is_busy(way) {
            return None;
        }
        let copies = self.copies.iter().enumerate().filter(|(_, waiting)| waiting.copy.way() == way);
        let copies = copies.filter_map(|(at, waiting)| {
            Some((CopyPriority::new(waiting.id, waiting.due, waiting.since?), Next::Copy(at)))
        });
        let written = self.write_backs.front().filter(|_| way == Way::Out);
        let written = written.map(|one| (CopyPriority::new(one.id, one.due, one.since), Next::WriteBack));
        let crossing = self.crossing.filter(|one| one.way == way && one.passage.is_none());
        let crossing = crossing.map(|one| (CopyPriority::new(one.id, one.due, one.since), Next::Crossing));
        let all = copies.chain(written).chain(crossing);
        all.min_by_key(|(rank, _)| *rank).map(|(_, next)| next)
    }

    fn is_busy(&self, way: Way) -> bool {
        let copies = match way {
            Way::In => self.copying.is_some(),
            Way::Out => self.spilling.is_some() || self.writing.is_some(),
        };
        copies || self.crossing.is_some_and(|one| one.way == way) && self.crossing_ends().is_some()
    }

    /// When the swap that is on the link has passed; none where none is.
    pub(super) fn crossing_ends(&self) -> Option<Nanos> {
        let passage = self.crossing?.passage?;
        Some(passage.ends).filter(|ends| *ends > self.clock)
    }

    fn start_crossing(&mut self) {
        let Some(Crossing { way, bytes, .. }) = self.crossing else { return };
        let passage = self.pass(self.clock, way, bytes);
        if let Some(crossing) = &mut self.crossing {
            crossing.passage = Some(passage);
        }
    }

    /// The operation at hand is this one; none where it needs no link.
    pub(crate) fn cross(&mut self, crossing: Option<Crossing>) {
        self.crossing = crossing;
        self.kick();
    }

    /// The passage of the operation at hand, once it has the link.
    pub(crate) fn crossed(&self) -> Option<Passage> {
        self.crossing?.passage
    }
}
