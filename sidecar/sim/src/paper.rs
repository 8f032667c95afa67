//! What the papers describe and no sidecar runs: the experiments and the tests compare it with the production code.

pub mod ellm;
pub mod pie;
