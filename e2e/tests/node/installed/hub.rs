//! A hub of models with the API that `sluice-sidecar` uses: the files of a revision, each complete or as a range.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path as Matched, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::{Product, binary};

/// Template that repeats the prompt as [`Product::complete`](super::Product::complete) sends it, so that the
/// answers are equal.
const PLAIN: &str = "<s>{{ messages[0]['content'] }}";

/// A running hub. It ends with the process.
pub struct Hub {
    endpoint: String,
    inside: Arc<Inside>,
}

/// Fault of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HubBehaviour {
    /// No fault.
    Good,
    /// The first download of complete weights is cut in the middle.
    Cuts,
    /// It reports a wrong digest of weights.
    Corrupts,
}

/// Time that half of the weights gets to reach its client.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

struct Inside {
    /// Contents by name.
    files: BTreeMap<String, Bytes>,
    behaviour: HubBehaviour,
    whole_weights: AtomicUsize,
    rests: AtomicUsize,
}

/// The only commit of its repositories.
pub const COMMIT: &str = "0123456789012345678901234567890123456789";

/// A generated model of the small model's shape, with a seed whose answers are long.
const GENERATED: &str =
    "--layers 5 --hidden 64 --heads 8 --kv-heads 4 --intermediate 172 --max-positions 512 --dtype f32";

/// Returns a model, and the text that an independent implementation generates for "Once upon a time": the small
/// real model, or else a generated one without a known text.
///
/// # Panics
/// If `SLUICE_SHARED` names a folder without the model.
pub fn model() -> (PathBuf, Option<String>) {
    let Some(shared) = std::env::var_os("SLUICE_SHARED").map(PathBuf::from) else {
        return (generated().to_owned(), None);
    };
    let folder = shared.join("models/stories260k");
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let golden: Value = serde_json::from_str(&golden).unwrap();
    let of = golden.as_array().unwrap().iter().find(|one| one["prompt"] == "Once upon a time").unwrap();
    (folder, Some(of["text"].as_str().unwrap().to_owned()))
}

/// The generated model's folder.
fn generated() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("node-model");
        let mut generator = Command::new(binary("sluice-model-gen"));
        let output = generator.arg("--out").arg(&folder).args(GENERATED.split_whitespace()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

impl Product<'_> {
    /// Starts a hub with this model that pods can reach.
    pub async fn hub(&self, folder: &Path) -> Hub {
        Hub::start(&self.node.address_for_pods().await, folder, None, HubBehaviour::Good)
    }

    /// Same as [`Product::hub`], but the first download of weights is cut in the middle.
    pub async fn disconnecting_hub(&self, folder: &Path) -> Hub {
        Hub::start(&self.node.address_for_pods().await, folder, None, HubBehaviour::Cuts)
    }

    /// Same as [`Product::hub`], but the reported digest of weights is wrong.
    pub async fn corrupting_hub(&self, folder: &Path) -> Hub {
        Hub::start(&self.node.address_for_pods().await, folder, None, HubBehaviour::Corrupts)
    }

    /// Same as [`Product::hub`], but requires this token.
    pub async fn private_hub(&self, folder: &Path, token: &'static str) -> Hub {
        Hub::start(&self.node.address_for_pods().await, folder, Some(token), HubBehaviour::Good)
    }
}

impl Hub {
    /// Serves the files of `folder` as the repository `tests/story`, to clients that reach this machine at
    /// `address`. The chat template repeats the user's text.
    fn start(address: &str, folder: &Path, token: Option<&'static str>, manners: HubBehaviour) -> Hub {
        let mut files = read(folder);
        files.insert("chat_template.jinja".to_owned(), PLAIN.into());
        let (whole_weights, rests) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let inside = Arc::new(Inside { files, behaviour: manners, whole_weights, rests });
        let router = Router::new()
            .route("/api/models/tests/story/revision/{revision}", get(revision))
            .route("/tests/story/resolve/{revision}/{*file}", get(file))
            .with_state(Arc::clone(&inside))
            .layer(from_fn(move |request: Request, next: Next| async move {
                let shown = request.headers().get("authorization").and_then(|shown| shown.to_str().ok());
                match token.is_none_or(|token| shown == Some(&format!("Bearer {token}"))) {
                    true => next.run(request).await,
                    false => StatusCode::UNAUTHORIZED.into_response(),
                }
            }));
        Hub { endpoint: serve(address, router), inside }
    }

    /// URL of the hub.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Number of requests for complete weights; inspections request only their heads.
    pub fn downloads(&self) -> usize {
        self.inside.whole_weights.load(Ordering::Relaxed)
    }

    /// Number of requests for the second half of weights, or a part of it.
    pub fn rests(&self) -> usize {
        self.inside.rests.load(Ordering::Relaxed)
    }
}

/// Serves `router` at a free port, on its own thread in the network of this thread. Returns the URL for clients
/// that reach this machine at `address`, which need not be an address of this machine.
pub fn serve(address: &str, router: Router) -> String {
    let address: IpAddr = address.parse().unwrap();
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = std::net::TcpListener::bind((any, 0)).unwrap();
    let endpoint = format!("http://{}", SocketAddr::new(address, listener.local_addr().unwrap().port()));
    listener.set_nonblocking(true).unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    endpoint
}

/// The files of a folder, by name.
pub fn read(folder: &Path) -> BTreeMap<String, Bytes> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap().into()))
        .collect()
}

async fn revision(State(inside): State<Arc<Inside>>) -> axum::Json<Value> {
    let lies = |name: &str| inside.behaviour == HubBehaviour::Corrupts && is_weights(name);
    let sibling = |(name, bytes): (&String, &Bytes)| {
        let digest = if lies(name) { "0".repeat(64) } else { sha256(bytes) };
        json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": digest, "size": bytes.len()}})
    };
    let siblings: Vec<_> = inside.files.iter().map(sibling).collect();
    axum::Json(json!({"sha": COMMIT, "siblings": siblings}))
}

fn is_weights(name: &str) -> bool {
    name.ends_with(".safetensors")
}

fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn file(
    State(inside): State<Arc<Inside>>,
    Matched((_, name)): Matched<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let Some(bytes) = inside.files.get(&name) else { return StatusCode::NOT_FOUND.into_response() };
    match asked(&headers).and_then(|(from, _)| from.parse::<usize>().ok()) {
        None if is_weights(&name) => {
            let before = inside.whole_weights.fetch_add(1, Ordering::Relaxed);
            if inside.behaviour == HubBehaviour::Cuts && before == 0 {
                return cut(bytes);
            }
        }
        Some(from) if is_weights(&name) && from >= bytes.len() / 2 => {
            inside.rests.fetch_add(1, Ordering::Relaxed);
        }
        _ => {}
    }
    part(bytes, &headers)
}

/// Sends the first half of a file with the length of the whole file, and cuts the connection after it had time to
/// arrive.
fn cut(bytes: &Bytes) -> Response {
    let half = bytes.slice(..bytes.len() / 2);
    let end = async {
        // A server drops unsent data when the next part is an error.
        tokio::time::sleep(ON_ITS_WAY).await;
        Err(std::io::Error::other("cut"))
    };
    let parts = stream::once(async { Ok(half) }).chain(stream::once(end));
    ([("content-length", bytes.len().to_string())], Body::from_stream(parts)).into_response()
}

/// Returns the requested range: its first and last byte as text.
fn asked(headers: &HeaderMap) -> Option<(&str, &str)> {
    headers.get("range")?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')
}

/// Returns a complete file, or the requested range.
pub fn part(bytes: &Bytes, headers: &HeaderMap) -> Response {
    let Some((from, to)) = asked(headers) else { return bytes.clone().into_response() };
    let last = bytes.len() - 1;
    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap_or(last).min(last));
    if from > to {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    let range = format!("bytes {from}-{to}/{}", bytes.len());
    (StatusCode::PARTIAL_CONTENT, [("content-range", range)], bytes.slice(from..=to)).into_response()
}
