//! What instructions do to lanes, apart from those that are closures in [`crate::decode`].

pub(crate) mod access;
pub(crate) mod atomics;
pub(crate) mod collective;
pub(crate) mod copies;
pub(crate) mod matrix;
pub(crate) mod moves;
