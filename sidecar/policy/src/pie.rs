//! Pie: moves the KV of all requests layer by layer between device and host, so that each layer's KV may be larger than
//! if all layers had to fit on the device.
//!
//! [`expansion`] controls how many layers may be offloaded. The simulator has the paper's swapping and the closed forms
//! of what it can reach.
//!
//! Source: Pie 3.2 to 3.4.

pub mod expansion;
