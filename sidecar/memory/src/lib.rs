//! Host memory that stands for a device's: chunks are ranges of one sealed memfd, mapped behind constant addresses,
//! limited exactly as on a GPU, and filled by transfer threads from a host master copy (DESIGN 4).
//!
//! [`mapping`] and [`TurnFence`] are the engine's half and all that an engine uses; the rest is the sidecar's.

mod clock;
mod faults;
mod fence;
pub mod host;
pub mod mapping;
pub mod master;
pub mod neighbourhood;
pub mod pool;
pub mod quota;
mod region;
mod shrunk;
mod tier;
pub mod transfers;

pub use clock::since_boot;
pub use faults::Faults;
pub use fence::{FenceError, TurnFence};
pub use host::{AuditError, EnginePeer, HostError, HostMemory, HostOptions, KvCopied};
pub use mapping::{Mapping, MappingError, Range, RangeSizes};
pub use master::{Master, MasterCopy, MasterError, Slab};
pub use neighbourhood::{
    Identity, JoinError, LedgerError, Neighbourhood, OpenError, Peer, Seat, TurnLine, TurnOrder,
};
pub use pool::{Pool, PoolError};
pub use quota::{Alone, Quota, QuotaError};
pub use transfers::{Gate, Notify};
