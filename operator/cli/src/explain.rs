//! `sluice explain`: why a tenant does not run, is slow, or has less memory than it could have.
//!
//! In a cluster it reads the ModelTenant and its Events, and what the operator's leader knows; without the leader it says
//! so and explains from the rest. For processes of this machine it asks their sidecar. What is said is built as lines of
//! text, apart from where it was read: [`object`] from conditions, [`state`] from a sidecar's state.

pub mod object;
pub mod state;

use std::path::PathBuf;

use anyhow::bail;
use sluice_wire::State;
use sluice_wire::state::TenantReport;

use crate::admin::Admin;
use crate::cluster::{ClusterArgs, Leader, Scope, find, named};
use crate::runtime::RuntimeFolder;
use crate::{now_unix_ms, print};

/// Options of `sluice explain`.
#[derive(Clone, Debug, clap::Args)]
pub struct ExplainArgs {
    /// The tenant: NAME, NAMESPACE/NAME or tenant/NAME.
    pub target: String,
    /// Runtime folder instead of the user's own, for processes of this machine.
    #[arg(long, env = "SLUICE_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Where it is.
    #[command(flatten)]
    pub cluster: ClusterArgs,
}

/// Prints the explanation.
///
/// # Errors
/// There is no such tenant, or nobody can be asked about it.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let lines = if args.cluster.meant() { in_cluster(&args).await? } else { here(&args).await? };
    for line in lines {
        // What others wrote must not steer the terminal.
        print(line.replace(char::is_control, " ").trim_end())?;
    }
    Ok(())
}

async fn in_cluster(args: &ExplainArgs) -> anyhow::Result<Vec<String>> {
    let (namespace, name) = named(&args.target)?;
    let mut cluster = args.cluster.connect().await?;
    if let Some(namespace) = namespace {
        namespace.clone_into(&mut cluster.namespace);
    }
    let found = find(&cluster, name).await?;
    let now = now_unix_ms();
    let mut lines = object::summary(&found.tenant, now);
    let namespace = cluster.namespace.clone();
    let scope = Scope { namespace: Some(namespace.clone()), tenant: Some(name.to_owned()) };
    match Leader::of(cluster).overview(&scope).await {
        Ok(overview) => {
            let reports = overview.gpus.into_iter().flat_map(|gpu| gpu.tenants);
            let own = reports.filter(|report| is(report, &namespace, name));
            lines.extend(own.flat_map(|report| reported(&report, now)));
        }
        Err(error) => lines.extend([String::new(), format!("Its sidecars cannot be seen: {error:#}.")]),
    }
    lines.extend(object::events(&found.events, now));
    Ok(lines)
}

fn is(report: &TenantReport, namespace: &str, name: &str) -> bool {
    match report {
        TenantReport::State(state) => state.tenant.namespace == namespace && state.tenant.name == name,
        TenantReport::Unreachable { namespace: its, name: own, .. } => its == namespace && own == name,
    }
}

fn reported(report: &TenantReport, now_unix_ms: u64) -> Vec<String> {
    let mut lines = vec![String::new()];
    match report {
        TenantReport::State(state) => lines.extend(state::explain(state, now_unix_ms)),
        TenantReport::Unreachable { reason, .. } => {
            lines.push(format!("A sidecar does not answer: {reason}."))
        }
    }
    lines
}

async fn here(args: &ExplainArgs) -> anyhow::Result<Vec<String>> {
    let (namespace, name) = named(&args.target)?;
    let running = RuntimeFolder::open(args.runtime_dir.as_deref())?.running()?;
    let known: Vec<_> = running.iter().map(|sidecar| sidecar.title.clone()).collect();
    let found = running.into_iter().find(|sidecar| is_titled(&sidecar.title, namespace, name));
    let Some(sidecar) = found else {
        let known =
            if known.is_empty() { "none runs".to_owned() } else { format!("these do: {}", known.join(", ")) };
        bail!(
            "no tenant `{name}` runs on this machine ({known}); in a cluster: kubectl sluice explain, or --cluster"
        );
    };
    let state: State = Admin::new()?.state(&sidecar.record?).await?;
    Ok(state::explain(&state, now_unix_ms()))
}

/// Whether `title`, NAMESPACE/NAME, is that of the tenant; of the first of that name where no namespace is given.
fn is_titled(title: &str, namespace: Option<&str>, name: &str) -> bool {
    let own = title.split_once('/');
    own.is_some_and(|(its, own)| own == name && namespace.is_none_or(|namespace| namespace == its))
}

#[cfg(test)]
mod tests {
    use super::is_titled;

    #[test]
    fn a_tenant_is_named_with_or_without_its_namespace() {
        assert!(
            is_titled("default/chat", None, "chat") && is_titled("default/chat", Some("default"), "chat")
        );
        assert!(!is_titled("default/chat", Some("other"), "chat") && !is_titled("default/chat", None, "cha"));
    }
}
