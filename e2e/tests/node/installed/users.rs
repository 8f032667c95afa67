//! The view of a user who may view the tenants of a namespace and nothing else.

use std::path::PathBuf;
use std::process::Command;

use sluice_e2e::cluster::ClusterNode;

use super::{Product, binary};

/// Name of a user with read rights only.
const VIEWER: &str = "viewer";

impl<'a> Product<'a> {
    /// Same as [`Product::install`], with a user who may use `kubectl sluice`.
    pub async fn install_for_users(node: &'a ClusterNode) -> Option<Product<'a>> {
        let viewer = format!(
            ",people.cli[0].kind=User,people.cli[0].name={VIEWER},people.cli[0].apiGroup=rbac.authorization.k8s.io"
        );
        Product::install_with(node, &viewer).await
    }

    /// Returns the kubeconfig of a user who may view the namespace and use the CLI, and nothing else.
    fn viewer(&self) -> PathBuf {
        if !self.node.api().is_own() {
            return self.node.api().kubeconfig_path().to_owned();
        }
        let user = format!("--user={VIEWER}");
        let bound = ["create", "rolebinding", "viewer", "--clusterrole=view", &user];
        if self.kubectl(&["get", "rolebinding", "viewer", "--ignore-not-found", "-o", "name"]).is_empty() {
            self.kubectl(&bound);
        }
        self.node.api().kubeconfig_of(VIEWER, None)
    }

    /// Runs the CLI in the cluster and returns its output.
    pub fn sluice(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(binary("kubectl-sluice"));
        command.args(arguments).args(["-n", &self.namespace]).env("KUBECONFIG", self.viewer());
        self.said(command.output().unwrap())
    }
}
