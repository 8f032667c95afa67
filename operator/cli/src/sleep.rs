//! `sluice sleep` and `sluice wake`: a tenant of this machine gives up its device memory, and takes it back.

use std::path::PathBuf;

use anyhow::Context;
use sluice_page::words::figures::bytes;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;

use crate::admin::Admin;
use crate::cluster::named;
use crate::print;
use crate::runtime::RuntimeFolder;

/// Said of a tenant that does not run here.
const ELSEWHERE: &str = "in a cluster a tenant sleeps by spec.idle.hibernateAfterSeconds";

/// Which tenant, for both commands.
#[derive(Clone, Debug, clap::Args)]
pub struct Target {
    /// The tenant: NAME, NAMESPACE/NAME or tenant/NAME.
    pub target: String,
    /// Runtime folder instead of the user's own.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
}

/// Options of `sluice sleep`.
#[derive(Clone, Debug, clap::Args)]
pub struct SleepArgs {
    /// Which tenant.
    #[command(flatten)]
    pub target: Target,
    /// What the tenant keeps in host memory: 1 = weights, and KV as far as `hostKv` has room; 2 = weights only.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub level: u8,
}

/// A tenant that runs on this machine.
struct Running {
    admin: Admin,
    /// NAMESPACE/NAME.
    title: String,
    record: SidecarRecord,
}

impl Running {
    fn find(target: &Target) -> anyhow::Result<Running> {
        let (namespace, name) = named(&target.target)?;
        let folder = RuntimeFolder::open(target.runtime_dir.as_deref())?;
        let (sidecar, _) = folder.find(namespace, name, ELSEWHERE)?;
        let record = sidecar.record.with_context(|| sidecar.title.clone())?;
        Ok(Running { admin: Admin::new()?, title: sidecar.title, record })
    }

    /// Bytes of device memory that something of the tenant lies in; `None` = the sidecar does not know, since it does not
    /// own the memory of its engine.
    async fn used_bytes(&self) -> anyhow::Result<Option<u64>> {
        let state = self.admin.state(&self.record).await.with_context(|| self.title.clone())?;
        Ok(used_bytes(&state))
    }
}

fn used_bytes(state: &State) -> Option<u64> {
    let owners = &state.memory.owners;
    let unused = owners.free_bytes.checked_add(owners.earmarked_bytes)?;
    let total = owners.total().filter(|_| state.memory.capacity_bytes > 0)?;
    total.checked_sub(unused)
}

/// Puts a tenant to sleep and prints how much memory that freed.
///
/// # Errors
/// No such tenant runs here, its sidecar does not answer, or it refuses.
pub async fn sleep(args: SleepArgs) -> anyhow::Result<()> {
    let tenant = Running::find(&args.target)?;
    let before = tenant.used_bytes().await?;
    let title = &tenant.title;
    tenant
        .admin
        .sleep(&tenant.record, args.level)
        .await
        .with_context(|| format!("{title} does not sleep"))?;
    let after = tenant.used_bytes().await?;
    match before.zip(after).map(|(before, after)| before.saturating_sub(after)) {
        Some(freed) if freed > 0 => print(format!("{title} is asleep: {} freed", bytes(freed))),
        _ => print(format!("{title} is asleep")),
    }
}

/// Wakes a tenant. Layers that it does not need yet may come after that.
///
/// # Errors
/// No such tenant runs here, its sidecar does not answer, or it refuses.
pub async fn wake(target: Target) -> anyhow::Result<()> {
    let tenant = Running::find(&target)?;
    let title = &tenant.title;
    tenant.admin.wake_up(&tenant.record).await.with_context(|| format!("{title} does not wake"))?;
    print(format!("{title} is awake"))
}
