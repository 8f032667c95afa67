//! The project's own tool as its user meets it.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod gpu_pack;
mod scripts;
mod times;
