//! How long the history reaches back.

/// How far back it goes, milliseconds.
pub const SPAN_MS: u64 = 900_000;
