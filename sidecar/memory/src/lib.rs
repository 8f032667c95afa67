//! Device memory: chunks that are mapped at constant addresses, limited to the size of a GPU, and filled by transfer
//! threads from the host weights. [`DeviceMemory`] is one code over a [`backing::Backing`]: host memory that stands in
//! for a GPU, or CUDA.
//!
//! The engine uses only [`mapping`] and [`SliceFence`]; the sidecar uses the rest.
//!
//! # Example
//!
//! ```
//! use sluice_memory::{HostWeightsBuilder, Slab};
//! use sluice_policy::ids::LayerId;
//!
//! let mut weights = HostWeightsBuilder::new(4096, &[8192])?;
//! weights.slab_mut(Slab::Layer(LayerId(0))).fill(7);
//! // From here on no process writes them, and copies to the device begin.
//! let weights = weights.freeze()?;
//! assert_eq!(weights.slab(Slab::Layer(LayerId(0))).map(|slab| slab[0]), Some(7));
//! assert_eq!(weights.slab(Slab::Layer(LayerId(1))), None);
//! # Ok::<(), sluice_memory::HostWeightsError>(())
//! ```

pub mod backing;
mod clock;
pub mod cuda;
pub mod cuda_backing;
mod cuda_mapping;
mod device_memory;
mod faults;
mod fence;
pub mod gpu_ledger;
mod host_backing;
pub mod host_weights;
pub mod mapping;
pub mod numa;
pub mod pool;
mod pool_lane;
pub mod quota;
mod region;
mod tier;
pub mod transfers;
mod truncation_guard;

pub use clock::since_boot;
pub use cuda_backing::CudaBacking;
pub use cuda_mapping::CudaMapping;
pub use device_memory::{
    AuditError, DeviceMemory, EngineConnection, KvCopyStats, MemoryError, MemoryOptions,
};
pub use faults::Faults;
pub use fence::{FenceError, SliceFence};
pub use gpu_ledger::{
    GpuLedger, JoinError, LedgerError, LedgerIdentity, OpenError, ParticipantHandle, Peer, SliceOrder,
    SliceQueue,
};
pub use host_backing::HostBacking;
pub use host_weights::{HostWeights, HostWeightsBuilder, HostWeightsError, Slab};
pub use mapping::{Mapping, MappingError, Range, RangeSizes};
pub use pool::{ChunkPool, PoolError};
pub use quota::{Quota, QuotaError, UnsharedQuota};
pub use transfers::{LayerGate, Notify};
