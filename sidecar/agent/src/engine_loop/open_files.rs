//! Checks that the kernel allows as many open files as the chunks of a CUDA device need: each has a descriptor from its
//! creation until the engine has it.

use rustix::process::{Resource, getrlimit};

use super::load::error::LoadError;

/// Open files besides chunks: connections, admin port, the engine, the driver's devices.
const BASE_FILES: u64 = 512;

/// Returns the limit of this process. `None` = no limit.
pub fn process_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Rejects a device whose chunks cannot all be open files.
///
/// # Errors
/// The message names the need and the fixes.
pub fn check(chunks: u32, limit: Option<u64>) -> Result<(), LoadError> {
    let wanted = u64::from(chunks) + BASE_FILES;
    match limit {
        Some(limit) if limit < wanted => {
            let problem = format!(
                "{chunks} chunks need {wanted} open files, and RLIMIT_NOFILE allows {limit}; use larger chunks, or \
                 raise the hard limit: ulimit -Hn {wanted}"
            );
            Err(LoadError::Config { field: "gpu.chunk_bytes", problem })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_of_more_chunks_than_open_files_is_refused() {
        // 139.8 GiB of an H200 in chunks of 2 MiB.
        let error = check(71_577, Some(65_536)).unwrap_err().to_string();
        assert!(error.starts_with("gpu.chunk_bytes: 71577 chunks need 72089 open files"), "{error}");
        assert!(error.ends_with("ulimit -Hn 72089"), "{error}");
        assert!(check(71_577, Some(72_089)).is_ok());
        assert!(check(71_577, None).is_ok());
    }
}
