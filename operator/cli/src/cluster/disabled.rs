//! Replaces the client of a cluster in a build without the feature `cluster`: every use is an error that names it.

use std::convert::Infallible;

use anyhow::bail;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::Overview;

use super::{ClusterArgs, OverviewScope, TenantWithEvents};

/// Never constructed.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Namespace of the tenants.
    pub namespace: String,
    never: Infallible,
}

impl ClusterArgs {
    /// Fails: this build has no cluster client.
    ///
    /// # Errors
    /// Always.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        bail!(
            "this build of sluice has no Kubernetes client; build it with the feature `cluster` (cargo \
             build --package sluice-cli), or use kubectl-sluice"
        )
    }
}

/// Never constructed.
#[derive(Debug)]
pub struct LeaderClient(Cluster);

impl LeaderClient {
    /// Never called.
    pub fn new(cluster: Cluster) -> LeaderClient {
        LeaderClient(cluster)
    }

    /// Never called.
    ///
    /// # Errors
    /// Never called.
    pub async fn overview(&mut self, _: &OverviewScope) -> anyhow::Result<Overview> {
        match self.0.never {}
    }
}

/// Never called.
///
/// # Errors
/// Never called.
pub async fn find_tenant(cluster: &Cluster, _: &str) -> anyhow::Result<TenantWithEvents> {
    match cluster.never {}
}

/// Never called.
///
/// # Errors
/// Never called.
pub async fn list_objects(cluster: &Cluster, _: &str) -> anyhow::Result<(Vec<GpuPool>, Vec<ModelTenant>)> {
    match cluster.never {}
}
