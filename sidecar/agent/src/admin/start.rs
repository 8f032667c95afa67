//! Opens the admin port from the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sluice_wire::config::{EngineKind, SidecarConfig};
use sluice_wire::directive::Directive;
use sluice_wire::message::Invalid;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::auth::Access;
use super::tls::{self, Tls, TlsError};
use super::token::PeerToken;
use super::{Admin, make_token, read_tokens};
use crate::credential_reload::{self, RELOAD_INTERVAL};
use crate::directive::DirectiveStore;
use crate::engine_loop::{LoadError, parse_policy};
use crate::gateway::serve::{ListenerLimits, serve};
use crate::metrics::Metrics;
use crate::peers::client::{PeerClient, PeerCredential};
use crate::peers::full_name::full_name;
use crate::scheduler_handle::SchedulerHandle;

/// File of the stored directive in the runtime folder.
const DIRECTIVE_FILE: &str = "directive.json";

/// Reason why the admin port cannot be opened as configured. A restart helps only for [`StartError::Token`].
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Tokens over plain HTTP are allowed only on loopback addresses.
    #[error("listen.admin: {0} is not a loopback address, so listen.admin_tls is required")]
    NotLoopback(std::net::SocketAddr),
    /// The certificates cannot be used.
    #[error("listen.admin_tls: {0}")]
    Tls(#[from] TlsError),
    /// The file with the peers' tokens cannot be used.
    #[error("listen.peer_token_file: {}: {error}", path.display())]
    PeerToken {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
    /// The operator's token file cannot be written.
    #[error("{}: {error}", path.display())]
    Token {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
}

/// Accepted credentials, and the credential for calls to peers.
#[derive(Debug)]
pub struct AdminCredentials {
    access: Access,
    tls: Option<Arc<Tls>>,
    presented: PeerCredential,
}

impl AdminCredentials {
    /// Reads certificates or tokens, and writes a new token for the operator to `token_file`.
    ///
    /// # Errors
    /// A configured file or address cannot be used.
    pub fn load(config: &SidecarConfig, token_file: &Path) -> Result<AdminCredentials, StartError> {
        let listen = &config.listen;
        let operator = make_token(token_file)
            .map_err(|error| StartError::Token { path: token_file.to_owned(), error })?;
        if let Some(tls) = &listen.admin_tls {
            let tls = Arc::new(Tls::load(tls.clone())?);
            let shown = PeerCredential::Certificate(tls.clone());
            return Ok(AdminCredentials { access: Access::Certificates, tls: Some(tls), presented: shown });
        }
        if !listen.admin.ip().is_loopback() {
            return Err(StartError::NotLoopback(listen.admin));
        }
        let (peers, shown) = match &listen.peer_token_file {
            None => (Vec::new(), PeerCredential::Nothing),
            Some(path) => peer_tokens(path, &full_name(&config.namespace, &config.name))
                .map_err(|error| StartError::PeerToken { path: path.clone(), error })?,
        };
        Ok(AdminCredentials { access: Access::Tokens { operator, peers }, tls: None, presented: shown })
    }

    /// Creates the client for calls to peers.
    pub fn client(&self) -> Arc<PeerClient> {
        Arc::new(PeerClient::new(self.presented.clone()))
    }

    /// Serves the admin port until `stop`.
    pub async fn serve(
        self,
        listener: TcpListener,
        admin: Admin,
        limits: ListenerLimits,
        stop: watch::Receiver<bool>,
        metrics: Arc<Metrics>,
    ) {
        let Some(tls) = self.tls else {
            return serve(listener, admin.router(), limits, stop).await;
        };
        let fresh =
            credential_reload::reload_until_stopped(tls.clone(), RELOAD_INTERVAL, stop.clone(), metrics);
        tokio::join!(fresh, tls::serve(listener, admin.router(), tls, limits, stop));
    }
}

/// Returns the tokens in the file at `path`, and the credential of `own`: its own token, else one that is bound to no
/// tenant.
fn peer_tokens(path: &Path, own: &str) -> std::io::Result<(Vec<PeerToken>, PeerCredential)> {
    let tokens = read_tokens(path)?;
    let bound = tokens.iter().find(|token| token.tenant.as_deref() == Some(own));
    let shown = bound.or_else(|| tokens.iter().find(|token| token.tenant.is_none()));
    let problem = || std::io::Error::new(std::io::ErrorKind::InvalidData, format!("holds no token of {own}"));
    let shown = PeerCredential::Token(shown.ok_or_else(problem)?.secret.clone());
    Ok((tokens, shown))
}

impl Admin {
    /// Creates the admin port of the tenant in `config`.
    pub fn new(
        config: &SidecarConfig,
        service: SchedulerHandle,
        directives: Arc<DirectiveStore>,
        credentials: &AdminCredentials,
    ) -> Self {
        Admin {
            service,
            access: credentials.access.clone(),
            directives,
            peers: credentials.client(),
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            chunk_bytes: config.gpu.chunk_bytes,
        }
    }
}

/// Opens the directive store in the runtime folder of the tenant in `config`.
pub fn open_directives(config: &SidecarConfig) -> Arc<DirectiveStore> {
    let own = config.clone();
    let judge = move |directive: &Directive| validate(&own, directive);
    Arc::new(DirectiveStore::open(config.runtime_dir.join(DIRECTIVE_FILE), Box::new(judge)))
}

/// Checks that the running tenant of `config` can follow `directive`. Loan terms, share and cap may change; the way to
/// share the GPU's time is fixed at start.
fn validate(config: &SidecarConfig, directive: &Directive) -> Result<(), Invalid> {
    match parse_policy(&directive.policy) {
        Ok(_) => {}
        Err(LoadError::Config { problem, .. }) => return Err(Invalid::new("policy", problem)),
        Err(error) => return Err(Invalid::new("policy", error.to_string())),
    }
    let SidecarConfig { namespace, name, .. } = config;
    let own = directive.peers.iter().position(|n| n.namespace == *namespace && n.name == *name);
    if let Some(index) = own {
        let problem = format!("{namespace}/{name} is this tenant itself");
        return Err(Invalid::new(format!("peers[{index}]"), problem));
    }
    let Some(place) = &config.gpu_ledger else { return validate_exclusive(config, directive) };
    let (asked, runs) = (&directive.sharing, &place.sharing);
    if asked == runs {
        return Ok(());
    }
    let problem =
        format!("{asked:?} cannot take effect while the tenant runs; the tenant was started with {runs:?}");
    Err(Invalid::new("sharing", problem))
}

/// Checks a tenant on a GPU that is not shared. With a native engine, it follows policy, cap and share, but accepts no
/// peers.
fn validate_exclusive(config: &SidecarConfig, directive: &Directive) -> Result<(), Invalid> {
    if config.engine.kind != EngineKind::Native || directive.peers.is_empty() {
        return Ok(());
    }
    let problem = "the tenant does not share its GPU, so it has no peers";
    Err(Invalid::new("peers", problem))
}
