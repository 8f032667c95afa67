//! Pie: the KV of all requests moves layer by layer between device and host, so that each layer may be larger than the device
//! would hold of all.
//!
//! [`mapping`] says where each layer's KV is, [`swapping`] what moves next, [`expansion`] how many layers may be away;
//! [`crate::closed_form::pie`] has what they reach at best.
//!
//! Source: Pie 3.2 to 3.4.

pub mod expansion;
pub mod mapping;
pub mod swapping;
