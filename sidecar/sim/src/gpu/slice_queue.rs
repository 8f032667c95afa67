//! The time-slice queue: the tenant that has the GPU, and the order of those that wait.

use sluice_policy::peers::Peer;
use sluice_policy::peers::time_slice::{SliceOrder, Waiter, sort_waiters};

/// The time-slice queue of one GPU.
#[derive(Clone, Debug, Default)]
pub struct SliceQueue {
    order: SliceOrder,
    holder: Option<Holder>,
    waiters: Vec<Waiter>,
    tickets: u64,
    granted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    peer: Peer,
    epoch: u64,
    /// Whether the holder has been notified of a waiting tenant.
    is_notified: bool,
}

/// A notification for a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceEvent {
    /// The tenant has the GPU.
    Granted(Peer, u64),
    /// Another tenant waits for this tenant's time slice.
    Contended(Peer, u64),
}

impl SliceQueue {
    /// Creates a queue without a holder.
    pub fn new(order: SliceOrder) -> SliceQueue {
        SliceQueue { order, ..SliceQueue::default() }
    }

    /// Adds a tenant with a new ticket. A tenant that already waits keeps its ticket.
    pub fn enqueue(&mut self, peer: Peer, priority: i32) {
        if self.waiters.iter().any(|waiter| waiter.peer == peer) {
            return;
        }
        self.tickets += 1;
        self.waiters.push(Waiter { peer, ticket: self.tickets, priority, asked_at: self.granted });
    }

    /// Ends the time slice if `peer` holds it.
    pub fn release(&mut self, peer: Peer) {
        self.holder.take_if(|holder| holder.peer == peer);
    }

    /// Removes a tenant as holder and as waiter.
    pub fn remove(&mut self, peer: Peer) {
        self.release(peer);
        self.waiters.retain(|waiter| waiter.peer != peer);
    }

    /// Whether the tenant holds the time slice.
    pub fn is_holder(&self, peer: Peer) -> bool {
        self.holder.is_some_and(|holder| holder.peer == peer)
    }

    /// Returns the number of tenants ahead in the queue; `None` if the tenant does not wait.
    pub fn position(&self, peer: Peer) -> Option<u32> {
        let mut queue = self.waiters.clone();
        sort_waiters(&mut queue, self.order, self.granted);
        queue.iter().position(|waiter| waiter.peer == peer).map(|place| place as u32)
    }

    /// Grants the next time slice and returns the notifications to send.
    pub fn grant_next(&mut self) -> Vec<SliceEvent> {
        let mut slice_events = Vec::new();
        if self.holder.is_none() && !self.waiters.is_empty() {
            sort_waiters(&mut self.waiters, self.order, self.granted);
            self.granted += 1;
            let next = Holder { peer: self.waiters.remove(0).peer, epoch: self.granted, is_notified: false };
            slice_events.push(SliceEvent::Granted(next.peer, next.epoch));
            self.holder = Some(next);
        }
        if let Some(holder) =
            self.holder.as_mut().filter(|holder| !holder.is_notified && !self.waiters.is_empty())
        {
            holder.is_notified = true;
            slice_events.push(SliceEvent::Contended(holder.peer, holder.epoch));
        }
        slice_events
    }

    /// Returns the number of time slices granted so far.
    pub fn granted(&self) -> u64 {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(index: u32) -> Peer {
        Peer { index, instance: 7 }
    }

    #[test]
    fn slice_rotates_and_holder_is_notified_once_of_waiter() {
        let mut queue = SliceQueue::new(SliceOrder::RoundRobin);
        queue.enqueue(peer(1), 0);
        assert_eq!(queue.grant_next(), [SliceEvent::Granted(peer(1), 1)]);
        queue.enqueue(peer(2), 9);
        queue.enqueue(peer(3), 0);
        assert_eq!(queue.grant_next(), [SliceEvent::Contended(peer(1), 1)]);
        assert_eq!((queue.grant_next(), queue.position(peer(3))), (vec![], Some(1)));
        queue.release(peer(1));
        assert_eq!(queue.grant_next(), [SliceEvent::Granted(peer(2), 2), SliceEvent::Contended(peer(2), 2)]);
        queue.remove(peer(3));
        queue.remove(peer(2));
        assert_eq!(queue.grant_next(), []);
    }

    #[test]
    fn priority_order_grants_highest_first() {
        let mut queue = SliceQueue::new(SliceOrder::Priority { aging_slices: 64 });
        queue.enqueue(peer(1), 0);
        queue.enqueue(peer(2), 9);
        assert_eq!(queue.grant_next()[0], SliceEvent::Granted(peer(2), 1));
    }
}
