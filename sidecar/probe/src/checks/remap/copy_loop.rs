//! Copies of one layer to the device, back to back.

use std::cell::RefCell;
use std::collections::VecDeque;

use sluice_memory::cuda::{Error, Event};

/// Copies in flight, so that the link always has a next one.
const DEPTH: usize = 4;

/// The copies. Each one is queued by `submit`, which returns the event at its end.
pub struct CopyLoop<F> {
    submit: F,
    state: RefCell<CopyState>,
}

#[derive(Default)]
struct CopyState {
    flying: VecDeque<Event>,
    /// End of the copy before the ones in flight.
    last: Option<Event>,
    times_ns: Vec<f64>,
}

impl<F: Fn() -> Result<Event, Error>> CopyLoop<F> {
    /// Queues the first copies.
    pub fn start(submit: F) -> Result<CopyLoop<F>, Error> {
        let copies = CopyLoop { submit, state: RefCell::default() };
        copies.top_up()?;
        Ok(copies)
    }

    /// Queues a copy in place of each one that is done.
    pub fn top_up(&self) -> Result<(), Error> {
        let mut state = self.state.borrow_mut();
        while state.flying.front().map_or(Ok(false), Event::is_reached)? {
            let done = state.flying.pop_front();
            if let (Some(last), Some(done)) = (&state.last, &done) {
                let time_ns = done.since_ns(last)?;
                state.times_ns.push(time_ns);
            }
            state.last = done;
        }
        while state.flying.len() < DEPTH {
            state.flying.push_back((self.submit)()?);
        }
        Ok(())
    }

    /// Returns the nanoseconds from the end of each copy to the end of the next.
    pub fn into_times_ns(self) -> Vec<f64> {
        self.state.into_inner().times_ns
    }
}
