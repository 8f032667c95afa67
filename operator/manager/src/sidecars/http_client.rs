//! Sends one request to a sidecar, over a connection of its own.
//!
//! Thousands of sidecars are polled once in half a minute: open connections would save little and cost memory at both
//! ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sluice_wire::config::admin_host;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsConnector;

/// Maximum concurrent requests.
pub const MAX_CONCURRENT_REQUESTS: usize = 64;
/// Maximum size of an answer, bytes: states of 64 tenants with their last moves.
const MAX_BODY_BYTES: usize = 16 << 20;

/// A sidecar's admin port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SidecarAddress {
    /// Namespace of its tenant.
    pub namespace: String,
    /// Name of its tenant, which its certificate must have.
    pub name: String,
    /// Address of the admin API.
    pub admin_addr: SocketAddr,
}

impl std::fmt::Display for SidecarAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} at {}", self.namespace, self.name, self.admin_addr)
    }
}

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// There are no credentials yet.
    #[error("the operator has no certificate yet")]
    NoCredentials,
    /// The tenant's name is not a valid host name.
    #[error("`{0}` is not a valid host name")]
    Name(String),
    /// The connection failed, or one side rejected the other's certificate.
    #[error("{address}: {error}")]
    Connect {
        /// The called sidecar.
        address: SidecarAddress,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
    /// The connection broke.
    #[error("{address}: {problem}")]
    Protocol {
        /// The called sidecar.
        address: SidecarAddress,
        /// Cause.
        problem: String,
    },
    /// The sidecar did not answer in time.
    #[error("{address} did not answer within {} s", timeout.as_secs_f32())]
    Timeout {
        /// The called sidecar.
        address: SidecarAddress,
        /// Time limit.
        timeout: Duration,
    },
}

/// An answer.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// HTTP status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Bytes of the answer.
    pub body: Vec<u8>,
}

impl HttpAnswer {
    /// Returns the start of the text, for log lines and messages.
    pub fn summary(&self) -> String {
        String::from_utf8_lossy(&self.body).chars().take(300).collect()
    }
}

/// The client for requests to sidecars.
#[derive(Clone, Debug)]
pub struct Transport {
    credentials: watch::Receiver<Option<Arc<ClientConfig>>>,
    permits: Arc<Semaphore>,
    timeout: Duration,
    /// Port of all sidecars; `None` = the ports in their addresses.
    port: Option<u16>,
}

impl Transport {
    /// Returns a client with the latest of `credentials`. Each request has a timeout from the moment at which it may
    /// start.
    pub fn new(credentials: watch::Receiver<Option<Arc<ClientConfig>>>, patience: Duration) -> Transport {
        Transport {
            credentials,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_REQUESTS)),
            timeout: patience,
            port: None,
        }
    }

    /// Replaces the port of all addresses.
    #[must_use]
    pub fn with_port(self, port: u16) -> Transport {
        Transport { port: Some(port), ..self }
    }

    /// Waits until the operator has a client certificate.
    pub async fn wait_for_credentials(&self) {
        // The sender is dropped only when the process ends.
        let _ = self.credentials.clone().wait_for(Option::is_some).await;
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// The sidecar did not answer.
    pub async fn call(
        &self,
        address: &SidecarAddress,
        method: Method,
        path: &str,
        extra: HeaderMap,
        body: Vec<u8>,
    ) -> Result<HttpAnswer, CallError> {
        let _permit = self.permits.acquire().await.expect("the semaphore stays open");
        let config = self.credentials.borrow().clone().ok_or(CallError::NoCredentials)?;
        let mut admin = address.admin_addr;
        admin.set_port(self.port.unwrap_or(admin.port()));
        // Boxed: connections are large, and thousands of waiting tasks would each reserve space for one.
        let whole = Box::pin(send_request((address, admin), config, method, path, extra, body));
        let late = |_| CallError::Timeout { address: address.clone(), timeout: self.timeout };
        tokio::time::timeout(self.timeout, whole).await.map_err(late)?
    }
}

async fn send_request(
    (address, admin): (&SidecarAddress, SocketAddr),
    config: Arc<ClientConfig>,
    method: Method,
    path: &str,
    extra: HeaderMap,
    body: Vec<u8>,
) -> Result<HttpAnswer, CallError> {
    let host = admin_host(&address.namespace, &address.name);
    let name = ServerName::try_from(host.clone()).map_err(|_| CallError::Name(host.clone()))?;
    let connect = |error| CallError::Connect { address: address.clone(), error };
    let broken = |problem: String| CallError::Protocol { address: address.clone(), problem };
    let socket = TcpStream::connect(admin).await.map_err(connect)?;
    let stream = TlsConnector::from(config).connect(name, socket).await.map_err(connect)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| broken(error.to_string()))?;
    let mut request = Request::new(Body::from(body));
    (*request.method_mut(), *request.headers_mut()) = (method, extra);
    *request.uri_mut() = path.parse().map_err(|error: http::uri::InvalidUri| broken(error.to_string()))?;
    let headers = request.headers_mut();
    headers.insert(header::HOST, host.parse().map_err(|_| CallError::Name(host.clone()))?);
    headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (parts, body) = response.into_parts();
        let body =
            axum::body::to_bytes(Body::new(body), MAX_BODY_BYTES).await.map_err(|error| error.to_string())?;
        Ok(HttpAnswer { status: parts.status, headers: parts.headers, body: body.to_vec() })
    };
    // The connection ends with the answer, or before it with the error.
    let (answer, _ended) = tokio::join!(answer, connection);
    answer.map_err(broken)
}
