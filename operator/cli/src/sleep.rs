//! `sluice sleep` and `sluice wake`: a tenant of this machine releases its device memory, and takes it again.

use std::path::PathBuf;

use anyhow::Context;
use sluice_page::text::formatting::bytes;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;

use crate::admin::AdminClient;
use crate::cluster::parse_target;
use crate::print;
use crate::runtime_dir::RuntimeDir;

/// Advice for a tenant that does not run here.
const CLUSTER_HINT: &str = "`sleep` and `wake` work only for tenants of this machine; in a cluster, set \
                            spec.idle.hibernateAfterSeconds";

/// Which tenant, for both commands.
#[derive(Clone, Debug, clap::Args)]
pub struct TenantArgs {
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
    pub target: TenantArgs,
    /// What the tenant keeps in host memory: 1 = weights, and KV as far as `hostKv` has room; 2 = weights only.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub level: u8,
}

/// A tenant that runs on this machine.
struct LocalTenant {
    admin: AdminClient,
    /// NAMESPACE/NAME.
    title: String,
    record: SidecarRecord,
}

impl LocalTenant {
    fn find(target: &TenantArgs) -> anyhow::Result<LocalTenant> {
        let (namespace, name) = parse_target(&target.target)?;
        let folder = RuntimeDir::open(target.runtime_dir.as_deref())?;
        let (sidecar, _) = folder.find(namespace, name, CLUSTER_HINT)?;
        let record = sidecar.record.with_context(|| sidecar.title.clone())?;
        Ok(LocalTenant { admin: AdminClient::new()?, title: sidecar.title, record })
    }

    /// Returns the bytes of device memory that the tenant uses; `None` = the sidecar does not know, because it
    /// does not own the memory of its engine.
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
    let tenant = LocalTenant::find(&args.target)?;
    let before = tenant.used_bytes().await?;
    let title = &tenant.title;
    tenant
        .admin
        .sleep(&tenant.record, args.level)
        .await
        .with_context(|| format!("{title} could not be put to sleep"))?;
    let after = tenant.used_bytes().await?;
    match before.zip(after).map(|(before, after)| before.saturating_sub(after)) {
        Some(freed) if freed > 0 => print(format!("{title} is asleep: {} freed", bytes(freed))),
        _ => print(format!("{title} is asleep")),
    }
}

/// Wakes a tenant. Layers that it does not need yet may load after that.
///
/// # Errors
/// No such tenant runs here, its sidecar does not answer, or it refuses.
pub async fn wake(target: TenantArgs) -> anyhow::Result<()> {
    let tenant = LocalTenant::find(&target)?;
    let title = &tenant.title;
    tenant.admin.wake_up(&tenant.record).await.with_context(|| format!("{title} could not be woken"))?;
    print(format!("{title} is awake"))
}
