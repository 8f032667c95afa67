//! Mutual TLS on the admin port: certificates from files, read again when they change, and who one names.

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
use crate::gateway::serve::{ListenerLimits, Timeouts, serve_connection, serve_connections, wait_for_stop};

/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Both ends of TLS, made of the same files.
#[derive(Clone, Debug)]
pub struct TlsConfigs {
    /// For who connects to us.
    pub server: Arc<ServerConfig>,
    /// For connecting to neighbours.
    pub client: Arc<ClientConfig>,
}

/// The certificates of this sidecar.
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
    /// A file cannot be read or does not hold what it must; the error names it.
    pub fn load(config: AdminTls) -> Result<Tls, TlsError> {
        role::check_claim(&config.claim)?;
        let contents = TlsFiles::read(&config)?;
        let ends = TlsConfigs {
            server: server_config(&config, &contents)?,
            client: client_config(&config, &contents)?,
        };
        Ok(Tls { config, contents: std::sync::Mutex::new(contents), configs: watch::Sender::new(ends) })
    }

    /// What new connections are made with, now and when it changes.
    pub fn configs(&self) -> watch::Receiver<TlsConfigs> {
        self.configs.subscribe()
    }
}

impl ReloadableCredentials for Tls {
    type Error = TlsError;
    const NAME: &'static str = "admin_tls";

    /// New connections use what has changed. Connections that are open stay.
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

/// Serves `router` over TLS. Each request carries who its connection's certificate names, as [`Shown`].
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
            tracing::warn!(%error, "a peer of the admin port was refused");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let shown = Presented(certificate.and_then(|certificate| role::caller_of(certificate, &claim)));
    serve_connection(stream, router.layer(Extension(shown)), Timeouts::default(), stop).await;
}
