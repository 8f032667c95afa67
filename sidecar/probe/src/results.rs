//! What a row finds, told to the process that started it as it comes: a row that is killed keeps what it had.

use serde::{Deserialize, Serialize};

use crate::child_process::ParentPipe;
use crate::report::Answer;
use crate::statistics::Figure;

/// One message of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CheckEvent {
    /// Something was measured.
    Figure(Figure),
    /// Something without a number.
    Note(String),
    /// The answer; nothing follows it.
    Answer(Answer),
}

/// Where a row's figures and notes go.
#[derive(Debug)]
pub struct Findings<'a> {
    /// What was measured.
    pub figures: EventSink<'a, Figure>,
    /// What else there is to say.
    pub notes: EventSink<'a, String>,
}

impl<'a> Findings<'a> {
    /// They go to this process.
    pub fn new(parent: &'a ParentPipe) -> Findings<'a> {
        Findings {
            figures: EventSink { parent, to_event: CheckEvent::Figure },
            notes: EventSink { parent, to_event: CheckEvent::Note },
        }
    }
}

/// A list of which every item is sent at once and none is kept here.
#[derive(Debug)]
pub struct EventSink<'a, T> {
    parent: &'a ParentPipe,
    to_event: fn(T) -> CheckEvent,
}

impl<T> EventSink<'_, T> {
    /// Tells one item.
    pub fn push(&mut self, item: T) {
        // Fails only when the parent is gone, and this process with it.
        let _ = self.parent.send(&(self.to_event)(item), &[]);
    }
}

impl<T> Extend<T> for EventSink<'_, T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}
