//! What computes in tests: the host, or a GPU in the processes that [`crate::gpu`] starts. The same tests run on both.

/// Set in processes whose tenants have a GPU.
pub const GPU_VAR: &str = "SLUICE_TEST_TENANT_GPU";

/// Bytes of a chunk of the host in these tests.
pub const HOST_CHUNK: u64 = 64 << 10;

/// Bytes of a chunk of the GPU: small, so that the models of these tests have many, and not so small that the stand-in
/// takes seconds to create them. Its granularity is the same.
pub const GPU_CHUNK: u64 = 128 << 10;

/// Memory that each engine on a GPU has for cuBLASLt, bytes.
const WORKSPACE: u64 = 32 << 20;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    Host,
    Gpu,
}

impl Machine {
    /// Returns that of this process.
    pub fn current() -> Machine {
        if std::env::var_os(GPU_VAR).is_some() { Machine::Gpu } else { Machine::Host }
    }

    /// Returns the size of a chunk, bytes.
    pub fn chunk_bytes(self) -> u64 {
        self.choose(HOST_CHUNK, GPU_CHUNK)
    }

    /// Returns the device memory for which a tenant of the host has `bytes`, which are more than it needs. A GPU gets no
    /// more than 16 MiB of it, because a chunk of the stand-in is a file.
    pub fn ample_bytes(self, bytes: u64) -> u64 {
        self.choose(bytes, bytes.min(16 << 20) + WORKSPACE)
    }

    /// Returns the value for this machine. The interpreter takes some 50 ms for a step of one token, so that a GPU gets
    /// fewer requests and tokens than the host.
    pub fn choose<T>(self, host: T, gpu: T) -> T {
        match self {
            Machine::Host => host,
            Machine::Gpu => gpu,
        }
    }
}
