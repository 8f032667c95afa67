//! A certificate authority and its certificates, created per test.

use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, SanType,
    date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use sluice_wire::config::AdminTls;

/// Claim of the GPU in these tests.
pub const CLAIM: &str = "p-chat-0-e1.c9a646d3-9c61-4cb7-bfcd-ee2522c8f633";

/// A certificate authority.
pub struct CertificateAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
pub struct Identity {
    pub cert: String,
    pub key: String,
}

impl CertificateAuthority {
    pub fn new() -> CertificateAuthority {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        CertificateAuthority(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for the sidecar of `name` with these URIs, valid until `year`.
    pub fn issue(&self, name: &str, uris: &[&str], year: i32) -> Identity {
        self.issue_for(vec![format!("{name}.default.sidecar.sluice")], uris, year)
    }

    /// Issues a certificate with these DNS names.
    pub fn issue_for(&self, names: Vec<String>, uris: &[&str], year: i32) -> Identity {
        let mut params = CertificateParams::new(names).expect("DNS names");
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().expect("ASCII")));
        params.subject_alt_names.extend(uris);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { cert: cert.pem(), key: key.serialize_pem() }
    }

    pub fn role(&self, role: &str) -> Identity {
        self.issue("peer", &[&format!("spiffe://sluice/role/{role}")], 2100)
    }

    /// Writes the files of a sidecar called `name`, and returns the configuration that names them.
    pub fn sidecar(&self, folder: &Path, name: &str) -> AdminTls {
        let role = format!("spiffe://sluice/role/neighbour/{CLAIM}");
        let tls = files(folder);
        write(&tls, &self.issue(name, &[&role], 2100), &self.pem());
        tls
    }

    /// Returns the configuration of a client that presents `identity`, if any, and trusts this authority.
    pub fn client(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).expect("PEM")).expect("a root");
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { cert, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(cert.as_bytes()).expect("PEM")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        })
    }
}

/// Returns the paths of a sidecar's files.
pub fn files(folder: &Path) -> AdminTls {
    AdminTls {
        cert: folder.join("tls.crt"),
        key: folder.join("tls.key"),
        client_ca: folder.join("ca.crt"),
        claim: CLAIM.into(),
    }
}

/// Writes the files that `tls` names.
pub fn write(tls: &AdminTls, identity: &Identity, authorities: &str) {
    std::fs::write(&tls.cert, &identity.cert).expect("a file");
    std::fs::write(&tls.key, &identity.key).expect("a file");
    std::fs::write(&tls.client_ca, authorities).expect("a file");
}
