//! Tests of the kinds: their CRDs, the strict loader, the rules, the shipped examples.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod bad_files;
mod cel;
mod corpus;
mod crd;
mod examples;
mod good_files;
mod mistakes;
mod validation;
