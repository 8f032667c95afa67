//! The other sidecars of the GPU: asking them, and what they ask.

pub mod call;
pub mod client;
pub mod desk;
pub mod office;
pub mod place;
pub mod quota;
pub mod shell;
pub mod turns;
pub mod watch;
