//! A certificate authority for one cluster, and the certificates that it signs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority; its certificate is `ca.crt` in a folder.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
}

/// A certificate and its key, as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl Authority {
    /// Creates an authority and writes its certificate into `folder`.
    pub fn new(folder: &Path) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        parameters.distinguished_name.push(DnType::CommonName, "sluice tests");
        let pem = parameters.self_signed(&key).expect("a certificate").pem();
        write(&folder.join("ca.crt"), &pem);
        Authority { issuer: Issuer::new(parameters, key), folder: folder.to_owned() }
    }

    /// Path of the authority's certificate.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// Creates a client certificate for `user` in `group`.
    pub fn user(&self, user: &str, group: Option<&str>) -> Pair {
        self.sign(user, group, &[], &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// Creates a server certificate for `names` and `addresses`.
    pub fn server(&self, name: &str, names: &[&str], addresses: &[IpAddr]) -> Pair {
        self.sign(name, None, names, addresses, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn sign(
        &self,
        name: &str,
        group: Option<&str>,
        names: &[&str],
        addresses: &[IpAddr],
        usage: ExtendedKeyUsagePurpose,
    ) -> Pair {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        // Kubernetes reads groups from the organisations. rcgen writes one.
        if let Some(group) = group {
            parameters.distinguished_name.push(DnType::OrganizationName, group);
        }
        let names = names.iter().map(|name| SanType::DnsName((*name).try_into().expect("an ASCII name")));
        parameters.subject_alt_names =
            names.chain(addresses.iter().map(|ip| SanType::IpAddress(*ip))).collect();
        parameters.extended_key_usages = vec![usage];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        Pair { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Pair {
    /// Writes both into `folder`, as `NAME.crt` and `NAME.key`.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        write(&certificate, &self.certificate);
        write(&key, &self.key);
        (certificate, key)
    }
}

/// Creates the key pair for service account tokens in `folder`. Returns the paths of the private and the public
/// key.
pub fn token_keys(folder: &Path) -> (PathBuf, PathBuf) {
    let (private, public) = (folder.join("service-account.key"), folder.join("service-account.pub"));
    let key = KeyPair::generate().expect("a key");
    write(&private, &key.serialize_pem());
    write(&public, &key.public_key_pem());
    (private, public)
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
