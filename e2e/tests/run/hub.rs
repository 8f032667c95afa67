//! A hub with one model, as far as downloads need it: a revision, files by ranges, and lines that stand still or break.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The one repository.
pub const REPO: &str = "org/tiny";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const WEIGHTS: &str = "model.safetensors";

#[derive(Debug, Default)]
struct Behaviour {
    files: BTreeMap<String, Vec<u8>>,
    /// Files that are listed with a length, and cannot be had.
    promised: BTreeMap<String, u64>,
    /// Downloads of the weights stop after this many bytes and stay open.
    stop_after: Option<u64>,
    /// Number of downloads of the weights that break off half way.
    breaks: u32,
    /// Ranges of the downloads of the weights; those of an inspection have an end and are not counted.
    downloads: Vec<String>,
    /// The header `authorization` of each request that has one.
    tokens: Vec<String>,
}

type Shared = Arc<Mutex<Behaviour>>;

/// The hub. It ends with this value.
#[derive(Debug)]
pub struct Hub {
    address: SocketAddr,
    behaviour: Shared,
    serving: JoinHandle<()>,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Hub {
    /// A hub with the files of `folder`.
    pub async fn start(folder: &Path) -> Hub {
        let files = std::fs::read_dir(folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())
        });
        let behaviour = Shared::new(Mutex::new(Behaviour { files: files.collect(), ..Behaviour::default() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(answer).with_state(behaviour.clone());
        let serving = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Hub { address, behaviour, serving }
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Length of the weights.
    pub fn weights_bytes(&self) -> u64 {
        self.behaviour.lock().unwrap().files[WEIGHTS].len() as u64
    }

    /// From now on downloads of the weights stop after this many bytes and stay open; `None` = they are complete.
    pub fn stop_after(&self, bytes: Option<u64>) {
        self.behaviour.lock().unwrap().stop_after = bytes;
    }

    /// The next `times` downloads of the weights break off half way.
    pub fn break_off(&self, times: u32) {
        self.behaviour.lock().unwrap().breaks = times;
    }

    /// Lists a file of `bytes` that cannot be downloaded.
    pub fn promise(&self, name: &str, bytes: u64) {
        self.behaviour.lock().unwrap().promised.insert(name.into(), bytes);
    }

    /// Replaces a file.
    pub fn write(&self, name: &str, text: &str) {
        self.behaviour.lock().unwrap().files.insert(name.into(), text.into());
    }

    /// The header `authorization` of each request so far that has one.
    pub fn tokens(&self) -> Vec<String> {
        self.behaviour.lock().unwrap().tokens.clone()
    }

    /// Ranges of the downloads of the weights so far; "" = all of it.
    pub fn downloads(&self) -> Vec<String> {
        self.behaviour.lock().unwrap().downloads.clone()
    }
}

async fn answer(State(shared): State<Shared>, request: Request) -> Response {
    let path = request.uri().path();
    let mut behaviour = shared.lock().unwrap();
    let token = request.headers().get(header::AUTHORIZATION);
    behaviour.tokens.extend(token.map(|token| token.to_str().unwrap().to_owned()));
    if path.starts_with(&format!("/api/models/{REPO}/revision/")) {
        return axum::Json(revision(&behaviour)).into_response();
    }
    let Some(name) = path.strip_prefix(&format!("/{REPO}/resolve/{COMMIT}/")) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let range = request.headers().get(header::RANGE).map(|range| range.to_str().unwrap().to_owned());
    send(&mut behaviour, name, &range.unwrap_or_default())
}

fn revision(behaviour: &Behaviour) -> Value {
    let held = behaviour.files.iter().map(|(name, bytes)| {
        let sha256: String =
            digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": sha256, "size": bytes.len()}})
    });
    let promised = behaviour.promised.iter().map(|(name, bytes)| json!({"rfilename": name, "size": bytes}));
    json!({"sha": COMMIT, "siblings": held.chain(promised).collect::<Vec<_>>()})
}

fn send(behaviour: &mut Behaviour, name: &str, range: &str) -> Response {
    let Some(file) = behaviour.files.get(name).cloned() else { return StatusCode::NOT_FOUND.into_response() };
    let bounds = range.strip_prefix("bytes=").map(|range| range.split_once('-').unwrap());
    let (from, last) = bounds.unwrap_or(("0", ""));
    let from: usize = from.parse().unwrap();
    let end = last.parse().map_or(file.len(), |last: usize| (last + 1).min(file.len()));
    let status = if bounds.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let (rest, length) = (file[from..end].to_vec(), [(header::CONTENT_LENGTH, end - from)]);
    if name != WEIGHTS || !last.is_empty() {
        return (status, length, rest).into_response();
    }
    behaviour.downloads.push(range.to_owned());
    if behaviour.breaks > 0 {
        behaviour.breaks -= 1;
        return (status, length, first(&rest[..rest.len() / 2], true)).into_response();
    }
    match behaviour.stop_after {
        Some(bytes) => (status, length, first(&rest[..bytes as usize], false)).into_response(),
        None => (status, length, rest).into_response(),
    }
}

/// Returns a body that begins with `bytes`, and then breaks off or stalls.
fn first(bytes: &[u8], breaks: bool) -> Body {
    let bytes = bytes.to_vec();
    let then = async move {
        // The bytes must be sent first: hyper flushes a body that is pending.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        if breaks { Err(std::io::Error::other("the line is cut")) } else { std::future::pending().await }
    };
    Body::from_stream(stream::once(async { Ok(bytes) }).chain(stream::once(then)))
}
