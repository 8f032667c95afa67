//! How the driver makes itself known, and how it ends.

use sluice_devices::proto::{DRA_VERSION, RegistrationStatus};

use crate::node::{Node, until};
use crate::server::Server;

#[tokio::test]
async fn the_kubelet_learns_who_the_driver_is_and_where_it_listens() {
    let node = Node::new(&Server::start().await);
    let driver = node.start(&[]);
    let info = driver.registrar().await.info().await.unwrap();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "sluice.dev"));
    assert_eq!(info.endpoint, node.dra().display().to_string());
    assert_eq!(info.supported_versions, [DRA_VERSION]);
}

#[tokio::test]
async fn the_driver_is_ready_when_the_kubelet_and_the_api_server_have_it() {
    let server = Server::start().await;
    let node = Node::new(&server);
    let driver = node.start(&[]);
    server.slices(|slices| slices.len() == 1).await;
    assert_eq!(driver.get("/ready").await, (503, "not registered with the kubelet\n".into()));
    let registrar = driver.registrar().await;
    let status = |plugin_registered| RegistrationStatus { plugin_registered, error: "why not".into() };
    registrar.notify(status(true)).await.unwrap();
    until("the driver is ready", async || driver.get("/ready").await == (200, "ready\n".into())).await;
    registrar.notify(status(false)).await.unwrap();
    assert_eq!(driver.get("/ready").await.0, 503);
}

#[tokio::test]
async fn a_driver_whose_socket_is_gone_does_not_count_as_alive() {
    let node = Node::new(&Server::start().await);
    let driver = node.start(&[]);
    assert_eq!(driver.get("/live").await, (200, "live\n".into()));
    std::fs::remove_file(node.dra()).unwrap();
    assert_eq!(driver.get("/live").await.0, 503);
}

#[tokio::test]
async fn a_driver_that_ends_takes_its_sockets_with_it_and_leaves_its_slice() {
    let server = Server::start().await;
    let node = Node::new(&server);
    let driver = node.start(&[]);
    server.slices(|slices| slices.len() == 1).await;
    // As the kubelet does, which must not hold the end up.
    let connection = driver.registrar().await;
    let status = tokio::task::spawn_blocking(|| driver.stop()).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(!node.registration().exists() && !node.dra().exists());
    assert_eq!(server.slices(|_| true).await.len(), 1);
    drop(connection);
}
