//! The page over HTTP: its files, the present state as JSON, and a stream of updates.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream::{self, Stream};
use serde::Deserialize;

use crate::hub::{Hub, Viewer, ViewerMessage};

/// Path, kind and contents of the page's files.
pub const FILES: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("../assets/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../assets/page.css")),
    ("/page.js", SCRIPT, include_str!("../assets/page.js")),
    ("/parts.js", SCRIPT, include_str!("../assets/parts.js")),
    ("/charts.js", SCRIPT, include_str!("../assets/charts.js")),
    ("/words.js", SCRIPT, include_str!("../assets/words.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path of the present state.
pub const STATE: &str = "/v1/page";
/// Path of the stream of updates.
pub const EVENTS: &str = "/v1/page/events";

/// Nothing but the page's own files, and no frame around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Interval of comments in an idle stream, which detect a closed connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long an answer waits for an update beyond the time between two of them.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(2);

/// The page of `hub`, at `/`. Serve it through [`local_only`], at a loopback address: it asks for no credential.
pub fn routes(hub: Arc<Hub>) -> Router {
    let files = FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        let text: Bytes = without_comments(text).into();
        router.route(path, get(async move || file(kind, text.clone())))
    });
    files.route(STATE, get(state)).route(EVENTS, get(events)).with_state(hub)
}

/// Lines that are comments of a script cost every viewer their bytes.
fn without_comments(text: &str) -> String {
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    text.split_inclusive('\n').filter(|line| !is_comment(line)).collect()
}

fn file(kind: &'static str, text: Bytes) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

/// What a viewer wants to see.
#[derive(Debug, Default, Deserialize)]
struct ViewQuery {
    /// The GPU, `NAMESPACE/NAME`; none = all where there are few.
    gpu: Option<String>,
}

fn open_viewer(hub: &Arc<Hub>, wanted: ViewQuery) -> Result<Viewer, (StatusCode, &'static str)> {
    let full =
        (StatusCode::SERVICE_UNAVAILABLE, "Too many viewers have this page open. Close one of them.\n");
    hub.viewer(wanted.gpu).ok_or(full)
}

/// `GET /v1/page`: the messages that a new viewer is sent first, as one array of `[KIND, MESSAGE]`. Of many GPUs
/// the
/// one that is asked for comes with the next update.
async fn state(State(hub): State<Arc<Hub>>, Query(wanted): Query<ViewQuery>) -> Response {
    let mut viewer = match open_viewer(&hub, wanted) {
        Ok(viewer) => viewer,
        Err(full) => return full.into_response(),
    };
    let limit = hub.interval() * 2 + UPDATE_TIMEOUT;
    let Ok(messages) = tokio::time::timeout(limit, viewer.snapshot()).await else {
        let text = format!("the GPU in gpu= was not read within {} s; try again\n", limit.as_secs());
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let messages = messages.unwrap_or_default();
    let parts: Vec<String> = messages.iter().map(|(kind, json)| format!("[\"{kind}\",{json}]")).collect();
    let body = format!("[{}]", parts.join(","));
    ([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// `GET /v1/page/events`: the same messages as server-sent events, and then what is new after each update.
async fn events(State(hub): State<Arc<Hub>>, Query(wanted): Query<ViewQuery>) -> Response {
    match open_viewer(&hub, wanted) {
        Ok(viewer) => {
            Sse::new(event_stream(viewer)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
        }
        Err(full) => full.into_response(),
    }
}

fn event_stream(viewer: Viewer) -> impl Stream<Item = Result<Event, Infallible>> {
    let left: std::vec::IntoIter<ViewerMessage> = Vec::new().into_iter();
    stream::unfold((viewer, left), async |(mut viewer, mut left)| {
        loop {
            if let Some((kind, json)) = left.next() {
                return Some((Ok(Event::default().event(kind).data(json)), (viewer, left)));
            }
            left = viewer.next().await?.into_iter();
        }
    })
}

/// Answers only requests for this machine by name or by address: a page of another origin whose name resolves
/// to this address (DNS rebinding) reads nothing.
pub fn local_only<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router.layer(from_fn(async |request: Request, next: Next| {
        if is_local(request.headers().get(header::HOST)) {
            return next.run(request).await;
        }
        (StatusCode::FORBIDDEN, "use localhost or 127.0.0.1 as the host: the page serves only this machine\n")
            .into_response()
    }))
}

fn is_local(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else { return false };
    let Ok(authority) = host.parse::<axum::http::uri::Authority>() else { return false };
    let name = authority.host().trim_matches(['[', ']']);
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_hosts_are_accepted() {
        let local = |host: &'static str| is_local(Some(&HeaderValue::from_static(host)));
        assert!(["localhost", "localhost:8003", "127.0.0.1:9", "[::1]:8003"].into_iter().all(local));
        assert!(!["evil.example", "localhost.evil.example", "10.0.0.9", ""].into_iter().any(local));
        assert!(!is_local(None));
    }

    #[test]
    fn the_files_name_no_other_host_and_write_no_markup() {
        for (path, _, text) in FILES {
            let text = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("http://") && !text.contains("https://"), "{path}");
            assert!(
                !text.contains("style=\"") && !text.contains("onload"),
                "{path}: its policy forbids both"
            );
            assert!(!text.contains("innerHTML") && !text.contains("insertAdjacentHTML"), "{path}");
        }
    }
}
