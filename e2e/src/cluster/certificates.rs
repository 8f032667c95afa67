//! A certificate authority for one cluster, and what it signs.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// An authority; its certificate lies in `ca.crt` of a folder.
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
    /// Makes one, and writes its certificate into `folder`.
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

    /// Where the authority's certificate lies.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// A certificate by which `user` of `group` shows itself to the API server.
    pub fn user(&self, user: &str, group: Option<&str>) -> Pair {
        self.sign(user, group, &[], &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for a server that is reached under `names` and `addresses`.
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
        // Groups are organisations, of which rcgen writes one.
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

/// A key for tokens of service accounts, in `folder`: the private half, and the public one.
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
