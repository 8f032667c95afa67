//! [`MappingError`].

use sluice_policy::action::Address;
use sluice_policy::ids::ChunkId;

use crate::cuda;

/// Why a mapping operation failed.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// A chunk must be a positive multiple of the page.
    #[error(
        "chunks of {chunk_bytes} bytes are not a positive multiple of the page size of {page_bytes} bytes"
    )]
    ChunkSize {
        /// Requested size, bytes.
        chunk_bytes: u64,
        /// Page size of the machine, bytes.
        page_bytes: u64,
    },
    /// The ranges together exceed the address space.
    #[error("ranges of {chunks} chunks of {chunk_bytes} bytes do not fit the address space")]
    TooLarge {
        /// All chunks including guards.
        chunks: u64,
        /// Size of a chunk, bytes.
        chunk_bytes: u64,
    },
    /// The ranges contain no such address.
    #[error("{address:?} is outside the reserved address ranges")]
    OutOfRange {
        /// The address.
        address: Address,
    },
    /// A chunk already backs the address.
    #[error("cannot map {chunk:?} at {address:?}: {found:?} is mapped there")]
    Occupied {
        /// The address.
        address: Address,
        /// The chunk to be mapped.
        chunk: ChunkId,
        /// The chunk that is mapped.
        found: ChunkId,
    },
    /// The chunk to be unmapped does not back the address.
    #[error("cannot unmap {chunk:?} at {address:?}: {found:?} is mapped there")]
    NotMapped {
        /// The address.
        address: Address,
        /// The chunk to be unmapped.
        chunk: ChunkId,
        /// The chunk that is mapped, if any.
        found: Option<ChunkId>,
    },
    /// The chunk exceeds the pool's file: an access would raise SIGBUS.
    #[error("{chunk:?} is outside the pool of {pool_bytes} bytes")]
    BeyondPool {
        /// The chunk.
        chunk: ChunkId,
        /// Size of the file, bytes.
        pool_bytes: u64,
    },
    /// The chunk was not imported from the sidecar.
    #[error("{chunk:?} was not imported")]
    NotImported {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The chunk was already imported.
    #[error("{chunk:?} was already imported")]
    Imported {
        /// The chunk.
        chunk: ChunkId,
    },
    /// The chunk is mapped, so it cannot be released.
    #[error("{chunk:?} is mapped at {addresses} addresses")]
    Mapped {
        /// The chunk.
        chunk: ChunkId,
        /// Number of addresses that it backs.
        addresses: u32,
    },
    /// The CUDA driver refused a call.
    #[error(transparent)]
    Cuda(#[from] cuda::Error),
    /// A transaction failed in the middle and could not be rolled back. Only this table knows which chunk
    /// backs which address, and the process must exit before it accesses a range.
    #[error("refused after some changes ({refused}), and these changes could not be undone")]
    RollbackFailed {
        /// Why the transaction failed.
        refused: Box<MappingError>,
        /// Why the rollback failed.
        #[source]
        stuck: Box<MappingError>,
    },
    /// A system call failed.
    #[error("{call} failed")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Its error.
        #[source]
        source: rustix::io::Errno,
    },
}
