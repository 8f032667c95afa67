//! Stubs of sidecars' admin ports: real mutual TLS, with answers that the test chooses.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sluice_operator::credentials::ca::CaBundle;
use sluice_operator::credentials::issue::CertNames;
use sluice_operator::credentials::renewal::{Credentials, renew_if_due};
use sluice_operator::sidecars::http_client::SidecarAddress;
use sluice_operator::sidecars::tls::client_config;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Returns the current time, at which all certificates of a test are valid.
pub fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_secs() as i64
}

pub fn credentials(authorities: &CaBundle, names: &CertNames) -> Credentials {
    renew_if_due(None, names, authorities, now()).unwrap().expect("a missing certificate is always issued")
}

pub fn operator_client_config(authorities: &CaBundle) -> Arc<ClientConfig> {
    client_config(&credentials(authorities, &CertNames::operator())).unwrap()
}

/// Returns a sidecar's server configuration, which requires a client certificate of a known authority.
pub fn server_config(held: &Credentials) -> Arc<ServerConfig> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(held.bundle.as_bytes()) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let chain = CertificateDer::pem_slice_iter(held.identity.cert.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(held.identity.key.as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(config.with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap())
}

/// A received request.
#[derive(Clone, Debug)]
pub struct StubRequest {
    pub line: String,
    pub if_none_match: Option<String>,
    pub body: String,
}

type ResponseScript = Arc<Mutex<Box<dyn FnMut(&StubRequest) -> Response + Send>>>;

/// A stub of a sidecar.
pub struct StubSidecar {
    pub address: SidecarAddress,
    pub requests: Arc<Mutex<VecDeque<StubRequest>>>,
}

impl StubSidecar {
    /// Starts the sidecar of `ns/name`, which answers with the results of `script`.
    pub async fn start(
        authorities: &CaBundle,
        name: &str,
        script: impl FnMut(&StubRequest) -> Response + Send + 'static,
    ) -> StubSidecar {
        StubSidecar::start_in_namespace(authorities, "ns", name, script).await
    }

    /// Starts the sidecar of `namespace/name`, which answers with the results of `script`.
    pub async fn start_in_namespace(
        authorities: &CaBundle,
        namespace: &str,
        name: &str,
        script: impl FnMut(&StubRequest) -> Response + Send + 'static,
    ) -> StubSidecar {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let admin = listener.local_addr().unwrap();
        let tls = server_config(&credentials(
            authorities,
            &CertNames::slot(namespace, name, "p-chat-0-e1.uid-of-p"),
        ));
        let seen: Arc<Mutex<VecDeque<StubRequest>>> = Arc::default();
        let script: ResponseScript = Arc::new(Mutex::new(Box::new(script)));
        let router = Router::new().fallback(answer).with_state((seen.clone(), script));
        tokio::spawn(serve(listener, tls, router));
        StubSidecar {
            address: SidecarAddress { namespace: namespace.into(), name: name.into(), admin_addr: admin },
            requests: seen,
        }
    }

    pub fn take_requests(&self) -> Vec<StubRequest> {
        self.requests.lock().unwrap().iter().cloned().collect()
    }
}

async fn serve(listener: TcpListener, tls: Arc<ServerConfig>, router: Router) {
    loop {
        let (socket, _): (_, SocketAddr) = listener.accept().await.unwrap();
        let (acceptor, service) = (TlsAcceptor::from(tls.clone()), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client may close the connection early.
            let _ = connection.await;
        });
    }
}

async fn answer(
    State((seen, script)): State<(Arc<Mutex<VecDeque<StubRequest>>>, ResponseScript)>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap();
    let tag = parts.headers.get("if-none-match").map(|tag| tag.to_str().unwrap().to_owned());
    let came = StubRequest { line: format!("{} {}", parts.method, parts.uri), if_none_match: tag, body };
    let answer = script.lock().unwrap()(&came);
    seen.lock().unwrap().push_back(came);
    answer.into_response()
}
