//! The one seat at the link: held from the hand-over of memory to a confirmed death.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The seat, and who waits for it.
#[derive(Debug)]
pub struct Seat {
    patience: Duration,
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Line {
    taken: bool,
    /// Numbers of those who wait, the newest last.
    waiting: Vec<u64>,
    next: u64,
}

impl Line {
    fn turn(&self, number: u64) -> bool {
        !self.taken && self.waiting.last() == Some(&number)
    }
}

impl Seat {
    /// A free seat for which nobody waits longer than `patience`.
    pub fn new(patience: Duration) -> Self {
        Seat { patience, line: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for the seat, not without limit. The newest goes first: an engine that was just started again is worth
    /// more than a peer that has waited since long before.
    pub fn take(&self) -> Option<Taken<'_>> {
        let mut line = self.line();
        let number = line.next;
        line.next += 1;
        line.waiting.push(number);
        let waited = self.changed.wait_timeout_while(line, self.patience, |line| !line.turn(number));
        let (mut line, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let turn = line.turn(number);
        line.waiting.retain(|other| *other != number);
        line.taken |= turn;
        // Who waits behind one that left may be next.
        self.changed.notify_all();
        // Lazily: one made in vain would free the seat of another.
        turn.then(|| Taken(self))
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seat, free again when dropped.
#[derive(Debug)]
pub struct Taken<'a>(&'a Seat);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.line().taken = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::*;

    /// So many wait, or waited a moment ago.
    fn until(seat: &Seat, waiting: usize) {
        while seat.line().waiting.len() != waiting {
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_newest_who_waits_is_next_and_then_the_others() {
        let seat = Seat::new(Duration::from_secs(60));
        let first = seat.take().unwrap();
        let (told, order) = channel();
        std::thread::scope(|scope| {
            for (before, name) in ["old", "new"].into_iter().enumerate() {
                let (seat, told) = (&seat, told.clone());
                scope.spawn(move || {
                    let taken = seat.take();
                    told.send((name, taken.is_some())).unwrap();
                });
                until(seat, before + 1);
            }
            drop(first);
        });
        assert_eq!(order.try_iter().collect::<Vec<_>>(), [("new", true), ("old", true)]);
    }

    #[test]
    fn who_waits_too_long_leaves_the_line_and_keeps_nobody_out() {
        let seat = Seat::new(Duration::from_millis(100));
        let first = seat.take().unwrap();
        let begun = Instant::now();
        assert!(seat.take().is_none());
        assert!(begun.elapsed() >= Duration::from_millis(100));
        drop(first);
        assert!(seat.take().is_some());
    }
}
