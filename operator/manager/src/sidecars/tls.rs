//! Configures the operator's side of mutual TLS.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use crate::credentials::renewal::Credentials;

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM text does not contain the expected items.
    #[error("the operator's certificate: {0}")]
    Pem(#[from] pem::Error),
    /// The certificate and its key do not match, or TLS rejects them.
    #[error("the operator's certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// Returns the configuration of a client that presents `credentials` and trusts their authorities.
///
/// # Errors
/// The credentials cannot be used.
pub fn client_config(credentials: &Credentials) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(credentials.bundle.as_bytes()) {
        roots.add(authority?)?;
    }
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(credentials.identity.cert.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(credentials.identity.key.as_bytes())?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain?, key)?;
    Ok(Arc::new(config))
}
