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

use self::files::{Contents, client, server};
pub use self::files::{TlsError, trustless_client};
use super::access::Shown;
use crate::fresh::Credentials;
use crate::gateway::serve::{Limits, Patience, connection, serve_each, told};

/// Time for a handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Both ends of TLS, made of the same files.
#[derive(Clone, Debug)]
pub struct Ends {
    /// For who connects to us.
    pub server: Arc<ServerConfig>,
    /// For connecting to neighbours.
    pub client: Arc<ClientConfig>,
}

/// The certificates of this sidecar.
#[derive(Debug)]
pub struct Tls {
    config: AdminTls,
    read: std::sync::Mutex<Contents>,
    ends: watch::Sender<Ends>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or does not hold what it must; the error names it.
    pub fn load(config: AdminTls) -> Result<Tls, TlsError> {
        role::check_claim(&config.claim)?;
        let contents = Contents::read(&config)?;
        let ends = Ends { server: server(&config, &contents)?, client: client(&config, &contents)? };
        Ok(Tls { config, read: std::sync::Mutex::new(contents), ends: watch::Sender::new(ends) })
    }

    /// What new connections are made with, now and when it changes.
    pub fn ends(&self) -> watch::Receiver<Ends> {
        self.ends.subscribe()
    }
}

impl Credentials for Tls {
    type Error = TlsError;
    const NAME: &'static str = "admin_tls";

    /// New connections use what has changed. Connections that are open stay.
    fn reload(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.config)?;
        let mut read = self.read.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *read == contents {
            return Ok(false);
        }
        let ends =
            Ends { server: server(&self.config, &contents)?, client: client(&self.config, &contents)? };
        *read = contents;
        self.ends.send_replace(ends);
        Ok(true)
    }
}

/// Serves `router` over TLS. Each request carries who its connection's certificate names, as [`Shown`].
pub async fn serve(
    listener: TcpListener,
    router: Router,
    tls: Arc<Tls>,
    limits: Limits,
    stop: watch::Receiver<bool>,
) {
    let (ends, claim, stopping) = (tls.ends(), tls.config.claim.clone(), stop.clone());
    let connect = move |socket: TcpStream| {
        let acceptor = TlsAcceptor::from(ends.borrow().server.clone());
        one(socket, acceptor, router.clone(), claim.clone(), stopping.clone())
    };
    serve_each(listener, limits, stop, connect).await;
}

async fn one(
    socket: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    claim: String,
    stop: watch::Receiver<bool>,
) {
    let shaken = tokio::select! {
        () = told(stop.clone()) => return,
        shaken = tokio::time::timeout(HANDSHAKE_TIME, acceptor.accept(socket)) => shaken,
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
    let shown = Shown(certificate.and_then(|certificate| role::of(certificate, &claim)));
    connection(stream, router.layer(Extension(shown)), Patience::default(), stop).await;
}
