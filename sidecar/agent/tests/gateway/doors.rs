//! The socket of the probes.

use std::net::SocketAddr;
use std::time::Duration;

use sluice_agent::gateway::serve::{Limits, serve};
use sluice_agent::probes;
use sluice_agent::service::Status;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::client::{Answer, Client};
use super::world::{Setup, World};

async fn open(router: axum::Router) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (stop, stopping) = watch::channel(false);
    tokio::spawn(serve(listener, router, Limits { connections: 8, drain: Duration::from_secs(1) }, stopping));
    (address, stop)
}

async fn get(address: SocketAddr, path: &str) -> Answer {
    let mut client = Client::connect(address).await;
    client.send("GET", path, &[], b"").await;
    client.answer().await
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_tell_when_to_start_the_engine_and_when_to_route_and_nothing_else() {
    let mut world = World::start(Setup { status: Status::Loading, ..Setup::default() }).await;
    world.autopilot("");
    let (address, _stop) = open(probes::router(world.service.clone(), world.metrics.clone())).await;
    let failed = Status::Failed("bad weights".into());
    for (status, startup, ready) in [
        (Status::Loading, 200, 503),
        (Status::Serving, 200, 200),
        (Status::EngineLost, 200, 200),
        (failed, 503, 503),
    ] {
        world.status.send(status.clone()).unwrap();
        for (path, wanted) in [("/startup", startup), ("/ready", ready), ("/live", 200)] {
            assert_eq!(get(address, path).await.head.status, wanted, "{path} while {status:?}");
        }
        assert_eq!(world.get("/ready").await.head.status, ready);
    }
    let metrics = get(address, "/metrics").await;
    assert!(metrics.body.contains("vllm:num_requests_running{model_name=\"tiny\"} 0\n"), "{}", metrics.body);
    for path in ["/", "/v1/state", "/v1/models", "/v1/completions"] {
        assert_eq!(get(address, path).await.head.status, 404, "{path}");
    }
}
