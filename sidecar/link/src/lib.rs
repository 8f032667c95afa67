//! The link between sidecar and engine: both ends and the formats that they share.
//!
//! A Unix seqpacket socket carries commands and file descriptors ([`frame`], [`message`], [`socket`]). A shared
//! [`control`] page carries signals that are too frequent for messages. Sealed shared memory carries block tables and
//! token histories ([`tables`]). [`server`] is the sidecar's end, [`client`] the engine's. [`log_prefix`]
//! gives the log lines of both one format. [`hang`] and [`watch`] detect a hung process at the other end.
//!
//! An engine that schedules by itself has two links: one of its worker ([`server::worker`], [`client::worker`]) and one
//! of its scheduler ([`server::scheduler`], [`client::scheduler`]). The first message says which kind of engine connects.
//!
//! # Example
//!
//! ```
//! use sluice_link::control::ControlPage;
//! use sluice_link::vocabulary::{Generation, LayerId};
//!
//! let sidecar = ControlPage::create(2)?;
//! // The engine gets the descriptor over the socket.
//! let engine = ControlPage::open(sidecar.fd().try_clone_to_owned()?, 2)?;
//! sidecar.publish_ready(LayerId(1), Generation(3))?;
//! assert_eq!(engine.ready(LayerId(1))?, Generation(3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod activation;
pub mod client;
pub mod control;
pub mod error;
mod expected_replies;
pub mod frame;
pub mod fuzz;
pub mod hang;
pub mod log_prefix;
pub mod message;
mod message_counters;
pub mod model;
pub mod process_exit;
pub mod region;
pub mod server;
pub mod slab;
pub mod socket;
pub mod tables;
pub mod watch;

/// Types of the policy and the ports that messages contain, for an engine that depends on neither crate.
pub mod vocabulary {
    pub use sluice_policy::action::{Address, MapOp};
    pub use sluice_policy::geometry::{ActivationCost, BLOCK_TOKENS, StepShape};
    pub use sluice_policy::ids::{
        ActionId, ChunkId, Generation, KvChunkId, LayerBlockId, LayerId, RowId, StepId,
    };
    pub use sluice_ports::compute::{FailedSequence, SampleRequest, Sampled, SequenceFailure, StepDone};
    pub use sluice_ports::sampling::{Sampling, SharedSampling, TokenLogprobs};
}
