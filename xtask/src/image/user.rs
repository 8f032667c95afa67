//! The user that images run as.

/// User in an image if the pod does not set one.
pub const USER: u32 = 65_532;
