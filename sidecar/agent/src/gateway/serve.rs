//! Connections: accepted up to a limit, cut when they stall, drained at the end.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower::ServiceExt;

use super::idle_timeout::{IdleTimeoutIo, RequestCounter};

/// Bytes of a request's head, and of an answer that may wait in user space for a slow reader.
const BUFFER_BYTES: usize = 32 << 10;
/// Pause after an accept that failed: descriptors or memory are short, and trying at once does not make more.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// For answers that were told to end to say why.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Limits of one socket.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Connections open at once; one more is told 503 and closed.
    pub max_connections: usize,
    /// Time for open answers at the end.
    pub drain_timeout: Duration,
}

/// How long a connection may stall.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the head of a request, from its first byte; for the first one, from the beginning of the connection.
    pub head: Duration,
    /// Between the end of an answer and the next request; at least as long as for a head.
    pub idle: Duration,
    /// While not one byte of an answer can be written.
    pub write: Duration,
}

impl Timeouts {
    /// For tenants' clients. Load balancers keep idle connections for up to 600 s; if we were the first to close, a POST could
    /// meet the end of its connection, and nobody may send it again.
    pub fn for_clients() -> Timeouts {
        Timeouts { idle: Duration::from_secs(620), ..Timeouts::default() }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        let head = Duration::from_secs(10);
        Timeouts { head, idle: head, write: Duration::from_secs(60) }
    }
}

/// Serves until `stop` says true (or its sender is gone), then finishes open answers within `limits.drain` and cuts the
/// rest.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    stop: watch::Receiver<bool>,
) {
    serve_with_timeouts(listener, router, limits, Timeouts::default(), stop).await;
}

/// Waits for the end of `serving`, which was told to stop. Answers still open after `drain` are ended by `cut`, which also
/// runs when none is; whoever is served with a drain of [`LAST_WORD`] more hears why.
pub async fn drain(mut serving: JoinHandle<()>, drain: Duration, cut: impl FnOnce()) {
    let late = tokio::time::timeout(drain, &mut serving).await.is_err();
    if late {
        tracing::warn!("open answers are cut: the time to drain is over");
    }
    cut();
    if late {
        // A task that panicked serves nobody any more.
        let _ = serving.await;
    }
}

/// [`serve`] with another patience.
pub async fn serve_with_timeouts(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    patience: Timeouts,
    stop: watch::Receiver<bool>,
) {
    let told = stop.clone();
    serve_connections(listener, limits, stop, |socket| {
        serve_connection(socket, router.clone(), patience, told.clone())
    })
    .await;
}

/// [`serve`] with a future of one's own for each connection, which ends by itself after `stop`.
pub(crate) async fn serve_connections<C, F>(
    listener: TcpListener,
    limits: ListenerLimits,
    stop: watch::Receiver<bool>,
    connect: C,
) where
    C: Fn(TcpStream) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let (places, mut connections) = (Arc::new(Semaphore::new(limits.max_connections)), JoinSet::new());
    let mut stopped = pin!(wait_for_stop(stop));
    loop {
        let accepted = tokio::select! {
            () = &mut stopped => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted.map(|(socket, _)| (socket, places.clone().try_acquire_owned())) {
            Ok((socket, Ok(place))) => {
                // It only delays: the connection works without.
                let _ = socket.set_nodelay(true);
                let connection = connect(socket);
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Ok((socket, Err(_))) => reject_connection(&socket),
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain_timeout, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "cut after the time to drain");
        connections.shutdown().await;
    }
}

pub(crate) async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    // A sender that has gone cannot say it any more: stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Answers on one connection until it ends, or until `stop` and the answer under way.
pub(crate) async fn serve_connection<S>(
    socket: S,
    router: Router,
    patience: Timeouts,
    stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let turns = RequestCounter::default();
    let io = TokioIo::new(IdleTimeoutIo::new(socket, patience, turns.clone()));
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, turn) = (router.clone(), turns.begin());
        async move { Ok::<_, Infallible>(respond(router, request).await.map(|body| turn.until_body_ends(body))) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience.idle).max_buf_size(BUFFER_BYTES);
    let mut connection = pin!(builder.serve_connection(io, service));
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = wait_for_stop(stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

async fn respond(router: Router, request: Request<Incoming>) -> axum::response::Response {
    match router.oneshot(request.map(Body::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Says 503 without waiting: the socket is new, so its send buffer has room; a client that is not served is owed no more.
fn reject_connection(socket: &TcpStream) {
    let error = json!({"error": {"message": "too many connections", "type": "service_unavailable",
        "param": null, "code": null}});
    let body = error.to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close";
    let _ = socket.try_write(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
}
