//! A small server with a model, which supports both protocols and injects faults.
// Helpers outside of test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Behaviour of the server, and the requests that it received.
#[derive(Debug, Default)]
pub struct ServerBehavior {
    /// Files, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Digests that are reported instead of the real ones.
    pub false_digests: BTreeMap<String, String>,
    /// Number of responses that break off half way.
    pub truncated_responses: u32,
    /// Number of requests that first get status 503.
    pub unavailable: u32,
    /// Whether ranges are ignored.
    pub ignores_ranges: bool,
    /// Token or access key that requests must have.
    pub required_credential: Option<String>,
    /// Objects per page of a list.
    pub page: Option<usize>,
    /// Whether a file's response continues without end.
    pub is_endless: bool,
    /// Path and range of every request.
    pub requests: Vec<(String, Option<String>)>,
}

type SharedBehavior = Arc<Mutex<ServerBehavior>>;

pub struct Server {
    pub address: SocketAddr,
    pub behaviour: SharedBehavior,
}

/// Output of `sha256sum` for the weights of [`model`].
pub const WEIGHTS_SHA256: &str = "cd2df694e424bc7968cc37f47751019e5ca0cd1bdf2e479ea537c3a1c32ee1aa";
/// Output of `git hash-object` for the `config.json` of [`model`].
pub const CONFIG_BLOB: &str = "56ba9283acfa5b9d205a78bef5e1cc2b1b00c022";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Returns 100,000 bytes of weights, a configuration, and files that no sidecar reads.
pub fn model() -> BTreeMap<String, Vec<u8>> {
    let weights: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    let files: [(&str, &[u8]); 6] = [
        ("config.json", b"{\"layers\": 2}"),
        ("model.safetensors", &weights),
        ("tokenizer.json", b"{}"),
        ("pytorch_model.bin", b"the same in another format"),
        ("onnx/model.json", b"in a folder"),
        ("README.md", b"# A model"),
    ];
    files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).into()
}

impl Server {
    pub async fn start(behaviour: ServerBehavior) -> Server {
        let behaviour: SharedBehavior = Arc::new(Mutex::new(behaviour));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = Router::new().fallback(respond).with_state(behaviour.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Server { address, behaviour }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the requested ranges of the weights, in order.
    pub fn ranges(&self) -> Vec<Option<String>> {
        let behaviour = self.behaviour.lock().unwrap();
        let weights = behaviour.requests.iter().filter(|(path, _)| path.ends_with(".safetensors"));
        weights.map(|(_, range)| range.clone()).collect()
    }
}

async fn respond(State(shared): State<SharedBehavior>, request: Request) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or("").to_owned());
    let mut behaviour = shared.lock().unwrap();
    let range = request.headers().get(header::RANGE).map(|range| range.to_str().unwrap().to_owned());
    behaviour.requests.push((path.clone(), range.clone()));
    if !allowed(&behaviour, request.headers(), &query) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    if behaviour.unavailable > 0 {
        behaviour.unavailable -= 1;
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    if path.starts_with("/api/models/org/tiny/revision/") {
        return axum::Json(revision(&behaviour)).into_response();
    }
    if path == "/bucket/" {
        return list(&behaviour, &query).into_response();
    }
    let under = [format!("/org/tiny/resolve/{COMMIT}/"), "/bucket/models/tiny/".to_owned()];
    let name = under.iter().find_map(|under| path.strip_prefix(under.as_str()));
    match name.and_then(|name| behaviour.files.get(name).cloned()) {
        Some(file) => send(&mut behaviour, file, range.as_deref(), request.headers()),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn allowed(behaviour: &ServerBehavior, headers: &HeaderMap, query: &str) -> bool {
    let Some(wanted) = &behaviour.required_credential else { return true };
    let bearer = headers.get(header::AUTHORIZATION).is_some_and(|shown| shown == &format!("Bearer {wanted}"));
    let signed =
        query.contains(&format!("X-Amz-Credential={wanted}%2F")) && query.contains("X-Amz-Signature=");
    bearer || signed
}

fn revision(behaviour: &ServerBehavior) -> Value {
    let file = |(name, bytes): (&String, &Vec<u8>)| {
        let digest =
            |truth: &str| behaviour.false_digests.get(name).cloned().unwrap_or_else(|| truth.to_owned());
        let mut file = json!({"rfilename": name, "size": bytes.len()});
        match name.as_str() {
            "model.safetensors" => {
                file["lfs"] = json!({"sha256": digest(WEIGHTS_SHA256), "size": bytes.len()})
            }
            "config.json" => file["blobId"] = json!(digest(CONFIG_BLOB)),
            _ => {}
        }
        file
    };
    json!({"sha": COMMIT, "siblings": behaviour.files.iter().map(file).collect::<Vec<_>>()})
}

/// Returns a page of the list of objects in S3's format.
fn list(behaviour: &ServerBehavior, query: &str) -> String {
    let from: usize = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("continuation-token="))
        .map_or(0, |token| token.parse().unwrap());
    let page = behaviour.page.unwrap_or(1000);
    let object = |(name, bytes): (&String, &Vec<u8>)| {
        let (size, tag) = (bytes.len(), tag(bytes));
        format!(
            "<Contents><Key>models/tiny/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>{tag}</ETag><Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    };
    let objects: String = behaviour.files.iter().skip(from).take(page).map(object).collect();
    let rest = from + page < behaviour.files.len();
    let next = if rest {
        format!("<NextContinuationToken>{}</NextContinuationToken>", from + page)
    } else {
        String::new()
    };
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name>\
         <Prefix>models/tiny/</Prefix><MaxKeys>{page}</MaxKeys><IsTruncated>{rest}</IsTruncated>{next}{objects}\
         </ListBucketResult>"
    )
}

fn tag(bytes: &[u8]) -> String {
    format!("&quot;{}-{}&quot;", bytes.len(), bytes.first().copied().unwrap_or(0))
}

fn send(behaviour: &mut ServerBehavior, file: Vec<u8>, range: Option<&str>, headers: &HeaderMap) -> Response {
    let wanted = headers.get(header::IF_MATCH).map(|tag| tag.to_str().unwrap().replace('"', "&quot;"));
    if wanted.is_some_and(|wanted| wanted != tag(&file)) {
        return StatusCode::PRECONDITION_FAILED.into_response();
    }
    let asked = range.filter(|_| !behaviour.ignores_ranges).map(bounds);
    if asked.is_some_and(|(from, _)| from >= file.len()) {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let status = if asked.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let (from, end) = asked.unwrap_or((0, usize::MAX));
    let rest = file[from..end.min(file.len())].to_vec();
    let length = [(header::CONTENT_LENGTH, rest.len())];
    if behaviour.truncated_responses > 0 && rest.len() > 1000 {
        behaviour.truncated_responses -= 1;
        let half = rest[..rest.len() / 2].to_vec();
        // The delay lets the first half reach the client before the connection breaks.
        let cut = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Err(std::io::Error::other("the line is cut"))
        };
        let broken = stream::once(async { Ok(half) }).chain(stream::once(cut));
        return (status, length, Body::from_stream(broken)).into_response();
    }
    if behaviour.is_endless {
        let more = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![0; 1 << 16]));
        return (status, Body::from_stream(stream::once(async { Ok(rest) }).chain(more))).into_response();
    }
    (status, length, rest).into_response()
}

/// Returns the first byte of `bytes=A-` or `bytes=A-B` and the byte after the last one.
fn bounds(range: &str) -> (usize, usize) {
    let (from, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    (from.parse().unwrap(), last.parse().map_or(usize::MAX, |last: usize| last + 1))
}
