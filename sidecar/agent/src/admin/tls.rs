//! Mutual TLS on the admin port: reads certificates from files, reloads them when they change, and maps them to
//! callers.

mod files;
mod role;

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use rustls::{ClientConfig, ServerConfig};
use sluice_wire::config::AdminTls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

pub use self::files::{TlsError, client_without_roots};
use self::files::{TlsFiles, client_config, server_config};
use super::auth::Presented;
use crate::credential_reload::ReloadableCredentials;
use crate::gateway::serve::{ListenerLimits, serve_connection, serve_connections, wait_for_stop};
use crate::gateway::timeouts::Timeouts;

/// Time limit for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Server and client configuration, built from the same files.
#[derive(Clone, Debug)]
pub struct TlsConfigs {
    /// For incoming connections.
    pub server: Arc<ServerConfig>,
    /// For connections to peers.
    pub client: Arc<ClientConfig>,
}

/// Certificates of this sidecar.
#[derive(Debug)]
pub struct Tls {
    config: AdminTls,
    contents: std::sync::Mutex<TlsFiles>,
    configs: watch::Sender<TlsConfigs>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or has invalid content. The error names the file.
    pub fn load(config: AdminTls) -> Result<Tls, TlsError> {
        role::check_claim(&config.claim)?;
        let contents = TlsFiles::read(&config)?;
        let ends = TlsConfigs {
            server: server_config(&config, &contents)?,
            client: client_config(&config, &contents)?,
        };
        Ok(Tls { config, contents: std::sync::Mutex::new(contents), configs: watch::Sender::new(ends) })
    }

    /// Returns the configurations for new connections, updated when they change.
    pub fn configs(&self) -> watch::Receiver<TlsConfigs> {
        self.configs.subscribe()
    }
}

impl ReloadableCredentials for Tls {
    type Error = TlsError;
    const NAME: &'static str = "admin_tls";

    /// Reloads the files for new connections. Open connections stay.
    fn reload(&self) -> Result<bool, TlsError> {
        let contents = TlsFiles::read(&self.config)?;
        let mut read = self.contents.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *read == contents {
            return Ok(false);
        }
        let ends = TlsConfigs {
            server: server_config(&self.config, &contents)?,
            client: client_config(&self.config, &contents)?,
        };
        *read = contents;
        self.configs.send_replace(ends);
        Ok(true)
    }
}

/// Serves `router` over TLS. Adds the caller named by the connection's certificate to each request as [`Presented`].
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Arc<Tls>,
    limits: ListenerLimits,
    stop: watch::Receiver<bool>,
) {
    let (ends, claim, stopping) = (tls.configs(), tls.config.claim.clone(), stop.clone());
    let connect = move |socket: TcpStream| {
        let acceptor = TlsAcceptor::from(ends.borrow().server.clone());
        serve_tls_connection(socket, acceptor, router.clone(), claim.clone(), stopping.clone())
    };
    serve_connections(listener, limits, stop, connect).await;
}

async fn serve_tls_connection(
    socket: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    claim: String,
    stop: watch::Receiver<bool>,
) {
    let shaken = tokio::select! {
        () = wait_for_stop(stop.clone()) => return,
        shaken = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket)) => shaken,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::warn!(%error, "refused a connection to the admin port");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let shown = Presented(certificate.and_then(|certificate| role::caller_of(certificate, &claim)));
    serve_connection(stream, router.layer(Extension(shown)), Timeouts::default(), stop).await;
}
