//! Unknown processes at the engine's socket: refused and logged, and the tenant continues.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::Signal;

use crate::support::{Tenant, TestEnv, eventually, processes, slow};

/// Version that the sidecar speaks: these messages are refused for their contents after the version.
const LINK_VERSION: u16 = 8;

/// Returns a header: `SLNK`, version, kind, part 0 of 1, length of the payload.
fn header(version: u16, kind: u16, payload_bytes: u32) -> Vec<u8> {
    let words = [version, kind, 0, 1].into_iter().flat_map(u16::to_le_bytes);
    b"SLNK".iter().copied().chain(words).chain(payload_bytes.to_le_bytes()).collect()
}

/// Messages of unknown processes, and the text of the refusal in the log.
fn malformed_messages() -> [(Vec<u8>, &'static str); 5] {
    [
        (b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n".to_vec(), "magic"),
        (header(999, 1, 0), "link version 999"),
        ([header(LINK_VERSION, 1, 140_000), vec![0; 140_000]].concat(), "above the limit"),
        (vec![0x53], "shorter than its header"),
        ([header(LINK_VERSION, 1, 4), vec![0xff; 4]].concat(), "does not decode"),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_link_peers_are_refused_and_logged() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 40).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let engine = tenant.engine().await;
    let supervisor = processes::parent(engine);
    // The sidecar listens at any time; here while no engine runs and none can be started.
    processes::signal(supervisor, Signal::STOP);
    processes::signal(engine, Signal::KILL);
    for (speech, words) in malformed_messages() {
        let stranger = dial(&tenant.folder.join("engine.sock"));
        send(&stranger, &speech, SendFlags::NOSIGNAL).unwrap();
        refused(&world, words).await;
        assert_eq!(recv(&stranger, &mut [0; 64], RecvFlags::empty()).map(|(count, _)| count).unwrap_or(0), 0);
    }
    assert_eq!(tenant.readiness().await, Some(200));
    processes::signal(supervisor, Signal::CONT);
    assert_eq!(stream.finish().await.unwrap(), expected);
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_peer_does_not_block_engine_or_restart() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "").await;
    let (body, expected) = slow::undisturbed(&tenant, 2, 40).await;
    let mut stream = tenant.stream(&body).await;
    stream.until_tokens(5).await;
    let [(garbage, words), ..] = malformed_messages();
    let loud = dial(&tenant.folder.join("engine.sock"));
    send(&loud, &garbage, SendFlags::NOSIGNAL).unwrap();
    stream.until_tokens(10).await;
    processes::signal(tenant.engine().await, Signal::KILL);
    assert_eq!(stream.finish().await.unwrap(), expected);
    refused(&world, words).await;
    assert_eq!(unattended(&tenant).await, 1);
    up.end_cleanly().await;
}

/// Number of lost engines so far.
async fn unattended(tenant: &Tenant) -> u64 {
    tenant.state().await.engine.restarts
}

fn dial(path: &Path) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    // Large enough for a packet above the limit of the link.
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

async fn refused(world: &TestEnv, words: &str) {
    eventually(&format!("a refusal that says `{words}`"), async || {
        let stderr = world.stderr();
        stderr.lines().any(|line| line.contains("refused an engine") && line.contains(words)).then_some(())
    })
    .await;
}
