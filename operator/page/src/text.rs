//! What `explain`, `top` and the page say of a tenant, in one set of words.

pub mod explain;
pub mod formatting;
pub mod hangs;
pub mod missed_tokens;
pub mod reason;
