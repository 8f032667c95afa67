//! Connections: accepts them up to a limit, closes stalled ones, and drains them at the end.

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
use super::timeouts::Timeouts;

/// Size of the connection's buffer, bytes: limits a request's head, and the response data that waits for a slow reader.
const BUFFER_BYTES: usize = 32 << 10;
/// Pause after a failed accept: an immediate retry would fail again while descriptors or memory are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Time in which responses that were ended at shutdown can still send their reason.
pub const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenerLimits {
    /// Most open connections; a further one receives 503 and is closed.
    pub max_connections: usize,
    /// Time for open responses to finish at shutdown.
    pub drain_timeout: Duration,
}

/// Serves until `stop` is true (or its sender is dropped), then finishes open responses within `limits.drain_timeout`
/// and closes the rest.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    stop: watch::Receiver<bool>,
) {
    serve_with_timeouts(listener, router, limits, Timeouts::default(), stop).await;
}

/// Waits for `serving`, which was already stopped, for at most `drain`, then calls `cut` to end open responses. A
/// listener whose own drain time is longer by [`CLOSE_GRACE`] lets them send the reason.
pub async fn drain(mut serving: JoinHandle<()>, drain: Duration, cut: impl FnOnce()) {
    let late = tokio::time::timeout(drain, &mut serving).await.is_err();
    if late {
        tracing::warn!("the drain time is over: ending open answers");
    }
    cut();
    if late {
        // A task that panicked serves no connection any more.
        let _ = serving.await;
    }
}

/// [`serve`] with other timeouts.
pub async fn serve_with_timeouts(
    listener: TcpListener,
    router: Router,
    limits: ListenerLimits,
    patience: Timeouts,
    stop: watch::Receiver<bool>,
) {
    let stopped = stop.clone();
    serve_connections(listener, limits, stop, |socket| {
        serve_connection(socket, router.clone(), patience, stopped.clone())
    })
    .await;
}

/// [`serve`] with a custom future per connection, which must end by itself after `stop`.
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
                // Failure only adds latency.
                let _ = socket.set_nodelay(true);
                let connection = connect(socket);
                connections.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Ok((socket, Err(_))) => reject_connection(&socket),
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.drain_timeout, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), "ended a connection after the drain time");
        connections.shutdown().await;
    }
}

pub(crate) async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Serves one connection until it ends; after `stop`, until the current response ends.
pub(crate) async fn serve_connection<S>(
    socket: S,
    router: Router,
    patience: Timeouts,
    stop: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let requests = RequestCounter::default();
    let io = TokioIo::new(IdleTimeoutIo::new(socket, patience, requests.clone()));
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, open) = (router.clone(), requests.begin());
        async move {
            let response = respond(router, request).await;
            Ok::<_, Infallible>(response.map(|body| open.until_body_ends(body)))
        }
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
        tracing::debug!(%error, "a connection failed");
    }
}

async fn respond(router: Router, request: Request<Incoming>) -> axum::response::Response {
    match router.oneshot(request.map(Body::new)).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Sends 503 without waiting. The socket is new, so its send buffer has space, and a refused client needs no more.
fn reject_connection(socket: &TcpStream) {
    let error = json!({"error": {"message": "too many connections", "type": "service_unavailable",
        "param": null, "code": null}});
    let body = error.to_string();
    let head = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close";
    let _ = socket.try_write(format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes());
}
