//! Tests how the driver registers, and how it stops.

use sluice_devices::proto::DRA_VERSION;
use sluice_devices::proto::pluginregistration::InfoRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::node::{Node, until};
use crate::server::Server;

#[tokio::test]
async fn kubelet_gets_driver_name_and_endpoint() {
    let node = Node::new(&Server::start().await);
    let driver = node.start(&[]);
    let info = driver.registrar().await.get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "sluice.dev"));
    assert_eq!(info.endpoint, node.dra().display().to_string());
    assert_eq!(info.supported_versions, [DRA_VERSION]);
}

/// Encodes an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Encodes a literal header field with an indexed or a new name (RFC 7541, 6.2.1), without Huffman coding.
fn field(name: Result<u8, &str>, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let name = name.map_or_else(|name| [vec![0x40], text(name)].concat(), |index| vec![0x40 | index]);
    [name, text(value)].concat()
}

/// Returns the bytes of a kubelet's `GetInfo` call, whose authority is the path of the socket.
fn kubelet_request_bytes() -> Vec<u8> {
    const POST: u8 = 0x83;
    const HTTP: u8 = 0x86;
    let headers = [
        vec![POST, HTTP],
        field(Ok(4), "/pluginregistration.Registration/GetInfo"),
        field(Ok(1), "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fsluice.dev-reg.sock"),
        field(Ok(31), "application/grpc"),
        field(Err("te"), "trailers"),
    ];
    let (settings, empty) = (frame(4, 0, 0, &[]), frame(0, 1, 1, &[0; 5]));
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), settings, frame(1, 4, 1, &headers.concat()), empty]
        .concat()
}

#[tokio::test]
async fn the_kubelet_is_answered_although_its_authority_is_none() {
    let node = Node::new(&Server::start().await);
    let _driver = node.start(&[]);
    let mut stream = tokio::net::UnixStream::connect(node.registration()).await.unwrap();
    stream.write_all(&kubelet_request_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = async {
        while !answer.windows(12).any(|bytes| bytes == b"v1.DRAPlugin") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{answer:x?}");
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), read).await.expect("an answer");
}

#[tokio::test]
async fn the_driver_is_ready_when_the_kubelet_and_the_api_server_have_it() {
    let server = Server::start().await;
    let node = Node::new(&server);
    let driver = node.start(&[]);
    assert_eq!(driver.get("/ready").await, (503, "not registered with the kubelet\n".into()));
    assert!(server.slices(|_| true).await.is_empty(), "devices of a driver that the kubelet does not have");
    driver.registered(true).await;
    server.slices(|slices| slices.len() == 1).await;
    until("the driver is ready", async || driver.get("/ready").await == (200, "ready\n".into())).await;
    driver.registered(false).await;
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
    driver.registered(true).await;
    server.slices(|slices| slices.len() == 1).await;
    // The kubelet keeps its connection open, which must not delay the stop.
    let connection = driver.registrar().await;
    let status = tokio::task::spawn_blocking(|| driver.stop()).await.unwrap();
    assert!(status.success(), "{status}");
    assert!(!node.registration().exists() && !node.dra().exists());
    assert_eq!(server.slices(|_| true).await.len(), 1);
    drop(connection);
}
