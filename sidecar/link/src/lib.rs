//! The link between sidecar and engine: both ends of it, and the few shapes both sides must agree on.
//!
//! A Unix seqpacket socket carries commands and file descriptors ([`frame`], [`message`], [`socket`]), a shared
//! [`control`] page carries what is too fast for messages, and sealed shared memory carries block tables and token
//! histories ([`tables`]) (DESIGN 5). [`server`] is the sidecar's end, [`client`] the engine's. What both log looks alike
//! ([`lines`]). [`hang`] and [`watch`] say when the process at the other end hangs.

pub mod activation;
pub mod client;
pub mod control;
pub mod error;
mod expected_replies;
pub mod frame;
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

/// The words of policy and ports that messages are made of, for an engine that may depend on neither crate.
pub mod vocabulary {
    pub use sluice_policy::action::{Address, Reback};
    pub use sluice_policy::geometry::{ActivationCost, BLOCK_TOKENS, StepShape};
    pub use sluice_policy::ids::{ActionId, BlockId, ChunkId, FrameId, Generation, LayerId, RowId, StepId};
    pub use sluice_ports::compute::{FailedSequence, SampleRequest, Sampled, SequenceFailure, StepDone};
    pub use sluice_ports::sampling::{Sampling, SharedSampling, TokenLogprobs};
}
