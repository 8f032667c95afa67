//! The live page: memory, layers, idleness and moves of every GPU, for people without dashboards. It stands beside the read API
//! on the loopback address, so that whoever may forward a port to the leader may look.

use std::net::IpAddr;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const INDEX: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Nothing but the page's own files, and no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// `/` and what it is made of.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let file = |kind: &'static str, text: &'static str| get(async move || served(kind, text));
    Router::new()
        .route("/", file("text/html; charset=utf-8", INDEX))
        .route("/page.css", file("text/css; charset=utf-8", STYLE))
        .route("/page.js", file("text/javascript; charset=utf-8", SCRIPT))
}

fn served(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, text).into_response()
}

/// Answers those alone who ask for this machine by name or by address: a page of somebody else whose name was turned to this
/// address in a browser (DNS rebinding) reads nothing.
pub fn local_only<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    router.layer(from_fn(async |request: Request, next: Next| {
        if is_local(request.headers().get(header::HOST)) {
            return next.run(request).await;
        }
        (StatusCode::FORBIDDEN, "ask for localhost: this is read through a forwarded port\n").into_response()
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
    fn only_this_machine_is_asked_for() {
        let local = |host: &'static str| is_local(Some(&HeaderValue::from_static(host)));
        assert!(["localhost", "localhost:8003", "127.0.0.1:9", "[::1]:8003"].into_iter().all(local));
        assert!(!["evil.example", "localhost.evil.example", "10.0.0.9", ""].into_iter().any(local));
        assert!(!is_local(None));
    }

    #[test]
    fn the_page_asks_for_nothing_from_elsewhere_and_writes_no_markup() {
        for text in [INDEX, STYLE, SCRIPT] {
            assert!(!text.contains("http://") && !text.contains("https://"));
        }
        assert!(!INDEX.contains("style=") && !INDEX.contains("onload"), "its policy forbids both");
        assert!(!SCRIPT.contains("innerHTML") && !SCRIPT.contains("insertAdjacentHTML"));
    }
}
