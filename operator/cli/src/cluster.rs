//! The tenants of a cluster: which cluster, what its API server says of a tenant, and what the operator's leader knows.
//!
//! The leader's read API listens on the loopback address of its pod alone. It is reached by forwarding a port there, as
//! `kubectl port-forward` does, so the right to do that is the right to read ([`Leader`]).

mod leader;
mod objects;

use std::path::PathBuf;

use anyhow::{Context, bail};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub use self::leader::{Leader, Scope};
pub use self::objects::{Found, Happened, find};

/// Which cluster, and where in it.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// Look into a cluster, not at processes of this machine. `kubectl sluice` always does, and so does whoever gives
    /// another of these options.
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

const DEFAULT_OPERATOR_NAMESPACE: &str = "sluice-system";
const DEFAULT_LEASE: &str = "sluice-operator";

impl ClusterArgs {
    /// Whether a cluster is meant.
    pub fn meant(&self) -> bool {
        let given = [&self.context, &self.namespace, &self.operator_namespace, &self.operator_lease];
        self.cluster || self.kubeconfig.is_some() || given.iter().any(|option| option.is_some())
    }

    /// A way into the cluster.
    ///
    /// # Errors
    /// No configuration, or one that cannot be used.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        let config = self.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("the configuration of the cluster cannot be used")?;
        let or = |given: &Option<String>, default: &str| given.clone().unwrap_or_else(|| default.to_owned());
        let operator_namespace = or(&self.operator_namespace, DEFAULT_OPERATOR_NAMESPACE);
        Ok(Cluster { client, namespace, operator_namespace, lease: or(&self.operator_lease, DEFAULT_LEASE) })
    }

    async fn config(&self) -> anyhow::Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), cluster: None, user: None };
        match &self.kubeconfig {
            Some(file) => {
                let read = Kubeconfig::read_from(file).with_context(|| file.display().to_string())?;
                let config = Config::from_custom_kubeconfig(read, &options).await;
                config.with_context(|| file.display().to_string())
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&options).await.context("the kubeconfig, or this context of it")
            }
            None => Config::infer().await.context(
                "no cluster is configured; name one with --kubeconfig, or leave the cluster's options out to look at \
                 processes of this machine",
            ),
        }
    }
}

/// A cluster and where to look in it.
#[derive(Clone)]
pub struct Cluster {
    /// Its API server.
    pub client: Client,
    /// Namespace of the tenants.
    pub namespace: String,
    /// Namespace of the operator.
    pub operator_namespace: String,
    /// Name of the leader's Lease.
    pub lease: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Namespace and name in `NAME`, `NAMESPACE/NAME`, or `tenant/NAME` (also `modeltenant/` and `mt/`, as kubectl has them).
///
/// # Errors
/// No name.
pub fn named(target: &str) -> anyhow::Result<(Option<&str>, &str)> {
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
    fn a_tenant_is_named_alone_or_with_its_kind() {
        for target in ["chat", "tenant/chat", "modeltenant/chat", "mt/chat"] {
            assert_eq!(named(target).unwrap(), (None, "chat"));
        }
        assert_eq!(named("team/chat").unwrap(), (Some("team"), "chat"));
        for target in ["", "tenant/", "/chat", "team/"] {
            assert!(named(target).unwrap_err().to_string().contains("names no tenant"), "{target}");
        }
    }
}
