//! In place of a cluster's client, in a build without the feature `cluster`: every way into a cluster says so.

use std::convert::Infallible;

use anyhow::bail;
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::Overview;

use super::{ClusterArgs, Found, Scope};

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
pub struct Leader(Cluster);

impl Leader {
    /// Of no cluster.
    pub fn of(cluster: Cluster) -> Leader {
        Leader(cluster)
    }

    /// What no leader knows.
    ///
    /// # Errors
    /// Never called.
    pub async fn overview(&mut self, _: &Scope) -> anyhow::Result<Overview> {
        match self.0.never {}
    }
}

/// A tenant of no cluster.
///
/// # Errors
/// Never called.
pub async fn find(cluster: &Cluster, _: &str) -> anyhow::Result<Found> {
    match cluster.never {}
}

/// Objects of no cluster.
///
/// # Errors
/// Never called.
pub async fn objects(cluster: &Cluster, _: &str) -> anyhow::Result<(Vec<GpuPool>, Vec<ModelTenant>)> {
    match cluster.never {}
}
