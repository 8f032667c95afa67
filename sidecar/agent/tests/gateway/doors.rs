//! The other two sockets: admin and probes.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use sluice_agent::admin::{Admin, make_token};
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

async fn ask(address: SocketAddr, method: &str, path: &str, token: Option<&str>) -> Answer {
    let mut client = Client::connect(address).await;
    let value = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = value.iter().map(|value| ("authorization", value.as_str())).collect();
    client.send(method, path, &headers, b"").await;
    client.answer().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_is_told_to_whoever_has_the_token_and_nothing_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "old and readable by all").unwrap();
    let token = make_token(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), token);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit()));
    assert_ne!(make_token(&folder.path().join("other")).unwrap(), token);

    let mut world = World::start(Setup::default()).await;
    world.autopilot("");
    let admin = Admin { service: world.service.clone(), token: token.clone() };
    assert!(!format!("{admin:?}").contains(&token), "logs hold no secrets");
    let (address, _stop) = open(admin.router()).await;
    let answer = ask(address, "GET", "/v1/state", Some(&token)).await;
    assert_eq!(sluice_wire::State::from_json(answer.body.as_bytes()).unwrap(), sluice_wire::State::default());
    let wrong = format!("{}0", &token[..63]);
    for token in [None, Some(""), Some(&token[..63]), Some(wrong.as_str())]
        .into_iter()
        .filter(|t| *t != Some(token.as_str()))
    {
        for path in ["/v1/state", "/", "/metrics"] {
            ask(address, "GET", path, token).await.error(
                401,
                "invalid_request_error",
                None,
                Some("invalid_api_key"),
            );
        }
    }
    ask(address, "PUT", "/v1/state", Some(&token)).await.error(405, "invalid_request_error", None, None);
    ask(address, "GET", "/v1/directive", Some(&token)).await.error(404, "invalid_request_error", None, None);
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
            assert_eq!(ask(address, "GET", path, None).await.head.status, wanted, "{path} while {status:?}");
        }
        assert_eq!(world.get("/ready").await.head.status, ready);
    }
    let metrics = ask(address, "GET", "/metrics", None).await;
    assert!(metrics.body.contains("vllm:num_requests_running{model_name=\"tiny\"} 0\n"), "{}", metrics.body);
    for path in ["/", "/v1/state", "/v1/models", "/v1/completions"] {
        assert_eq!(ask(address, "GET", path, None).await.head.status, 404, "{path}");
    }
}
