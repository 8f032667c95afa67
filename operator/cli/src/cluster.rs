//! The tenants of a cluster: which cluster, what its API server says of a tenant, and what the operator's leader knows.
//!
//! The leader's read API listens on the loopback address of its pod alone. It is reached by forwarding a port there, as
//! `kubectl port-forward` does, so the right to do that is the right to read ([`LeaderClient`]).

#[cfg(feature = "cluster")]
mod client;
#[cfg(not(feature = "cluster"))]
mod disabled;
#[cfg(feature = "cluster")]
mod leader;
#[cfg(feature = "cluster")]
mod objects;

use std::path::PathBuf;

use anyhow::bail;
use sluice_types::ModelTenant;

#[cfg(feature = "cluster")]
pub use self::client::Cluster;
#[cfg(not(feature = "cluster"))]
pub use self::disabled::{Cluster, LeaderClient, find_tenant, list_objects};
#[cfg(feature = "cluster")]
pub use self::leader::LeaderClient;
#[cfg(feature = "cluster")]
pub use self::objects::{find_tenant, list_objects};

/// Which cluster, and where in it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Look into a cluster, not at processes of this machine. `kubectl sluice` always does, and each other
    /// option of a cluster implies it.
    #[arg(long)]
    pub cluster: bool,
    /// File that says where clusters are. Default: what kubectl takes, or inside a pod its own cluster.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of that file. Default: its current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace of the tenants. Default: that of the context.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Namespace of the operator. Default: sluice-system.
    #[arg(long, value_name = "NAME")]
    pub operator_namespace: Option<String>,
    /// Name of the Lease that the operator's leader holds. Default: sluice-operator.
    #[arg(long, value_name = "NAME")]
    pub operator_lease: Option<String>,
}

impl ClusterArgs {
    /// Whether a cluster is meant.
    pub fn is_cluster(&self) -> bool {
        let given = [&self.context, &self.namespace, &self.operator_namespace, &self.operator_lease];
        self.cluster || self.kubeconfig.is_some() || given.iter().any(|option| option.is_some())
    }
}

/// Which tenants are asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverviewScope {
    /// Those of a namespace; `None` = of all.
    pub namespace: Option<String>,
    /// Those that share a GPU with this one, which is among them; `None` = all.
    pub tenant: Option<String>,
}

/// A tenant and what happened to it.
#[derive(Clone, Debug)]
pub struct TenantWithEvents {
    /// The tenant.
    pub tenant: ModelTenant,
    /// What was told of it, oldest first; or why that cannot be read.
    pub events: Result<Vec<EventSummary>, String>,
}

/// An Event, as far as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSummary {
    /// When it was told last, seconds since the Unix epoch.
    pub at_unix_s: i64,
    /// Whether it warns.
    pub is_warning: bool,
    /// How often it was told.
    pub count: i32,
    /// Why, for programs.
    pub reason: String,
    /// What, for people.
    pub note: String,
}

/// Namespace and name in `NAME`, `NAMESPACE/NAME`, or `tenant/NAME` (also `modeltenant/` and `mt/`, as kubectl has them).
///
/// # Errors
/// No name.
pub fn parse_target(target: &str) -> anyhow::Result<(Option<&str>, &str)> {
    match target.split_once('/') {
        Some(("tenant" | "modeltenant" | "modeltenants" | "mt", name)) if !name.is_empty() => {
            Ok((None, name))
        }
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok((Some(namespace), name)),
        None if !target.is_empty() => Ok((None, target)),
        _ => bail!("`{target}` names no tenant; say NAME, NAMESPACE/NAME or tenant/NAME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_parsed_with_and_without_kind() {
        for target in ["chat", "tenant/chat", "modeltenant/chat", "mt/chat"] {
            assert_eq!(parse_target(target).unwrap(), (None, "chat"));
        }
        assert_eq!(parse_target("team/chat").unwrap(), (Some("team"), "chat"));
        for target in ["", "tenant/", "/chat", "team/"] {
            assert!(parse_target(target).unwrap_err().to_string().contains("names no tenant"), "{target}");
        }
    }
}
