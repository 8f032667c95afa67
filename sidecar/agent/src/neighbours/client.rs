//! Calling the admin ports of neighbours.

mod lanes;
mod names;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{StatusCode, header};
use reqwest::{RequestBuilder, Response};
use rustls::ClientConfig;
use sluice_wire::State;
use sluice_wire::config::admin_host;
use sluice_wire::directive::Neighbour;
use sluice_wire::grants::{GrantAnswer, GrantRequest};
use sluice_wire::message::ReadError;

use self::lanes::Lanes;
use self::names::Names;
use crate::admin::tls::{Ends, Tls, trustless_client};

/// Most bytes of a state.
const MAX_STATE_BYTES: usize = 4 << 20;
/// Most bytes of any other answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Longest wait for a connection, whatever the patience for the answer.
const CONNECT_TIME: Duration = Duration::from_millis(500);
/// How long an idle connection is kept: less than the other end keeps it.
const KEEP_IDLE: Duration = Duration::from_secs(8);

/// What is shown to neighbours.
#[derive(Clone)]
pub enum Credential {
    /// Nothing: they will refuse.
    Nothing,
    /// A token that the neighbours of the GPU know, over plain HTTP.
    Token(String),
    /// The certificate of this sidecar.
    Certificate(Arc<Tls>),
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credential::Nothing => "Nothing",
            Credential::Token(_) => "Token(secret)",
            Credential::Certificate(_) => "Certificate",
        })
    }
}

/// Why a neighbour gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The token is for this machine only: nothing was sent.
    #[error("{address} is not on this machine, and neighbours elsewhere need certificates")]
    Elsewhere {
        /// Where.
        address: SocketAddr,
    },
    /// It did not answer in time.
    #[error("no answer from {address} within {} ms", patience.as_millis())]
    Late {
        /// Where.
        address: SocketAddr,
        /// How long was waited.
        patience: Duration,
    },
    /// No connection, or it broke.
    #[error("{address}: {problem}")]
    Broken {
        /// Where.
        address: SocketAddr,
        /// What happened.
        problem: String,
    },
    /// It answered with an error.
    #[error("{address} answered {status}: {text}")]
    Status {
        /// Where.
        address: SocketAddr,
        /// The status.
        status: u16,
        /// Beginning of its words.
        text: String,
    },
    /// Its answer is longer than any can be.
    #[error("{address} answered more than {limit_bytes} bytes")]
    TooLong {
        /// Where.
        address: SocketAddr,
        /// The bound.
        limit_bytes: usize,
    },
    /// Its answer is not what it must be.
    #[error("{address}: {error}")]
    Read {
        /// Where.
        address: SocketAddr,
        /// What is wrong.
        #[source]
        error: ReadError,
    },
    /// Another tenant answers there.
    #[error("at {address} is {found}, not {wanted}")]
    SomebodyElse {
        /// Where.
        address: SocketAddr,
        /// Who was meant, `namespace/name`.
        wanted: String,
        /// Who answered.
        found: String,
    },
}

/// The way to neighbours. Keeps connections between calls.
pub struct Client {
    credential: Credential,
    names: Names,
    lanes: Lanes,
    http: Mutex<Http>,
}

/// A client and the end of TLS that it was made with.
struct Http {
    tls: Option<Arc<ClientConfig>>,
    client: reqwest::Client,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("credential", &self.credential).finish_non_exhaustive()
    }
}

impl Client {
    /// A client that shows `credential`.
    pub fn new(credential: Credential) -> Self {
        let (names, tls) = (Names::default(), current(&credential));
        let http = Http { client: made(tls.as_deref(), &names), tls };
        Client { credential, names, lanes: Lanes::default(), http: Mutex::new(http) }
    }

    /// The state of `neighbour`.
    ///
    /// # Errors
    /// It cannot be had within `patience`.
    pub async fn state(&self, neighbour: &Neighbour, patience: Duration) -> Result<State, CallError> {
        let request = self.http().get(self.url(neighbour, "/v1/state"));
        let address = neighbour.admin;
        let call = self.call(neighbour, request, MAX_STATE_BYTES);
        let text = in_time(address, patience, call).await?;
        let state = State::from_json(&text).map_err(|error| CallError::Read { address, error })?;
        is_it(neighbour, &state.tenant.namespace, &state.tenant.name)?;
        Ok(state)
    }

    /// What `neighbour` says to `request`. An error after which nobody knows whether it was granted must be followed by
    /// `Cancel`.
    ///
    /// # Errors
    /// No answer within `patience`, or none that belongs to `request`.
    pub async fn grant(
        &self,
        neighbour: &Neighbour,
        request: &GrantRequest,
        chunk_bytes: u64,
        patience: Duration,
    ) -> Result<GrantAnswer, CallError> {
        let http = self.http().post(self.url(neighbour, "/v1/grants")).body(request.to_json());
        let http = http.header(header::CONTENT_TYPE, "application/json");
        let address = neighbour.admin;
        let call = async {
            let _lane = self.lanes.enter(address).await;
            self.call(neighbour, http, MAX_ANSWER_BYTES).await
        };
        // The wait for other calls counts.
        let text = in_time(address, patience, call).await?;
        let answer = GrantAnswer::from_json(&text, request, chunk_bytes)
            .map_err(|error| CallError::Read { address, error })?;
        if let GrantAnswer::Granted { lender, .. } = &answer {
            is_it(neighbour, &lender.namespace, &lender.name)?;
        }
        Ok(answer)
    }

    async fn call(
        &self,
        neighbour: &Neighbour,
        request: RequestBuilder,
        limit_bytes: usize,
    ) -> Result<Vec<u8>, CallError> {
        let address = neighbour.admin;
        let request = match &self.credential {
            Credential::Token(_) if !address.ip().is_loopback() => {
                return Err(CallError::Elsewhere { address });
            }
            Credential::Token(token) => request.bearer_auth(token),
            Credential::Nothing | Credential::Certificate(_) => request,
        };
        answer(request, address, limit_bytes).await
    }

    /// By address over plain HTTP; by name over TLS, so that the certificate must be that neighbour's.
    fn url(&self, neighbour: &Neighbour, path: &str) -> String {
        let address = neighbour.admin;
        if !matches!(self.credential, Credential::Certificate(_)) {
            return format!("http://{address}{path}");
        }
        let host = admin_host(&neighbour.namespace, &neighbour.name);
        self.names.set(&host, address.ip());
        format!("https://{host}:{}{path}", address.port())
    }

    /// The client for a new call: a new one when the certificate has changed.
    fn http(&self) -> reqwest::Client {
        let tls = current(&self.credential);
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        let same = match (&http.tls, &tls) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            *http = Http { client: made(tls.as_deref(), &self.names), tls };
        }
        http.client.clone()
    }
}

fn current(credential: &Credential) -> Option<Arc<ClientConfig>> {
    let Credential::Certificate(tls) = credential else { return None };
    let Ends { client, .. } = tls.ends().borrow().clone();
    Some(client)
}

fn made(tls: Option<&ClientConfig>, names: &Names) -> reqwest::Client {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.cloned().unwrap_or_else(trustless_client))
        .dns_resolver(names.clone())
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_TIME)
        .pool_idle_timeout(KEEP_IDLE)
        .pool_max_idle_per_host(lanes::MOST_AT_ONCE)
        .http1_only()
        .build()
        .expect("a client of fixed settings and checked TLS is built")
}

/// What `call` to `address` gives within `patience`.
async fn in_time<T>(
    address: SocketAddr,
    patience: Duration,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let answer = tokio::time::timeout(patience, call).await;
    answer.unwrap_or(Err(CallError::Late { address, patience }))
}

async fn answer(
    request: RequestBuilder,
    address: SocketAddr,
    limit_bytes: usize,
) -> Result<Vec<u8>, CallError> {
    let broken = |error: reqwest::Error| CallError::Broken { address, problem: words(&error) };
    let response = request.send().await.map_err(broken)?;
    let status = response.status();
    let text = read(response, limit_bytes).await.map_err(broken)?;
    let text = text.ok_or(CallError::TooLong { address, limit_bytes })?;
    if status == StatusCode::OK {
        return Ok(text);
    }
    let text = String::from_utf8_lossy(&text).chars().take(200).collect();
    Err(CallError::Status { address, status: status.as_u16(), text })
}

/// `None` = longer than it may be.
async fn read(mut response: Response, limit_bytes: usize) -> reqwest::Result<Option<Vec<u8>>> {
    let mut text = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if text.len() + piece.len() > limit_bytes {
            return Ok(None);
        }
        text.extend_from_slice(&piece);
    }
    Ok(Some(text))
}

/// The innermost cause: the outer ones say no more than that a request was sent.
fn words(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

fn is_it(neighbour: &Neighbour, namespace: &str, name: &str) -> Result<(), CallError> {
    if (namespace, name) == (&neighbour.namespace, &neighbour.name) {
        return Ok(());
    }
    Err(CallError::SomebodyElse {
        address: neighbour.admin,
        wanted: format!("{}/{}", neighbour.namespace, neighbour.name),
        found: format!("{namespace:.80}/{name:.80}"),
    })
}
