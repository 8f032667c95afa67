//! The project's own tool as its user meets it.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod scripts;
mod times;
