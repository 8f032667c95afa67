//! Objects in, objects out: what the operator decides, without a cluster.
//!
//! [`demand`] tells what a slot takes of a GPU and of its host, [`seat`] which slots a tenant has, [`place`] which GPU each
//! of them gets, [`objects`] what is applied for it, [`accept`] and [`status`] what is told. All of it is pure: the same
//! objects give the same plan, in whatever order they come.
//!
//! What it does not do: read from an API server, write to one, or look at a clock.
#![forbid(unsafe_code)]

pub mod accept;
mod dated;
pub mod demand;
pub mod direct;
pub mod epoch;
pub mod geometry;
pub mod gpu;
pub mod objects;
pub mod outage;
pub mod place;
pub mod report;
pub mod seat;
pub mod seen;
pub mod settings;
pub mod shares;
pub mod sizes;
pub mod status;
pub mod told;
pub mod unit;
pub mod written;
