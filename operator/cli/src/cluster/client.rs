//! Connects to a cluster.

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::ClusterArgs;

const DEFAULT_OPERATOR_NAMESPACE: &str = "sluice-system";
const DEFAULT_LEASE: &str = "sluice-operator";

impl ClusterArgs {
    /// Connects to the cluster that the options select.
    ///
    /// # Errors
    /// There is no configuration, or it cannot be used.
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
            None if self.context.is_some() => Config::from_kubeconfig(&options)
                .await
                .context("cannot read the kubeconfig, or it has no such context"),
            None => Config::infer().await.context(
                "no cluster is configured; name a kubeconfig with --kubeconfig, or omit the options of a \
                 cluster to read the processes of this machine",
            ),
        }
    }
}

/// A client of a cluster, and the namespaces to read.
#[derive(Clone)]
pub struct Cluster {
    /// Client of the API server.
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
