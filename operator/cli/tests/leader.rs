//! The path to the operator's leader: Lease, forwarded port, overview. An API server of this process
//! speaks the websocket of `pods/portforward`: two channels per port, the first frame of each with its number.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use sluice_wire::Overview;
use sluice_wire::overview::{GpuOverview, PORT};
use sluice_wire::state::TenantReport;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};

use crate::support::{TestEnv, finish};

/// Requests to the leader: path and query.
type RequestLog = Arc<Mutex<Vec<String>>>;

fn overview() -> Overview {
    let silent = TenantReport::Unreachable {
        namespace: "team".into(),
        name: "chat".into(),
        reason: "it is far away".into(),
    };
    let gpu = GpuOverview {
        namespace: "team".into(),
        name: "p-a-0".into(),
        tenants: vec![silent],
        ..GpuOverview::default()
    };
    Overview { gpus: vec![gpu], ..Overview::default() }
}

/// An API server with a Lease that `sluice-operator-1` holds, and its pod. It serves until the test ends.
fn api_server() -> (SocketAddr, RequestLog) {
    let asked = RequestLog::default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let log = asked.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(connection(stream, log.clone()));
            }
        });
    });
    (address, asked)
}

async fn connection(mut stream: TcpStream, asked: RequestLog) {
    let mut head = [0; 1024];
    let length = stream.peek(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..length]).into_owned();
    if head.contains("/namespaces/sluice-system/pods/sluice-operator-1/portforward") {
        return forward(stream, asked).await;
    }
    assert!(head.contains("/namespaces/sluice-system/leases/sluice-operator"), "{head}");
    // Reads the whole request: unread data resets the connection at its end, and the answer may be lost.
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut request).await.unwrap() > 0, "a whole request");
    }
    let lease = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "sluice-operator"},
        "spec": {"holderIdentity": "sluice-operator-1"},
    });
    // This connection ends here. Without the header, without the header a client may send its next request on it.
    stream.write_all(http("connection: close\r\n", &lease.to_string()).as_bytes()).await.unwrap();
}

/// Each of `headers` ends with a line break.
fn http(headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One forwarded connection; it breaks after its first answer.
// The type of the refusal is the library's.
#[allow(clippy::result_large_err)]
async fn forward(stream: TcpStream, asked: RequestLog) {
    let accept = |request: &Request, mut response: Response| {
        assert!(request.uri().query().unwrap_or_default().contains(&PORT.to_string()), "{}", request.uri());
        response.headers_mut().insert("sec-websocket-protocol", "v4.channel.k8s.io".parse().unwrap());
        Ok(response)
    };
    let mut socket = tokio_tungstenite::accept_hdr_async(stream, accept).await.unwrap();
    for channel in [0, 1] {
        let [low, high] = PORT.to_le_bytes();
        socket.send(Message::binary(vec![channel, low, high])).await.unwrap();
    }
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(frame) if frame.first() == Some(&0) => request.extend_from_slice(&frame[1..]),
            other => panic!("{other:?}"),
        }
    }
    let request = String::from_utf8(request).unwrap();
    asked.lock().unwrap().push(request.split(' ').nth(1).unwrap().to_owned());
    let answer = http("", &serde_json::to_string(&overview()).unwrap());
    let frame = [&[0], answer.as_bytes()].concat();
    socket.send(Message::binary(frame)).await.unwrap();
    socket.close(None).await.unwrap();
}

#[test]
fn top_queries_leader_for_one_or_all_namespaces() {
    let (server, asked) = api_server();
    let world = TestEnv::with_cluster(server);
    let file = world.path("kubeconfig");
    for (more, query) in [(None, "/v1/overview?namespace=team"), (Some("-A"), "/v1/overview")] {
        let arguments = ["top", "--once", "--kubeconfig", file.to_str().unwrap()];
        let arguments: Vec<_> = arguments.into_iter().chain(more).collect();
        let outcome = finish(world.sluice(&arguments));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        assert!(outcome.stdout.contains("team/chat"), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("it is far away"), "{}", outcome.stdout);
        assert_eq!(asked.lock().unwrap().pop().as_deref(), Some(query));
    }
}

#[tokio::test]
async fn broken_connection_is_reestablished() {
    use sluice_cli::cluster::{ClusterArgs, LeaderClient, OverviewScope};
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (server, asked) = api_server();
    let world = TestEnv::with_cluster(server);
    let args = ClusterArgs { kubeconfig: Some(world.path("kubeconfig")), ..ClusterArgs::default() };
    let mut leader = LeaderClient::new(args.connect().await.unwrap());
    let scope = OverviewScope { namespace: Some("team".into()), tenant: Some("chat".into()) };
    for _ in 0..2 {
        // The break may be noticed before the next request or by it; the request after that is answered.
        let overview = match leader.overview(&scope).await {
            Ok(overview) => overview,
            Err(_) => leader.overview(&scope).await.unwrap(),
        };
        assert_eq!(overview, self::overview());
    }
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked, ["/v1/overview?namespace=team&tenant=chat"; 2]);
}
