//! The client of the API server: every request has a timeout, and requests that may change something are counted.
//!
//! A server that disappears during a request leaves a connection that never returns data. kube sets no timeout, and
//! one such connection would block a worker forever.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use http::{Method, Request, Response, Uri, header};
use kube::client::{Body as Sent, ClientBuilder};
use kube::{Client, Config};
use tower::Service;
use tower::layer::layer_fn;

use crate::metrics::Metrics;

/// Maximum time of a request with its answer and kube's retries; of a watch until it starts. It is three times the
/// default timeout of a webhook, and half of the API server's own request timeout.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The request timed out.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs_f32())]
struct RequestTimedOut(Duration);

/// Returns a client of the API server in `config`.
///
/// # Errors
/// The configuration is invalid.
pub fn client(config: Config, limit: Duration, metrics: &Metrics) -> kube::Result<Client> {
    let layer = layer_fn(|inner| TimeoutService { inner, timeout: limit, metrics: metrics.clone() });
    Ok(ClientBuilder::try_from(config)?.with_layer(&layer).build())
}

/// Sets the timeout of each request, and counts it.
#[derive(Clone, Debug)]
struct TimeoutService<S> {
    inner: S,
    timeout: Duration,
    metrics: Metrics,
}

impl<S, B> Service<Request<Sent>> for TimeoutService<S>
where
    S: Service<Request<Sent>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        let (limit, watches) = (self.timeout, is_watch(request.uri()));
        if let Some((kind, verb)) = write_labels(&request) {
            self.metrics.count_write(kind, verb);
        }
        // Outside the future, so that the request's span is a child of the caller's span.
        let answer = self.inner.call(request);
        Box::pin(async move {
            let late = |_| RequestTimedOut(limit);
            tokio::time::timeout(limit, read_body(answer, watches)).await.map_err(late)?
        })
    }
}

/// Reads the whole response, except of a watch, whose stream ends at any time: kube closes an idle one.
async fn read_body<B, E>(
    answer: impl Future<Output = Result<Response<B>, E>>,
    watches: bool,
) -> Result<Response<Body>, BoxError>
where
    E: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = answer.await.map_err(Into::into)?.into_parts();
    let body = match Body::new(body) {
        endless if watches => endless,
        body => Body::from(to_bytes(body, usize::MAX).await?),
    };
    Ok(Response::from_parts(head, body))
}

fn is_watch(uri: &Uri) -> bool {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs.filter_map(|pair| pair.strip_prefix("watch=")).any(|value| value != "false" && value != "0")
}

/// Kinds that the operator writes, by their names in paths. The Lease is excluded: leader and candidates write it all
/// the time.
const WRITTEN_KINDS: [(&str, &str); 13] = [
    ("configmaps", "ConfigMap"),
    ("deployments", "Deployment"),
    ("events", "Event"),
    ("gpupools", "GpuPool"),
    ("jobs", "Job"),
    ("modeltenants", "ModelTenant"),
    ("networkpolicies", "NetworkPolicy"),
    ("poddisruptionbudgets", "PodDisruptionBudget"),
    ("pods", "Pod"),
    ("resourceclaims", "ResourceClaim"),
    ("secrets", "Secret"),
    ("services", "Service"),
    ("leases", LEASE),
];
const LEASE: &str = "Lease";

/// Returns kind and verb of a request that may change something, except for the Lease.
fn write_labels<B>(request: &Request<B>) -> Option<(&'static str, &'static str)> {
    let mut path = request.uri().path().split('/').skip_while(|part| *part != "namespaces").skip(2);
    let (plural, sub) = (path.next().unwrap_or_default(), path.nth(1));
    let kind = WRITTEN_KINDS.iter().find(|(known, _)| *known == plural).map_or("other", |(_, kind)| kind);
    let verb = match (request.method(), sub) {
        (&Method::GET | &Method::HEAD | &Method::OPTIONS, _) => return None,
        (_, Some("status")) => "status",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::DELETE, _) => "delete",
        _ if is_apply(request) => "apply",
        _ => "patch",
    };
    (kind != LEASE).then_some((kind, verb))
}

fn is_apply<B>(request: &Request<B>) -> bool {
    let sent = request.headers().get(header::CONTENT_TYPE);
    sent.is_some_and(|sent| sent.as_bytes().starts_with(b"application/apply-patch"))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt as _, stream};
    use k8s_openapi::api::core::v1::Secret;
    use kube::Api;
    use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
    use tokio::net::TcpListener;
    use tokio::time::sleep;
    use tower::Layer as _;

    use super::*;

    /// Exceeds every timeout.
    const STALL: Duration = Duration::from_secs(200);

    async fn patch_secret(client: Client) -> kube::Result<Secret> {
        let api: Api<Secret> = Api::namespaced(client, "ns");
        api.patch("s", &PatchParams::default(), &Patch::Merge(serde_json::json!({}))).await
    }

    #[tokio::test]
    async fn unanswered_request_times_out() {
        // The process has one crypto provider; another test may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut taken = Vec::new();
            loop {
                taken.push(listener.accept().await.unwrap());
            }
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = client(config, Duration::from_millis(100), &Metrics::default()).unwrap();
        let answer =
            tokio::time::timeout(Duration::from_secs(20), patch_secret(client)).await.expect("not for ever");
        assert!(format!("{:?}", answer.unwrap_err()).contains("RequestTimedOut"));
        server.abort();
    }

    /// A server whose responses start at once and have these frames, each after its delay.
    fn chunked_server<const N: usize>(frames: [(Duration, &'static str); N]) -> Client {
        let service = tower::service_fn(move |_: Request<Sent>| async move {
            let body = stream::iter(frames).then(|(after, frame)| async move {
                sleep(after).await;
                Ok::<_, Infallible>(frame)
            });
            Ok::<_, Infallible>(Response::new(Body::from_stream(body)))
        });
        let tended = |inner| TimeoutService { inner, timeout: REQUEST_TIMEOUT, metrics: Metrics::default() };
        Client::new(layer_fn(tended).layer(service), "default")
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_response_body_times_out() {
        let whole = chunked_server([
            (Duration::ZERO, r#"{"metadata": {"#),
            (REQUEST_TIMEOUT / 2, r#""name": "s"}}"#),
        ]);
        assert_eq!(patch_secret(whole).await.unwrap().metadata.name.as_deref(), Some("s"));
        let began = tokio::time::Instant::now();
        let half = chunked_server([(Duration::ZERO, r#"{"metadata": {"#), (STALL, "")]);
        let error = patch_secret(half).await.unwrap_err();
        assert!(error.to_string().contains("did not answer within 30 s"), "{error}");
        assert_eq!(began.elapsed(), REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn watch_outlives_request_timeout() {
        let added = r#"{"type": "ADDED", "object": {"metadata": {"name": "s"}}}"#;
        let client = chunked_server([(Duration::ZERO, added), (STALL, "\n"), (STALL, added)]);
        let api: Api<Secret> = Api::namespaced(client, "ns");
        let events = api.watch(&WatchParams::default(), "0").await.unwrap().collect::<Vec<_>>().await;
        assert!(matches!(&events[..], [Ok(WatchEvent::Added(_)), Ok(WatchEvent::Added(_))]), "{events:?}");
    }

    fn counted_write(method: Method, path: &str, kind: &str) -> Option<(&'static str, &'static str)> {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
        write_labels(&request.body(()).unwrap())
    }

    #[test]
    fn writes_are_counted_by_kind_and_verb() {
        let (core, json) = ("/api/v1/namespaces/ns", "application/json");
        let apply = "application/apply-patch+yaml";
        let of = |method, path: &str, kind| counted_write(method, &format!("{core}/{path}"), kind);
        assert_eq!(of(Method::PATCH, "secrets/s?force=true", apply), Some(("Secret", "apply")));
        assert_eq!(of(Method::PATCH, "pods/p", "application/merge-patch+json"), Some(("Pod", "patch")));
        assert_eq!(of(Method::POST, "secrets?", json), Some(("Secret", "create")));
        assert_eq!(of(Method::DELETE, "services/s", json), Some(("Service", "delete")));
        let pool = "/apis/sluice.dev/v1alpha1/namespaces/ns/gpupools/p";
        assert_eq!(
            counted_write(Method::PATCH, &format!("{pool}/status"), apply),
            Some(("GpuPool", "status"))
        );
        assert_eq!(counted_write(Method::PUT, pool, json), Some(("GpuPool", "update")));
        let event = "/apis/events.k8s.io/v1/namespaces/ns/events";
        assert_eq!(counted_write(Method::POST, event, json), Some(("Event", "create")));
        assert_eq!(counted_write(Method::POST, "/apis/x/v1/others", json), Some(("other", "create")));
        assert_eq!(counted_write(Method::GET, pool, json), None);
        let lease = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/sluice-operator";
        assert_eq!(
            counted_write(Method::PUT, lease, json),
            None,
            "it would hide whether a replica that waits writes"
        );
    }
}
