//! All sidecars of a cluster behind one listener: the host name of the TLS connection selects the sidecar.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use axum::body::{Body, to_bytes};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use sluice_wire::state::{GpuState, Move, Phase, Residency, State, TenantReport};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Largest directive, bytes.
const MOST_BYTES: usize = 1 << 20;
/// Layers of a tenant's model, and moves that a sidecar reports.
const LAYERS: usize = 32;
const MOVES: u64 = 16;
/// Time of all past events, milliseconds since 1970.
const LONG_AGO: u64 = 1_767_225_600_000;

/// A sidecar.
#[derive(Clone, Debug)]
pub struct Sidecar {
    /// Namespace of its tenant.
    pub namespace: String,
    /// Its tenant.
    pub tenant: String,
    /// Its GPU, as a number.
    pub gpu: usize,
}

/// Certificate chain, key and authorities of a sidecar, PEM.
pub struct Credentials<'a> {
    /// The chain.
    pub cert: &'a [u8],
    /// The key.
    pub key: &'a [u8],
    /// The authorities that it trusts.
    pub bundle: &'a [u8],
}

#[derive(Debug, Default)]
struct KnownSidecars {
    /// Certificate and sidecar by TLS host name.
    hosts: HashMap<String, (Arc<CertifiedKey>, Arc<Sidecar>)>,
    /// Sidecars of each GPU.
    gpus: HashMap<usize, Vec<Arc<Sidecar>>>,
}

#[derive(Debug, Default)]
struct Shared {
    known: RwLock<KnownSidecars>,
    tls: OnceLock<Arc<ServerConfig>>,
    reads: Vec<AtomicU64>,
    directives: AtomicU64,
    handshakes: AtomicU64,
}

/// All sidecars.
pub struct Stub {
    shared: Arc<Shared>,
    port: u16,
}

impl Stub {
    /// Starts a listener without sidecars, for `gpus` GPUs.
    pub async fn start(gpus: usize) -> Stub {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let reads = (0..gpus).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { reads, ..Shared::default() });
        tokio::spawn(serve(listener, shared.clone()));
        Stub { shared, port }
    }

    /// Port of the listener, on every address of this machine.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Adds a sidecar with these credentials.
    pub fn add(&self, host: String, sidecar: Sidecar, credentials: &Credentials<'_>) {
        let shared = &self.shared;
        shared.tls.get_or_init(|| config(credentials.bundle, shared));
        let sidecar = Arc::new(sidecar);
        let mut known = shared.known.write().unwrap_or_else(PoisonError::into_inner);
        known.gpus.entry(sidecar.gpu).or_default().push(sidecar.clone());
        known.hosts.insert(host, (certified(credentials), sidecar));
    }

    /// Number of answered readings per GPU so far.
    pub fn reads(&self) -> Vec<u64> {
        self.shared.reads.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Number of directives so far.
    pub fn directives(&self) -> u64 {
        self.shared.directives.load(Ordering::Relaxed)
    }

    /// Number of mutual TLS handshakes so far.
    pub fn handshakes(&self) -> u64 {
        self.shared.handshakes.load(Ordering::Relaxed)
    }
}

fn certified(credentials: &Credentials<'_>) -> Arc<CertifiedKey> {
    let chain = CertificateDer::pem_slice_iter(credentials.cert).map(|one| one.expect("a certificate"));
    let key = PrivateKeyDer::from_pem_slice(credentials.key).expect("a key");
    let key = ring::sign::any_supported_type(&key).expect("a key that signs");
    Arc::new(CertifiedKey::new(chain.collect(), key))
}

/// Same as a sidecar: only clients with a certificate of the bundle's authorities are accepted.
fn config(bundle: &[u8], shared: &Arc<Shared>) -> Arc<ServerConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle) {
        roots.add(authority.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build();
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS13]);
    let config =
        config.expect("ring knows TLS 1.3").with_client_cert_verifier(verifier.expect("an authority"));
    Arc::new(config.with_cert_resolver(Arc::new(ByName(Arc::downgrade(shared)))))
}

#[derive(Debug)]
struct ByName(std::sync::Weak<Shared>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shared = self.0.upgrade()?;
        let known = shared.known.read().unwrap_or_else(PoisonError::into_inner);
        known.hosts.get(hello.server_name()?).map(|(key, _)| key.clone())
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        // Before the first sidecar is added there is no certificate.
        if let Some(tls) = shared.tls.get() {
            tokio::spawn(connection(socket, TlsAcceptor::from(tls.clone()), shared.clone()));
        }
    }
}

async fn connection(socket: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(stream) = acceptor.accept(socket).await else { return };
    shared.handshakes.fetch_add(1, Ordering::Relaxed);
    let host = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
    let answered = service_fn(|request| answer(request, &host, &shared));
    // The error of a client that has closed the connection is ignored.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answered).await;
}

async fn answer(
    request: Request<Incoming>,
    host: &str,
    shared: &Shared,
) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    let Some(sidecar) = shared.sidecar(host) else { return Ok(plain(StatusCode::NOT_FOUND)) };
    if parts.method == Method::PUT {
        let body = to_bytes(Body::new(body), MOST_BYTES).await.unwrap_or_default();
        let directive: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        shared.directives.fetch_add(1, Ordering::Relaxed);
        let current = json!({"current": {"epoch": directive["epoch"], "sequence": directive["sequence"]}});
        return Ok(Response::new(Body::from(current.to_string())));
    }
    shared.reads[sidecar.gpu].fetch_add(1, Ordering::Relaxed);
    let (tenants, tag) = shared.tenants(sidecar.gpu);
    if parts.headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        return Ok(plain(StatusCode::NOT_MODIFIED));
    }
    let body = serde_json::to_vec(&GpuState { tenants, ..GpuState::default() }).expect("a state serialises");
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::ETAG, tag);
    Ok(response)
}

fn plain(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

impl Shared {
    fn sidecar(&self, host: &str) -> Option<Arc<Sidecar>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.hosts.get(host).map(|(_, sidecar)| sidecar.clone())
    }

    /// Returns the reports of a GPU's tenants and their ETag: only an added tenant changes them.
    fn tenants(&self, gpu: usize) -> (Vec<TenantReport>, HeaderValue) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let report = |sidecar: &Arc<Sidecar>| TenantReport::State(Box::new(state(sidecar)));
        let tenants: Vec<_> = known.gpus.get(&gpu).into_iter().flatten().map(report).collect();
        let tag = HeaderValue::try_from(format!("W/\"{}\"", tenants.len())).expect("digits");
        (tenants, tag)
    }
}

/// Returns the state of a tenant that became idle long ago, after some moves.
fn state(sidecar: &Sidecar) -> State {
    let mut state = State::default();
    (state.at_unix_ms, state.phase_since_unix_ms) = (LONG_AGO, LONG_AGO);
    (state.phase, state.idle_since_unix_ms) = (Phase::Idle, Some(LONG_AGO));
    (state.tenant.namespace, state.tenant.name) = (sidecar.namespace.clone(), sidecar.tenant.clone());
    (state.tenant.model, state.tenant.gpu) = (sidecar.tenant.clone(), format!("p-chat-{}", sidecar.gpu));
    state.policy = "Unified".to_owned();
    state.layers = vec![Residency::Resident; LAYERS];
    state.memory.owners.weights_layers_bytes = 8 << 20;
    state.memory.owners.kv_bytes = 4 << 20;
    state.activity.inactive_since_unix_ms = Some(LONG_AGO);
    state.activity.last_used_unix_ms = Some(LONG_AGO);
    state.moves = (0..MOVES).map(moved_response).collect();
    state
}

fn moved_response(number: u64) -> Move {
    Move {
        at_unix_ms: LONG_AGO + number * 1000,
        reason: "remap_for_growth".to_owned(),
        detail: "layers left for the KV of 3 requests".to_owned(),
        layers: vec![1, 2, 3, 4],
        ..Move::default()
    }
}
