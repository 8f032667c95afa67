//! Prepares the shared files of a GPU before its tenants start: the folder, a token for each tenant, and a new claim.

use std::io;
use std::path::Path;

use anyhow::Context;
use sluice_wire::config::SidecarConfig;
use sluice_wire::secrets::{TOKEN_BYTES, random_hex, write_new};

use super::shared_gpu::SharedGpu;
use crate::runtime_dir::{LockedDir, RuntimeDir};

/// Random bytes of a claim's name: no two runs share one.
const CLAIM_NAME_BYTES: usize = 16;

/// Claims the GPU's folder and adds it to the configurations of its tenants, which are among `configs`.
///
/// # Errors
/// Another run has the GPU, or the folder cannot be written.
pub fn claim_gpu(
    runtime: &RuntimeDir,
    gpu: &SharedGpu,
    configs: &mut [SidecarConfig],
) -> anyhow::Result<LockedDir> {
    let folder = runtime.claim_gpu(&gpu.namespace, &gpu.name)?;
    let tokens = folder.path().join("peer_tokens");
    make_tokens(&tokens, gpu).with_context(|| tokens.display().to_string())?;
    let claim = random_hex::<CLAIM_NAME_BYTES>().context("/dev/urandom")?;
    for member in &gpu.gpu_tenants {
        let config = &mut configs[member.config_index];
        config.listen.peer_token_file = Some(tokens.clone());
        let own = config.gpu_ledger.as_mut().expect("a tenant of a shared GPU has a GPU ledger");
        (own.folder, own.claim) = (folder.path().to_owned(), claim.clone());
    }
    Ok(folder)
}

/// Creates a new secret for each tenant, bound to it. The file is readable by this user only.
fn make_tokens(path: &Path, gpu: &SharedGpu) -> io::Result<()> {
    let line = |index| Ok(format!("{} {}\n", random_hex::<TOKEN_BYTES>()?, gpu.title(index)));
    let lines: String = (0..gpu.gpu_tenants.len()).map(line).collect::<io::Result<_>>()?;
    write_new(path, &lines)
}
