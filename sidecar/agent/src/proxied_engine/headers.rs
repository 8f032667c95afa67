//! Selects the headers that pass between client and engine.

use axum::http::header::{self, HeaderName};
use axum::http::{HeaderMap, HeaderValue};

/// Hop-by-hop headers (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removed from requests: credentials for the sidecar, and headers that are written again for the body. Without
/// `accept-encoding` the engine does not compress, and pacing must read the response.
const STRIPPED_FROM_REQUEST: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::ACCEPT_ENCODING,
];

/// Removed from responses: the sidecar's server writes its own.
const STRIPPED_FROM_RESPONSE: [HeaderName; 4] =
    [header::CONTENT_LENGTH, header::DATE, header::SERVER, header::SET_COOKIE];

/// Returns the headers of a request to the engine. The upstream router's headers are already removed.
pub fn request_headers(headers: &HeaderMap) -> HeaderMap {
    strip_headers(headers, &STRIPPED_FROM_REQUEST)
}

/// Returns the headers of a response to the client.
pub fn response_headers(headers: &HeaderMap) -> HeaderMap {
    strip_headers(headers, &STRIPPED_FROM_RESPONSE)
}

fn strip_headers(headers: &HeaderMap, ours: &[HeaderName]) -> HeaderMap {
    let named = connection_header_names(headers);
    let stays = |name: &HeaderName| {
        HOP_BY_HOP.contains(name) || ours.contains(name) || named.iter().any(|n| n == name.as_str())
    };
    let passing = headers.iter().filter(|(name, _)| !stays(name));
    passing.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns the headers that `connection` makes hop-by-hop.
fn connection_header_names(headers: &HeaderMap) -> Vec<String> {
    let values =
        headers.get_all(header::CONNECTION).into_iter().filter_map(|v: &HeaderValue| v.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_hop_by_hop_headers_are_stripped() {
        let sent = [
            ("authorization", "Bearer key"),
            ("cookie", "a=b"),
            ("connection", "keep-alive, X-Private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("accept-encoding", "gzip"),
            ("host", "elsewhere"),
            ("x-request-id", "7"),
            ("traceparent", "00-1-2-01"),
            ("content-type", "application/json"),
        ];
        let headers: HeaderMap = sent
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        let passed = request_headers(&headers);
        let mut names: Vec<_> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "traceparent", "x-request-id"]);
        assert!(response_headers(&headers).contains_key("authorization"), "only requests show keys");
    }
}
