//! The names of the tenants.

/// The tenants, in the order in which `sluice top` shows them.
pub const TENANTS: [&str; 3] = ["chat", "code", "summary"];
