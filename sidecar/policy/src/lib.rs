//! The memory manager: every decision about device memory, as a pure function of events.
//!
//! This crate uses only `core`, `alloc` and `sluice-common`. It reads no clock, does no I/O, logs nothing and holds no
//! hash map: time is an argument, every quantity is an integer (nanoseconds, bytes, permille), and the same inputs give
//! the same decisions on every machine. Every [`action::Action`] stays pending until its [`event::Completion`] arrives,
//! so that a failing backend is ordinary input.
//!
//! The crate does not copy data, run steps or process text.
//!
//! [`memory_manager`] lists the calls that a scheduler makes. The example `external_scheduler` makes them.
//!
//! # Modules
//!
//! | group | modules |
//! |---|---|
//! | the calls of a scheduler, and of peers | `memory_manager`, `loan_negotiator` |
//! | state: chunks and weights | `chunk_table`, `chunks`, `weights`, `slots`, `sleep`, `transition`, `orders` |
//! | state: KV and loans | `kv`, `offload`, `loans`, `peers` |
//! | policies: what is reclaimed, in which order | `reclaim` |
//! | decisions about layers | `remap`, `revert`, `cost`, `step_model`, `closed_form` |
//! | decisions about KV and activations | `ellm`, `pie`, `placement_planner`, `whole_prompts` |
//! | decisions about time | `copy_priority`, `hang`, `token_deposit` |
//! | values of the interface | `action`, `event`, `reason`, `ids`, `geometry`, `params`, `tunables`, `config_error` |
//! | values inside | `sizes`, `layer_set`, `digest`, `ewma`, `linear_fit` |
//!
//! # Example
//!
//! ```
//! use sluice_policy::action::Work;
//! use sluice_policy::geometry::{ActivationCost, Geometry};
//! use sluice_policy::ids::Nanos;
//! use sluice_policy::memory_manager::MemoryManager;
//! use sluice_policy::params::Params;
//!
//! let geometry = Geometry {
//!     chunk_bytes: 64 << 10,
//!     capacity_chunks: 64,
//!     global_bytes: 64 << 10,
//!     slab_bytes: vec![256 << 10; 4],
//!     layer_block_bytes: 8 << 10,
//!     activation: ActivationCost::default(),
//!     staging_chunks: 1,
//! };
//! let params = Params { max_model_tokens: 128, guaranteed_kv_bytes: 1 << 20, ..Params::default() };
//! let mut manager = MemoryManager::new(params, geometry)?;
//! let mut actions = Vec::new();
//! manager.start(Nanos(0), &mut actions);
//! // Memory first; the rest follows when a backend has reported the end of this action.
//! assert!(matches!(actions[0].work, Work::Create(_)));
//! # Ok::<(), sluice_policy::config_error::ConfigError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod action;
pub mod chunk_table;
mod chunks;
pub mod closed_form;
pub mod config_error;
pub mod copy_priority;
pub mod cost;
pub mod digest;
pub mod ellm;
pub mod event;
pub mod ewma;
pub mod geometry;
pub mod hang;
pub mod ids;
pub mod kv;
pub mod layer_set;
pub mod linear_fit;
pub mod loan_negotiator;
mod loans;
pub mod memory_manager;
mod offload;
mod orders;
pub mod params;
pub mod peers;
pub mod pie;
pub mod placement_planner;
pub mod reason;
pub mod reclaim;
pub mod remap;
pub mod revert;
mod sizes;
mod sleep;
pub mod slots;
pub mod step_model;
pub mod token_deposit;
mod transition;
pub mod tunables;
pub mod weights;
mod whole_prompts;
