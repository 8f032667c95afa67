//! A hub of models with the API that `sluice-sidecar` uses: the files of a revision, complete or as a range. Tests choose
//! its faults.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, future, stream};
use http::{HeaderMap, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// The only commit of its repository.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Name of the weights.
pub const WEIGHTS: &str = "model.safetensors";

/// Time that half of the weights gets to reach its client.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// Files, faults, and what was asked.
#[derive(Debug, Default)]
struct Inside {
    files: BTreeMap<String, Bytes>,
    /// Files that are listed with a length, and cannot be had.
    promised: BTreeMap<String, u64>,
    /// Token that requests must have.
    token: Option<String>,
    /// Whether the reported digest of weights is wrong.
    corrupts: bool,
    /// Downloads of weights stop after this many bytes and stay open.
    stop_after: Option<u64>,
    /// Number of downloads of weights that break off half way.
    breaks: u32,
    /// Ranges of the downloads of weights; those of an inspection have an end and are not counted.
    downloads: Vec<String>,
    /// The header `authorization` of each request that has one.
    tokens: Vec<String>,
}

/// What its requests share.
#[derive(Debug)]
struct Served {
    repo: &'static str,
    inside: Mutex<Inside>,
}

/// A running hub with one repository. It ends with this value.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    served: Arc<Served>,
    _running: oneshot::Sender<()>,
}

impl Hub {
    /// Serves `files` as the repository `repo`, to clients that reach this machine at `address`.
    ///
    /// # Panics
    /// If `address` is none, or no port is free.
    pub fn start(address: &str, repo: &'static str, files: BTreeMap<String, Bytes>) -> Hub {
        let inside = Mutex::new(Inside { files, ..Inside::default() });
        let served = Arc::new(Served { repo, inside });
        let (running, dropped) = oneshot::channel::<()>();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&served));
        Hub { endpoint: serve(address, router, dropped), served, _running: running }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inside) -> T) -> T {
        self.served.with(work)
    }

    /// URL of the hub.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Length of a file.
    pub fn length(&self, name: &str) -> u64 {
        self.with(|inside| inside.files[name].len() as u64)
    }

    /// From now on, requests must have this token.
    pub fn require(&self, token: &str) {
        self.with(|inside| inside.token = Some(token.to_owned()));
    }

    /// From now on, the reported digest of weights is wrong.
    pub fn corrupt(&self) {
        self.with(|inside| inside.corrupts = true);
    }

    /// From now on, downloads of weights stop after this many bytes and stay open; `None` = they are complete.
    pub fn stop_after(&self, bytes: Option<u64>) {
        self.with(|inside| inside.stop_after = bytes);
    }

    /// The next `times` downloads of weights break off half way.
    pub fn break_off(&self, times: u32) {
        self.with(|inside| inside.breaks = times);
    }

    /// Lists a file of `bytes` that cannot be downloaded.
    pub fn promise(&self, name: &str, bytes: u64) {
        self.with(|inside| inside.promised.insert(name.to_owned(), bytes));
    }

    /// Replaces a file.
    pub fn write(&self, name: &str, text: &str) {
        self.with(|inside| inside.files.insert(name.to_owned(), text.to_owned().into()));
    }

    /// The header `authorization` of each request so far that has one.
    pub fn tokens(&self) -> Vec<String> {
        self.with(|inside| inside.tokens.clone())
    }

    /// Ranges of the downloads of weights so far; "" = all of it.
    pub fn downloads(&self) -> Vec<String> {
        self.with(|inside| inside.downloads.clone())
    }
}

impl Served {
    fn with<T>(&self, work: impl FnOnce(&mut Inside) -> T) -> T {
        work(&mut self.inside.lock().expect("no request panics"))
    }
}

/// Serves `router` at a free port until `ended`, on its own thread in the network of this thread. Returns the URL for
/// clients that reach this machine at `address`, which need not be an address of this machine.
///
/// # Panics
/// If `address` is none, or no port is free.
pub fn serve(address: &str, router: Router, ended: impl Future + Send + 'static) -> String {
    let address: IpAddr = address.parse().expect("an address");
    let any: IpAddr = match address {
        _ if address.is_loopback() => address,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let listener = std::net::TcpListener::bind((any, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    listener.set_nonblocking(true).expect("a socket need not block");
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it listens");
            let serving = pin!(axum::serve(listener, router).into_future());
            future::select(serving, pin!(ended)).await;
        });
    });
    format!("http://{}", SocketAddr::new(address, port))
}

/// The files of a folder, by name.
///
/// # Panics
/// If one cannot be read.
pub fn read(folder: &Path) -> BTreeMap<String, Bytes> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let file = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("UTF-8");
        (name, std::fs::read(entry.path()).expect("a file").into())
    };
    entries.map(file).collect()
}

async fn answer(State(served): State<Arc<Served>>, request: Request) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    let shown = headers.get(header::AUTHORIZATION).and_then(|shown| shown.to_str().ok());
    served.with(|inside| {
        inside.tokens.extend(shown.map(str::to_owned));
        let wanted = inside.token.as_ref().map(|token| format!("Bearer {token}"));
        if wanted.is_some() && shown != wanted.as_deref() {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        if path.starts_with(&format!("/api/models/{}/revision/", served.repo)) {
            return axum::Json(revision(inside)).into_response();
        }
        let file = path.strip_prefix(&format!("/{}/resolve/{COMMIT}/", served.repo));
        let Some((name, bytes)) = file.and_then(|name| Some((name, inside.files.get(name)?.clone()))) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        if name == WEIGHTS { send_weights(inside, &bytes, headers) } else { part(&bytes, headers) }
    })
}

fn revision(inside: &Inside) -> Value {
    let held = inside.files.iter().map(|(name, bytes)| {
        let digest = if inside.corrupts && name == WEIGHTS { "0".repeat(64) } else { sha256(bytes) };
        json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": digest, "size": bytes.len()}})
    });
    let promised = inside.promised.iter().map(|(name, bytes)| json!({"rfilename": name, "size": bytes}));
    json!({"sha": COMMIT, "siblings": held.chain(promised).collect::<Vec<_>>()})
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn send_weights(inside: &mut Inside, bytes: &Bytes, headers: &HeaderMap) -> Response {
    let range = bounds(headers);
    if range.is_some_and(|(_, last)| !last.is_empty()) {
        return part(bytes, headers);
    }
    inside.downloads.push(range.map_or(String::new(), |(from, _)| format!("bytes={from}-")));
    let from: usize = range.map_or(0, |(from, _)| from.parse().expect("a number"));
    let rest = bytes.slice(from.min(bytes.len())..);
    let stop = inside.stop_after.map(|stop| (stop as usize, false));
    let stop = if inside.breaks > 0 { Some((rest.len() / 2, true)) } else { stop };
    let Some((sent, breaks)) = stop else { return part(bytes, headers) };
    inside.breaks = inside.breaks.saturating_sub(1);
    let status = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    (status, [(header::CONTENT_LENGTH, rest.len())], begun(rest.slice(..sent), breaks)).into_response()
}

/// Returns a body that begins with `bytes`, and then breaks off or stands still.
fn begun(bytes: Bytes, breaks: bool) -> Body {
    let then = async move {
        if breaks {
            // A server drops what it has not sent when the next part is an error.
            tokio::time::sleep(ON_ITS_WAY).await;
            return Err(std::io::Error::other("the line is cut"));
        }
        std::future::pending().await
    };
    Body::from_stream(stream::once(async { Ok(bytes) }).chain(stream::once(then)))
}

/// Returns the requested range: its first and last byte as text.
fn bounds(headers: &HeaderMap) -> Option<(&str, &str)> {
    headers.get(header::RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')
}

/// Returns a complete file, or the requested range.
///
/// # Panics
/// If the range has no first byte.
pub fn part(bytes: &Bytes, headers: &HeaderMap) -> Response {
    let Some((from, to)) = bounds(headers) else { return bytes.clone().into_response() };
    let last = bytes.len() - 1;
    let (from, to): (usize, usize) =
        (from.parse().expect("a first byte"), to.parse().unwrap_or(last).min(last));
    if from > to {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let range = format!("bytes {from}-{to}/{}", bytes.len());
    (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, range)], bytes.slice(from..=to)).into_response()
}
