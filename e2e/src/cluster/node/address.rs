//! Where pods find servers that tests start.

use std::net::UdpSocket;

use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Client;
use kube::api::ListParams;

use super::Node;

/// This machine on the bridge of pods of our own node.
const GATEWAY: &str = "10.244.0.1";

impl Node {
    /// This machine's address as pods reach it, for servers that tests start: on a cluster that somebody else runs, what
    /// `SLUICE_HOST_ADDRESS` says, or else the address that packets to its first node leave from.
    ///
    /// # Panics
    /// If there is no way to that node.
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

/// Address of a cluster's first node within the cluster.
async fn first_node(client: &Client) -> String {
    let all = kube::Api::<NodeObject>::all(client.clone()).list(&ListParams::default()).await;
    let all = all.unwrap_or_else(|error| panic!("nodes: {error}"));
    let addresses = all.items.into_iter().filter_map(|node| node.status?.addresses).flatten();
    let mut own = addresses.filter(|one| one.type_ == "InternalIP").map(|one| one.address);
    own.next().expect("a node has an address")
}

/// The address that packets to `node` leave from. None is sent.
fn address_towards(node: &str) -> String {
    let any = if node.contains(':') { "[::]:0" } else { "0.0.0.0:0" };
    let towards = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect((node, 9))?;
        socket.local_addr()
    };
    towards().unwrap_or_else(|error| panic!("no way to the node {node}: {error}")).ip().to_string()
}
