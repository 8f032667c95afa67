//! Clients of an API server.

use std::path::Path;

use kube::{Client, Config};

/// Returns a client with the rights of a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> Client {
    let shown = kubeconfig.display();
    let read = kube::config::Kubeconfig::read_from(kubeconfig).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let config = Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await;
    let config = config.unwrap_or_else(|e| panic!("{shown}: {e}"));
    Client::try_from(config).unwrap_or_else(|e| panic!("{shown}: {e}"))
}
