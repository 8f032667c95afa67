//! Turns that this tenant took from holders that were past their deadline.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use sluice_memory::neighbourhood::TakenOver;
use sluice_wire::state::Takeover;

use crate::clock::{unix_ms, whole_ms};

/// How many, and the last one.
#[derive(Debug, Default)]
pub struct Takeovers(Mutex<(u64, Option<Takeover>)>);

impl Takeovers {
    /// A turn was taken over.
    pub fn note(&self, taken: TakenOver) {
        let (at_unix_ms, overdue_ms) = (unix_ms(SystemTime::now()), whole_ms(taken.overdue));
        tracing::warn!(from = taken.from, overdue_ms, "the turn was taken from a holder past its deadline");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *all = (all.0 + 1, Some(Takeover { from: taken.from, at_unix_ms, overdue_ms }));
    }

    /// How many there were since the start, and the last one.
    pub fn seen(&self) -> (u64, Option<Takeover>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
