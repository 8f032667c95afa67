//! Findings of a check, sent at once to the parent process: the findings of a killed check are kept.

use serde::{Deserialize, Serialize};

use crate::child_process::ParentPipe;
use crate::report::Answer;
use crate::statistics::Figure;

/// One message of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum CheckEvent {
    /// A measurement.
    Figure(Figure),
    /// A remark without a number.
    Note(String),
    /// The answer, as the last message.
    Answer(Answer),
}

/// The sinks for a check's figures and notes.
#[derive(Debug)]
pub struct Findings<'a> {
    /// Measured figures.
    pub figures: EventSink<'a, Figure>,
    /// Notes without a figure.
    pub notes: EventSink<'a, String>,
}

impl<'a> Findings<'a> {
    /// Creates sinks that send to `parent`.
    pub fn new(parent: &'a ParentPipe) -> Findings<'a> {
        Findings {
            figures: EventSink { parent, to_event: CheckEvent::Figure },
            notes: EventSink { parent, to_event: CheckEvent::Note },
        }
    }
}

/// A list whose items are sent at once and not kept here.
#[derive(Debug)]
pub struct EventSink<'a, T> {
    parent: &'a ParentPipe,
    to_event: fn(T) -> CheckEvent,
}

impl<T> EventSink<'_, T> {
    /// Sends one item.
    pub fn push(&mut self, item: T) {
        // Fails only if the parent has exited, and then the kernel kills this process.
        let _ = self.parent.send(&(self.to_event)(item), &[]);
    }
}

impl<T> Extend<T> for EventSink<'_, T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}
