//! Raises the limit of open files. A session or a container runtime allows a process 1,024 until it asks for more
//! (systemd's default, and containerd's since 2.1), and every connection is an open file.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sluice_wire::config::{EngineKind, SidecarConfig};

use super::listeners::connections;

/// Open files besides client connections: admin port, probes, peers, the engine, files.
const RESERVED_FILES: u64 = 512;

/// Raises the limit to the system's maximum, and warns if that is less than the tenant's limits require.
pub fn raise_nofile(config: &SidecarConfig) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, ?current, ?maximum, "could not raise the limit of open files");
    }
    let wanted = required_files(config.limits.max_streams, config.engine.kind);
    let allowed = getrlimit(Resource::Nofile).current;
    if allowed.is_some_and(|allowed| allowed < wanted) {
        tracing::warn!(
            allowed,
            wanted,
            "the limit of open files (RLIMIT_NOFILE) is low: connections of clients may fail"
        );
    }
}

/// Returns the number of open files that a tenant may need. Each client of a proxied engine also needs a connection to
/// that engine.
fn required_files(max_streams: u32, kind: EngineKind) -> u64 {
    let behind = match kind {
        EngineKind::Native => 0,
        EngineKind::Vllm => u64::from(max_streams),
    };
    connections(max_streams) as u64 + behind + RESERVED_FILES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxied_request_needs_two_connections() {
        assert_eq!(required_files(2000, EngineKind::Native), 2000 + 1024 + RESERVED_FILES);
        assert_eq!(required_files(2000, EngineKind::Vllm), 2 * 2000 + 1024 + RESERVED_FILES);
    }
}
