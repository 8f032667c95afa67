//! HTTP client for the admin ports of peers.

mod call_limiter;
mod static_resolver;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{StatusCode, header};
use reqwest::{RequestBuilder, Response};
use rustls::ClientConfig;
use sluice_wire::State;
use sluice_wire::config::admin_host;
use sluice_wire::directive::PeerInfo;
use sluice_wire::grants::{GrantAnswer, GrantRequest};
use sluice_wire::message::ReadError;

use self::call_limiter::CallLimiter;
use self::static_resolver::StaticResolver;
use crate::admin::tls::{Tls, TlsConfigs, client_without_roots};
use crate::root_cause::root_cause;

/// Maximum size of a state in bytes.
const MAX_STATE_BYTES: usize = 4 << 20;
/// Maximum size of any other answer in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Timeout for a connection, independent of the timeout for the answer.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Idle time after which a connection is closed. It is shorter than the server's, so that the client closes first.
const IDLE_TIMEOUT: Duration = Duration::from_secs(8);

/// Credential for calls to peers.
#[derive(Clone)]
pub enum PeerCredential {
    /// No credential. Peers refuse the calls.
    Nothing,
    /// Token that the peers of the GPU know, sent over plain HTTP.
    Token(String),
    /// Certificate of this sidecar.
    Certificate(Arc<Tls>),
}

impl std::fmt::Debug for PeerCredential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PeerCredential::Nothing => "Nothing",
            PeerCredential::Token(_) => "Token(secret)",
            PeerCredential::Certificate(_) => "Certificate",
        })
    }
}

/// Reason why a call gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The token may be sent only within this machine, so nothing was sent.
    #[error("{address} is not on this machine; peers on other machines need certificates")]
    NotLocal {
        /// Address of the peer.
        address: SocketAddr,
    },
    /// The peer did not answer in time.
    #[error("{address} did not answer within {} ms", patience.as_millis())]
    Timeout {
        /// Address of the peer.
        address: SocketAddr,
        /// Timeout of the call.
        patience: Duration,
    },
    /// The connection failed.
    #[error("{address}: {problem}")]
    Transport {
        /// Address of the peer.
        address: SocketAddr,
        /// Cause.
        problem: String,
    },
    /// The peer answered with an error status.
    #[error("{address} answered {status}: {text}")]
    Status {
        /// Address of the peer.
        address: SocketAddr,
        /// HTTP status.
        status: u16,
        /// Beginning of the response text.
        text: String,
    },
    /// The response exceeds the size limit.
    #[error("the answer of {address} exceeds {limit_bytes} bytes")]
    TooLong {
        /// Address of the peer.
        address: SocketAddr,
        /// Size limit in bytes.
        limit_bytes: usize,
    },
    /// The response is invalid.
    #[error("{address}: {error}")]
    Read {
        /// Address of the peer.
        address: SocketAddr,
        /// Problem with the response.
        #[source]
        error: ReadError,
    },
    /// Another tenant answered at this address.
    #[error("the tenant at {address} is {found}, not {wanted}")]
    WrongTenant {
        /// Address of the call.
        address: SocketAddr,
        /// Expected tenant, `namespace/name`.
        wanted: String,
        /// Tenant that answered.
        found: String,
    },
}

/// Client for calls to peers. It keeps connections between calls.
pub struct PeerClient {
    credential: PeerCredential,
    resolver: StaticResolver,
    call_limiter: CallLimiter,
    http: Mutex<HttpClient>,
}

/// HTTP client, and the TLS configuration that it was built with.
struct HttpClient {
    tls: Option<Arc<ClientConfig>>,
    client: reqwest::Client,
}

impl std::fmt::Debug for PeerClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("credential", &self.credential).finish_non_exhaustive()
    }
}

impl PeerClient {
    /// Creates a client that authenticates with `credential`.
    pub fn new(credential: PeerCredential) -> Self {
        let (names, tls) = (StaticResolver::default(), current_tls(&credential));
        let http = HttpClient { client: build_http(tls.as_deref(), &names), tls };
        PeerClient {
            credential,
            resolver: names,
            call_limiter: CallLimiter::default(),
            http: Mutex::new(http),
        }
    }

    /// Returns the state of `peer`.
    ///
    /// # Errors
    /// No valid state arrives within `patience`.
    pub async fn state(&self, peer: &PeerInfo, patience: Duration) -> Result<State, CallError> {
        let request = self.http().get(self.url(peer, "/v1/state"));
        let address = peer.admin;
        let call = self.call(peer, request, MAX_STATE_BYTES);
        let text = with_timeout(address, patience, call).await?;
        let state = State::from_json(&text).map_err(|error| CallError::Read { address, error })?;
        check_tenant(peer, &state.tenant.namespace, &state.tenant.name)?;
        Ok(state)
    }

    /// Sends `request` and returns the answer of `peer`. After an error it may be unknown whether the loan was
    /// granted. Then the caller must send `Cancel`.
    ///
    /// # Errors
    /// No answer within `patience`, or none that matches `request`.
    pub async fn grant(
        &self,
        peer: &PeerInfo,
        request: &GrantRequest,
        chunk_bytes: u64,
        patience: Duration,
    ) -> Result<GrantAnswer, CallError> {
        let http = self.http().post(self.url(peer, "/v1/grants")).body(request.to_json());
        let http = http.header(header::CONTENT_TYPE, "application/json");
        let address = peer.admin;
        let call = async {
            let _lane = self.call_limiter.acquire(address).await;
            self.call(peer, http, MAX_ANSWER_BYTES).await
        };
        // The timeout includes the wait for other calls.
        let text = with_timeout(address, patience, call).await?;
        let answer = GrantAnswer::from_json(&text, request, chunk_bytes)
            .map_err(|error| CallError::Read { address, error })?;
        if let GrantAnswer::Granted { lender, .. } = &answer {
            check_tenant(peer, &lender.namespace, &lender.name)?;
        }
        Ok(answer)
    }

    async fn call(
        &self,
        peer: &PeerInfo,
        request: RequestBuilder,
        limit_bytes: usize,
    ) -> Result<Vec<u8>, CallError> {
        let address = peer.admin;
        let request = match &self.credential {
            PeerCredential::Token(_) if !address.ip().is_loopback() => {
                return Err(CallError::NotLocal { address });
            }
            PeerCredential::Token(token) => request.bearer_auth(token),
            PeerCredential::Nothing | PeerCredential::Certificate(_) => request,
        };
        send_request(request, address, limit_bytes).await
    }

    /// Returns the URL: by address for plain HTTP, and by name for TLS, so that the certificate must be that peer's.
    fn url(&self, peer: &PeerInfo, path: &str) -> String {
        let address = peer.admin;
        if !matches!(self.credential, PeerCredential::Certificate(_)) {
            return format!("http://{address}{path}");
        }
        let host = admin_host(&peer.namespace, &peer.name);
        self.resolver.set(&host, address.ip());
        format!("https://{host}:{}{path}", address.port())
    }

    /// Returns the HTTP client for a call. Builds a new one if the certificate has changed.
    fn http(&self) -> reqwest::Client {
        let tls = current_tls(&self.credential);
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&http.tls, &tls) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            *http = HttpClient { client: build_http(tls.as_deref(), &self.resolver), tls };
        }
        http.client.clone()
    }
}

fn current_tls(credential: &PeerCredential) -> Option<Arc<ClientConfig>> {
    let PeerCredential::Certificate(tls) = credential else { return None };
    let TlsConfigs { client, .. } = tls.configs().borrow().clone();
    Some(client)
}

fn build_http(tls: Option<&ClientConfig>, names: &StaticResolver) -> reqwest::Client {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.cloned().unwrap_or_else(client_without_roots))
        .dns_resolver(names.clone())
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(call_limiter::MAX_CONCURRENT_CALLS)
        .http1_only()
        .build()
        .expect("a client with fixed settings and valid TLS can be created")
}

/// Runs `call` with the timeout `patience`.
async fn with_timeout<T>(
    address: SocketAddr,
    patience: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(patience, call).await;
    answer.unwrap_or(Err(CallError::Timeout { address, patience }))
}

async fn send_request(
    request: RequestBuilder,
    address: SocketAddr,
    limit_bytes: usize,
) -> Result<Vec<u8>, CallError> {
    let broken = |error: reqwest::Error| CallError::Transport { address, problem: root_cause(&error) };
    let response = request.send().await.map_err(broken)?;
    let status = response.status();
    let text = read_bounded(response, limit_bytes).await.map_err(broken)?;
    let text = text.ok_or(CallError::TooLong { address, limit_bytes })?;
    if status == StatusCode::OK {
        return Ok(text);
    }
    let text = String::from_utf8_lossy(&text).chars().take(200).collect();
    Err(CallError::Status { address, status: status.as_u16(), text })
}

/// Reads the response. `None` if it is longer than `limit_bytes`.
async fn read_bounded(mut response: Response, limit_bytes: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if text.len() + piece.len() > limit_bytes {
            return Ok(None);
        }
        text.extend_from_slice(&piece);
    }
    Ok(Some(text))
}

fn check_tenant(peer: &PeerInfo, namespace: &str, name: &str) -> Result<(), CallError> {
    if (namespace, name) == (&peer.namespace, &peer.name) {
        return Ok(());
    }
    Err(CallError::WrongTenant {
        address: peer.admin,
        wanted: format!("{}/{}", peer.namespace, peer.name),
        found: format!("{namespace:.80}/{name:.80}"),
    })
}
