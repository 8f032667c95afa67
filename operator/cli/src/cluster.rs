//! The tenants of a cluster: options that select it, and data from its API server and from the operator's leader.
//!
//! The leader's read API listens only on the loopback address of its pod. [`LeaderClient`] reaches it through a
//! forwarded port, as `kubectl port-forward` does, so the permission to forward ports is the permission to read.

#[cfg(feature = "cluster")]
mod client;
#[cfg(not(feature = "cluster"))]
mod disabled;
#[cfg(feature = "cluster")]
mod leader;
#[cfg(feature = "cluster")]
mod objects;

use std::borrow::Borrow;
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
    /// Use a cluster instead of the processes of this machine. `kubectl sluice` always does, and each other option of a
    /// cluster implies it.
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
    /// Whether the options select a cluster.
    pub fn is_cluster(&self) -> bool {
        let given = [&self.context, &self.namespace, &self.operator_namespace, &self.operator_lease];
        self.cluster || self.kubeconfig.is_some() || given.iter().any(|option| option.is_some())
    }
}

/// Selects the tenants of an overview.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OverviewScope {
    /// Namespace of the tenants; `None` = all namespaces.
    pub namespace: Option<String>,
    /// Only tenants that share a GPU with this one, including itself; `None` = all.
    pub tenant: Option<String>,
}

/// A tenant and its Events.
#[derive(Clone, Debug)]
pub struct TenantWithEvents {
    /// The tenant.
    pub tenant: ModelTenant,
    /// Its events, oldest first; or why they cannot be read.
    pub events: Result<Vec<EventSummary>, String>,
}

/// The fields of an Event that are shown to users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSummary {
    /// Time of the last occurrence, seconds since the Unix epoch.
    pub at_unix_s: i64,
    /// Whether it is a warning.
    pub is_warning: bool,
    /// Number of occurrences.
    pub count: i32,
    /// Machine-readable reason.
    pub reason: String,
    /// Message.
    pub note: String,
}

/// Parses `NAME`, `NAMESPACE/NAME` or `tenant/NAME` (also `modeltenant/` and `mt/`, as in kubectl) into
/// namespace and
/// name.
///
/// # Errors
/// The name is empty.
pub fn parse_target(target: &str) -> anyhow::Result<(Option<&str>, &str)> {
    match target.split_once('/') {
        Some(("tenant" | "modeltenant" | "modeltenants" | "mt", name)) if !name.is_empty() => {
            Ok((None, name))
        }
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok((Some(namespace), name)),
        None if !target.is_empty() => Ok((None, target)),
        _ => bail!("`{target}` is not the name of a tenant; write NAME, NAMESPACE/NAME or tenant/NAME"),
    }
}

/// Whether a tenant, by its namespace and name, has the `name` that a user wrote. Without a namespace only names are
/// compared.
pub fn is_named((its, own): (&str, &str), namespace: Option<&str>, name: &str) -> bool {
    own == name && namespace.is_none_or(|namespace| namespace == its)
}

/// Refuses a name that several tenants have, each given as NAMESPACE/NAME.
pub fn ambiguous_name(name: &str, titles: &[impl Borrow<str>]) -> String {
    format!("several tenants have the name `{name}`: name one of {}", titles.join(", "))
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
            assert!(
                parse_target(target).unwrap_err().to_string().contains("is not the name of a tenant"),
                "{target}"
            );
        }
    }
}
