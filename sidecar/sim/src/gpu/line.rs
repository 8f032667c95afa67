//! Turns: who has the GPU, and who waits for it in which place.

use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{TurnOrder, Waiter, sort_waiters};

/// The line before one GPU.
#[derive(Clone, Debug, Default)]
pub struct Line {
    order: TurnOrder,
    holder: Option<Holder>,
    waiters: Vec<Waiter>,
    tickets: u64,
    turns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    peer: Peer,
    epoch: u64,
    /// It was told that somebody waits.
    told: bool,
}

/// What somebody has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The turn has come.
    Turn(Peer, u64),
    /// Somebody waits for the turn that this tenant has.
    Sought(Peer, u64),
}

impl Line {
    /// Nobody has the turn.
    pub fn new(order: TurnOrder) -> Line {
        Line { order, ..Line::default() }
    }

    /// Draws a ticket. Who waits already keeps its own.
    pub fn want(&mut self, peer: Peer, priority: i32) {
        if self.waiters.iter().any(|waiter| waiter.peer == peer) {
            return;
        }
        self.tickets += 1;
        self.waiters.push(Waiter { peer, ticket: self.tickets, priority, asked: self.turns });
    }

    /// The turn is the next one's, if `peer` has it.
    pub fn release(&mut self, peer: Peer) {
        self.holder.take_if(|holder| holder.peer == peer);
    }

    /// It neither has the turn nor waits for it any more.
    pub fn leave(&mut self, peer: Peer) {
        self.release(peer);
        self.waiters.retain(|waiter| waiter.peer != peer);
    }

    /// Whether it has the turn.
    pub fn has(&self, peer: Peer) -> bool {
        self.holder.is_some_and(|holder| holder.peer == peer)
    }

    /// How many get the turn before it does; none where it does not wait.
    pub fn place(&self, peer: Peer) -> Option<u32> {
        let mut line = self.waiters.clone();
        sort_waiters(&mut line, self.order, self.turns);
        line.iter().position(|waiter| waiter.peer == peer).map(|place| place as u32)
    }

    /// Hands over, and says who has to be told what.
    pub fn settle(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        if self.holder.is_none() && !self.waiters.is_empty() {
            sort_waiters(&mut self.waiters, self.order, self.turns);
            self.turns += 1;
            let next = Holder { peer: self.waiters.remove(0).peer, epoch: self.turns, told: false };
            told.push(Told::Turn(next.peer, next.epoch));
            self.holder = Some(next);
        }
        if let Some(holder) = self.holder.as_mut().filter(|holder| !holder.told && !self.waiters.is_empty()) {
            holder.told = true;
            told.push(Told::Sought(holder.peer, holder.epoch));
        }
        told
    }

    /// Hand-overs so far.
    pub fn turns(&self) -> u64 {
        self.turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> Peer {
        Peer { index, instance: 7 }
    }

    #[test]
    fn the_turn_goes_round_and_its_holder_hears_once_that_somebody_waits() {
        let mut line = Line::new(TurnOrder::RoundRobin);
        line.want(peer(1), 0);
        assert_eq!(line.settle(), [Told::Turn(peer(1), 1)]);
        line.want(peer(2), 9);
        line.want(peer(3), 0);
        assert_eq!(line.settle(), [Told::Sought(peer(1), 1)]);
        assert_eq!((line.settle(), line.place(peer(3))), (vec![], Some(1)));
        line.release(peer(1));
        assert_eq!(line.settle(), [Told::Turn(peer(2), 2), Told::Sought(peer(2), 2)]);
        line.leave(peer(3));
        line.leave(peer(2));
        assert_eq!(line.settle(), []);
    }

    #[test]
    fn priority_goes_first_under_its_order() {
        let mut line = Line::new(TurnOrder::Priority { aging_turns: 64 });
        line.want(peer(1), 0);
        line.want(peer(2), 9);
        assert_eq!(line.settle()[0], Told::Turn(peer(2), 1));
    }
}
