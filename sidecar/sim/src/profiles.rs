//! Published machines and models, and the cost of a step on them.

pub mod cost;
pub mod hardware;
pub mod measured;
pub mod model;
