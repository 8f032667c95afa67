//! `sluice explain`: why a tenant does not run, is slow, or has less memory than it could have.
//!
//! In a cluster it reads the ModelTenant and its Events, and the view of the operator's leader; without the leader
//! it prints a notice and explains the rest. For processes of this machine it queries their sidecar. The text is
//! built separately from its source: [`tenant_status`] from conditions, [`sluice_page::text`] from a sidecar's
//! state.

pub mod tenant_status;

use std::path::PathBuf;

use futures_util::future::join_all;
use sluice_page::text::{explain as state, hangs};
use sluice_wire::State;
use sluice_wire::state::TenantReport;

use crate::admin::AdminClient;
use crate::cluster::{ClusterArgs, LeaderClient, OverviewScope, find_tenant, parse_target};
use crate::runtime_dir::{RunningSidecar, RuntimeDir};
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
/// There is no such tenant, or no sidecar or operator can be asked about it.
pub async fn run(args: ExplainArgs) -> anyhow::Result<()> {
    let lines = if args.cluster.is_cluster() {
        explain_in_cluster(&args).await?
    } else {
        explain_local(&args).await?
    };
    for line in lines {
        // Text of other parties must not contain control sequences of the terminal.
        print(line.replace(char::is_control, " ").trim_end())?;
    }
    Ok(())
}

async fn explain_in_cluster(args: &ExplainArgs) -> anyhow::Result<Vec<String>> {
    let (namespace, name) = parse_target(&args.target)?;
    let mut cluster = args.cluster.connect().await?;
    if let Some(namespace) = namespace {
        namespace.clone_into(&mut cluster.namespace);
    }
    let found = find_tenant(&cluster, name).await?;
    let now = now_unix_ms();
    let mut lines = tenant_status::summary(&found.tenant, now);
    let namespace = cluster.namespace.clone();
    let scope = OverviewScope { namespace: Some(namespace.clone()), tenant: Some(name.to_owned()) };
    match LeaderClient::new(cluster).overview(&scope).await {
        Ok(overview) => {
            let slot_text =
                overview.gpus.iter().flat_map(|gpu| slot_lines(&gpu.tenants, &namespace, name, now));
            lines.extend(slot_text);
        }
        Err(error) => {
            lines.extend([String::new(), format!("The states of its sidecars could not be read: {error:#}.")])
        }
    }
    lines.extend(tenant_status::event_lines(&found.events, now));
    Ok(lines)
}

fn is_tenant(report: &TenantReport, namespace: &str, name: &str) -> bool {
    match report {
        TenantReport::State(state) => state.tenant.namespace == namespace && state.tenant.name == name,
        TenantReport::Unreachable { namespace: its, name: own, .. } => its == namespace && own == name,
    }
}

/// Returns the report of a tenant's slot on a GPU, and the observations of its peers there; empty without a slot.
fn slot_lines(tenants: &[TenantReport], namespace: &str, name: &str, now_unix_ms: u64) -> Vec<String> {
    let (own, others): (Vec<_>, Vec<_>) =
        tenants.iter().partition(|report| is_tenant(report, namespace, name));
    let states = others.iter().filter_map(|report| match report {
        TenantReport::State(state) => Some(&**state),
        TenantReport::Unreachable { .. } => None,
    });
    let witnesses = peer_observations(states, &format!("{namespace}/{name}"), now_unix_ms);
    own.into_iter().flat_map(|report| report_lines(report, &witnesses, now_unix_ms)).collect()
}

fn report_lines(report: &TenantReport, witnesses: &[String], now_unix_ms: u64) -> Vec<String> {
    let mut lines = vec![String::new()];
    match report {
        TenantReport::State(state) => lines.extend(state::explain(state, now_unix_ms)),
        TenantReport::Unreachable { reason, .. } => {
            lines.push(format!("A sidecar does not answer: {reason}."))
        }
    }
    lines.extend_from_slice(witnesses);
    lines
}

/// Returns the peers' observations of the tenant `title`, NAMESPACE/NAME, as holder of the time slice, and of their
/// own hung engines.
fn peer_observations<'a>(
    peers: impl Iterator<Item = &'a State>,
    title: &str,
    now_unix_ms: u64,
) -> Vec<String> {
    peers
        .flat_map(|state| {
            [hangs::peer_account(state, title, now_unix_ms), hangs::hung_peer_text(state, now_unix_ms)]
        })
        .flatten()
        .map(|said| format!("  {said}."))
        .collect()
}

async fn explain_local(args: &ExplainArgs) -> anyhow::Result<Vec<String>> {
    let (namespace, name) = parse_target(&args.target)?;
    let folder = RuntimeDir::open(args.runtime_dir.as_deref())?;
    let (sidecar, others) =
        folder.find(namespace, name, "in a cluster: kubectl sluice explain, or --cluster")?;
    let (admin, title, record) = (AdminClient::new()?, sidecar.title, sidecar.record?);
    let (own, peers) = tokio::join!(admin.state(&record), states(&admin, others, &record.gpu));
    let now = now_unix_ms();
    let witnesses = peer_observations(peers.iter(), &title, now);
    let mut lines = match own {
        Ok(state) => state::explain(&state, now),
        Err(error) if witnesses.is_empty() => return Err(error),
        Err(error) => vec![format!("{title} does not answer: {error:#}.")],
    };
    lines.extend(witnesses);
    Ok(lines)
}

/// Reads the states of the sidecars on a GPU that answer.
async fn states(admin: &AdminClient, sidecars: Vec<RunningSidecar>, gpu: &str) -> Vec<State> {
    let records = sidecars.into_iter().filter_map(|sidecar| sidecar.record.ok());
    let on_gpu: Vec<_> = records.filter(|record| record.gpu == gpu).collect();
    let states = join_all(on_gpu.iter().map(|record| admin.state(record))).await;
    states.into_iter().filter_map(Result::ok).collect()
}

#[cfg(test)]
mod tests {
    use sluice_wire::state::{SharingState, Takeover, Tenant, TenantReport, TimeSliceState};

    use super::{State, slot_lines};

    const NOW: u64 = 1_700_000_100_000;

    #[test]
    fn peers_explain_unreachable_sidecar_in_cluster() {
        let silent = |name: &str| TenantReport::Unreachable {
            namespace: "team".into(),
            name: name.into(),
            reason: "late".into(),
        };
        let taken = Takeover { from: "team/code".into(), at_unix_ms: NOW - 30_000, overdue_ms: 260 };
        let time_slice = Some(TimeSliceState { last_takeover: Some(taken), ..TimeSliceState::default() });
        let tenant = Tenant { namespace: "team".into(), name: "chat".into(), ..Tenant::default() };
        let peers = Some(SharingState { time_slice, ..SharingState::default() });
        let chat = TenantReport::State(Box::new(State { tenant, peers, ..State::default() }));
        let tenants = [silent("code"), chat, silent("mail")];
        let lines_of = |name: &str| slot_lines(&tenants, "team", name, NOW);
        let taken = "  team/chat took over the time slice of team/code 30s ago, 260 ms past its deadline.";
        assert_eq!(lines_of("code"), ["", "A sidecar does not answer: late.", taken]);
        assert_eq!(lines_of("mail"), ["", "A sidecar does not answer: late."]);
        assert!(slot_lines(&tenants, "team", "elsewhere", NOW).is_empty());
    }
}
