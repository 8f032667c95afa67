//! Addresses under which pods reach servers of tests.

use std::net::UdpSocket;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Client;
use kube::api::ListParams;

use super::ClusterNode;

/// Address of this machine on the pod bridge of our own node.
const GATEWAY: &str = "10.244.0.1";

impl ClusterNode {
    /// Returns this machine's address as pods reach it, for servers that tests start. On an external cluster it is
    /// `SLUICE_HOST_ADDRESS`, or else the source address of packets to its first node.
    ///
    /// # Panics
    /// If there is no route to that node.
    pub async fn address_for_pods(&self) -> String {
        if self.own.is_some() {
            return GATEWAY.to_owned();
        }
        match std::env::var("SLUICE_HOST_ADDRESS") {
            Ok(address) if !address.is_empty() => address,
            _ => address_towards(&first_node(&self.api.client().await).await),
        }
    }
}

/// Returns the cluster-internal address of the first node.
async fn first_node(client: &Client) -> String {
    let all = kube::Api::<NodeObject>::all(client.clone()).list(&ListParams::default()).await;
    let all = all.unwrap_or_else(|error| panic!("nodes: {error}"));
    let addresses = all.items.into_iter().filter_map(|node| node.status?.addresses).flatten();
    let mut own = addresses.filter(|one| one.type_ == "InternalIP").map(|one| one.address);
    own.next().expect("a node has an address")
}

/// Returns the source address of packets to `node`. Sends none.
fn address_towards(node: &str) -> String {
    let any = if node.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let towards = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect((node, 9))?;
        socket.local_addr()
    };
    towards().unwrap_or_else(|error| panic!("no way to the node {node}: {error}")).ip().to_string()
}
