//! What both links share: time limits of calls, and the text of the last message.

use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::time::{Duration, Instant};

use sluice_link::error::LinkError;

use crate::failure::Failure;

/// How long to wait before another try to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A time as good as none that can be added to the clock.
const NO_LIMIT: Duration = Duration::from_secs(1 << 32);

/// When a call gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// `None` = never.
    end: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline of a call that may take `timeout_ms` milliseconds; below zero: any time.
    pub(crate) fn after(timeout_ms: i64) -> Deadline {
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        // A time beyond the clock's range is as good as none.
        Deadline { end: limit.and_then(|limit| Instant::now().checked_add(limit)) }
    }

    /// Returns the time that is left; `None` = any time.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether no time is left.
    pub(crate) fn has_passed(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Connects, and tries again while no process listens.
    pub(crate) fn connect<T>(
        &self,
        mut connect: impl FnMut(Duration) -> Result<T, LinkError>,
    ) -> Result<T, Failure> {
        loop {
            match connect(self.left().unwrap_or(NO_LIMIT)) {
                Err(LinkError::Path { source, .. })
                    if matches!(source.kind(), NotFound | ConnectionRefused) && !self.has_passed() => {}
                result => return Ok(result?),
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

/// The receiving half of a link, and the text of the last message that the caller has received.
#[derive(Debug)]
pub(crate) struct Inbox<R> {
    pub(crate) receiver: R,
    text: String,
}

impl<R> Inbox<R> {
    pub(crate) fn new(receiver: R) -> Inbox<R> {
        Inbox { receiver, text: String::new() }
    }

    /// Keeps a text until the next one, and returns its place.
    pub(crate) fn keep(&mut self, text: String) -> (*const u8, usize) {
        self.text = text;
        (self.text.as_ptr(), self.text.len())
    }
}
