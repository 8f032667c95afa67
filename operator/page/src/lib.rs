//! What people see of tenants: the live page, and the words that `explain` and `top` share with it.
//!
//! A server reads states and gives them to a [`hub::Hub`]; [`serve`] sends viewers what is new. [`view`] makes of
//! states what the page shows, [`history`] keeps the last quarter of an hour.
//!
//! # Example
//!
//! ```
//! use sluice_page::text::explain::headline;
//! use sluice_wire::State;
//! use sluice_wire::state::Phase;
//!
//! let mut state = State { phase: Phase::Active, policy: "Oneiros".into(), ..State::default() };
//! (state.tenant.namespace, state.tenant.name, state.tenant.gpu) = ("default".into(), "chat".into(), "gpu-0".into());
//! let line = headline(&state, 60_000);
//! assert!(line.starts_with("default/chat on gpu-0 serves requests"), "{line}");
//! ```

pub mod history;
pub mod hub;
pub mod palette;
pub mod rates;
pub mod serve;
pub mod shortages;
pub mod text;
pub mod tracker;
pub mod view;
