//! The page as a viewer has it: over HTTP, and in a real browser.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod pages;
mod scenes;
mod served;
mod stream;
