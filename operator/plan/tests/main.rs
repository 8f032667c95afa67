//! Tests of the plan: values in, values out.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod admission;
mod dealt;
mod demand;
mod direct;
mod floor;
mod flows;
mod geometry;
mod hangs;
mod inspect;
mod memory;
mod objects;
mod place;
mod place_random;
mod seat;
mod status;
mod telling;
mod told;
mod unit;
mod volumes;
mod waiting;
mod world;
