//! Tests of the plan: values in, values out.

mod demand;
mod place;
mod place_random;
mod seat;
