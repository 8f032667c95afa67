//! Machines and models as published: what a step costs on them.

pub mod cost;
pub mod hardware;
pub mod model;
