//! Open files that a sidecar may need, and the limit of the kernel (RLIMIT_NOFILE). A session or a container runtime
//! allows a process 1,024 until it asks for more (systemd's default, and containerd's since 2.1). Every connection is an
//! open file, and so is each chunk of a CUDA device from its creation until the engine has it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_wire::config::{EngineKind, SidecarConfig};

/// Open files besides clients and chunks: admin port, probes, peers, the engine, the driver's devices, files.
const RESERVED_FILES: u64 = 512;

/// Raises the limit to the system's maximum, and warns if that is less than the clients of the tenant require.
pub fn raise_limit(config: &SidecarConfig) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, ?maximum, "could not raise the limit of open files");
    }
    if let Err(error) = FileDemand::new(config).check(limit()) {
        tracing::warn!("connections of clients may fail: {error}");
    }
}

/// Returns the limit of this process. `None` = no limit.
pub fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Returns the maximum number of client connections. It leaves some for clients that are refused because there are too
/// many requests.
pub fn max_connections(max_streams: u32) -> usize {
    max_streams as usize + 1024
}

/// What needs open files.
#[derive(Clone, Copy, Debug)]
pub struct FileDemand {
    max_streams: u32,
    engine: EngineKind,
    chunks: u32,
}

/// More open files are needed than the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{max_streams} streams and {chunks} chunks need {wanted} open files, and RLIMIT_NOFILE allows {allowed}; raise the \
     hard limit: ulimit -Hn {wanted}"
)]
pub struct TooFewFiles {
    max_streams: u32,
    chunks: u32,
    wanted: u64,
    allowed: u64,
}

impl FileDemand {
    /// The demand of a tenant, without chunks of a CUDA device.
    pub fn new(config: &SidecarConfig) -> Self {
        FileDemand { max_streams: config.limits.max_streams, engine: config.engine.kind, chunks: 0 }
    }

    /// The same, with the chunks of a CUDA device.
    pub fn with_chunks(self, chunks: u32) -> Self {
        FileDemand { chunks, ..self }
    }

    /// Checks that all can be open under `limit`.
    ///
    /// # Errors
    /// They cannot.
    pub fn check(self, limit: Option<u64>) -> Result<(), TooFewFiles> {
        let FileDemand { max_streams, chunks, .. } = self;
        let wanted = self.files();
        match limit {
            Some(allowed) if allowed < wanted => Err(TooFewFiles { max_streams, chunks, wanted, allowed }),
            _ => Ok(()),
        }
    }

    /// Each client of a proxied engine also needs a connection to that engine.
    fn files(self) -> u64 {
        let behind = match self.engine {
            EngineKind::Native => 0,
            EngineKind::Vllm => u64::from(self.max_streams),
        };
        max_connections(self.max_streams) as u64 + behind + u64::from(self.chunks) + RESERVED_FILES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(engine: EngineKind) -> FileDemand {
        FileDemand { max_streams: 2000, engine, chunks: 0 }
    }

    #[test]
    fn proxied_request_needs_two_connections() {
        assert_eq!(demand(EngineKind::Native).files(), 2000 + 1024 + RESERVED_FILES);
        assert_eq!(demand(EngineKind::Vllm).files(), 2 * 2000 + 1024 + RESERVED_FILES);
    }

    #[test]
    fn device_of_more_chunks_than_open_files_is_refused() {
        // 139.8 GiB of an H200 in chunks of 2 MiB.
        let demand = demand(EngineKind::Native).with_chunks(71_577);
        let error = demand.check(Some(65_536)).unwrap_err().to_string();
        assert!(error.starts_with("2000 streams and 71577 chunks need 75113 open files"), "{error}");
        assert!(error.ends_with("ulimit -Hn 75113"), "{error}");
        assert!(demand.check(Some(75_112)).is_err());
        assert_eq!(demand.check(Some(75_113)), Ok(()));
        assert_eq!(demand.check(None), Ok(()));
    }
}
