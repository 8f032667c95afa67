//! Pie: moves the KV of all requests layer by layer between device and host, so that each layer's KV may be larger than
//! if all layers had to fit on the device.
//!
//! [`mapping`] records where each layer's KV is, [`swapping`] chooses what moves next, [`expansion`] controls how many
//! layers may be offloaded; [`crate::closed_form::pie`] computes the best they can reach.
//!
//! Source: Pie 3.2 to 3.4.

pub mod expansion;
pub mod mapping;
pub mod swapping;
