//! Builds the server and client configurations of TLS 1.3 from PEM files, with ring.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sluice_wire::config::AdminTls;

/// Reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: std::io::Error,
    },
    /// A file has invalid content.
    #[error("{}: {problem}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Problem with the content.
        problem: String,
    },
    /// `listen.admin_tls.claim` cannot be part of a URI.
    #[error("listen.admin_tls.claim: {0:?} must consist of letters, digits, `-`, `_` and `.`")]
    Claim(String),
}

/// Contents of the three files.
#[derive(PartialEq, Eq)]
pub struct TlsFiles {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents { secret }")
    }
}

impl TlsFiles {
    /// Reads the three files.
    pub fn read(config: &AdminTls) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| TlsError::Read { path: path.to_owned(), error })
        };
        Ok(TlsFiles {
            cert: read(&config.cert)?,
            key: read(&config.key)?,
            client_ca: read(&config.client_ca)?,
        })
    }
}

fn content_error(path: &Path, problem: impl ToString) -> TlsError {
    TlsError::Content { path: path.to_owned(), problem: problem.to_string() }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the configuration for incoming connections, which requires a client certificate of a known authority.
/// Sessions are not resumed, so that every connection is checked with the current files.
pub fn server_config(config: &AdminTls, contents: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(config, contents)?.into(), provider());
    let verifier = verifier.build().map_err(|error| content_error(&config.client_ca, error))?;
    let (chain, key) = cert_chain_and_key(config, contents)?;
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| content_error(&config.cert, error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(|error| content_error(&config.cert, error))?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(Arc::new(server))
}

/// Returns the configuration for connections to peers, which must present a certificate of a known authority with their
/// name.
pub fn client_config(config: &AdminTls, contents: &TlsFiles) -> Result<Arc<ClientConfig>, TlsError> {
    let (chain, key) = cert_chain_and_key(config, contents)?;
    let client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| content_error(&config.cert, error))?
        .with_root_certificates(roots(config, contents)?)
        .with_client_auth_cert(chain, key)
        .map_err(|error| content_error(&config.cert, error))?;
    Ok(Arc::new(client))
}

/// Returns a configuration that trusts no authority. Plain HTTP does not use it, but the library requires one.
pub fn client_without_roots() -> ClientConfig {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring knows TLS 1.3")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|error| content_error(path, error))?;
    if all.is_empty() { Err(content_error(path, "holds no certificate")) } else { Ok(all) }
}

fn roots(config: &AdminTls, contents: &TlsFiles) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&config.client_ca, &contents.client_ca)? {
        roots.add(authority).map_err(|error| content_error(&config.client_ca, error))?;
    }
    Ok(roots)
}

type CertChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn cert_chain_and_key(config: &AdminTls, contents: &TlsFiles) -> Result<CertChainAndKey, TlsError> {
    let chain = certificates(&config.cert, &contents.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&contents.key)
        .map_err(|error| content_error(&config.key, format!("holds no private key: {error}")))?;
    Ok((chain, key))
}
