//! In place of a cluster's client, in a build without the feature `cluster`: every way into a cluster says so.

use std::convert::Infallible;

use anyhow::bail;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::Overview;

use super::{ClusterArgs, OverviewScope, TenantWithEvents};

/// There is none.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Namespace of the tenants.
    pub namespace: String,
    never: Infallible,
}

impl ClusterArgs {
    /// No way into the cluster.
    ///
    /// # Errors
    /// Always: this build has no client.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        bail!(
            "this build of sluice has no client of a cluster; build it with the feature `cluster`, as \
             `cargo build --package sluice-cli` does, or take kubectl-sluice"
        )
    }
}

/// There is none.
#[derive(Debug)]
pub struct LeaderClient(Cluster);

impl LeaderClient {
    /// Of no cluster.
    pub fn new(cluster: Cluster) -> LeaderClient {
        LeaderClient(cluster)
    }

    /// What no leader knows.
    ///
    /// # Errors
    /// Never called.
    pub async fn overview(&mut self, _: &OverviewScope) -> anyhow::Result<Overview> {
        match self.0.never {}
    }
}

/// A tenant of no cluster.
///
/// # Errors
/// Never called.
pub async fn find_tenant(cluster: &Cluster, _: &str) -> anyhow::Result<TenantWithEvents> {
    match cluster.never {}
}

/// Objects of no cluster.
///
/// # Errors
/// Never called.
pub async fn list_objects(cluster: &Cluster, _: &str) -> anyhow::Result<(Vec<GpuPool>, Vec<ModelTenant>)> {
    match cluster.never {}
}
