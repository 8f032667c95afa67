//! Issues certificates by rcgen and parses them by x509-parser.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, date_time_ymd,
};
use sluice_wire::config::admin_host;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Seconds of a day.
pub const DAY_SECONDS: i64 = 86_400;
/// Validity of a certificate of a slot or of the operator, days.
pub const LEAF_VALIDITY_DAYS: i64 = 30;
/// Validity of an authority, days.
pub const CA_VALIDITY_DAYS: i64 = 365;
/// Maximum lag of a node's clock, seconds.
const CLOCK_SKEW_SECONDS: i64 = 300;
/// Prefix of a role's URI, as sidecars parse it.
const ROLE_URI_PREFIX: &str = "spiffe://sluice/role/";

/// Why a certificate could not be issued or parsed.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The certificate could not be issued.
    #[error("the certificate could not be issued: {0}")]
    Make(#[from] rcgen::Error),
    /// The certificate cannot be parsed.
    #[error("the certificate cannot be parsed: {0}")]
    Read(String),
}

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity { secret }")
    }
}

/// The names that a certificate must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertNames {
    /// Its only DNS name; `None` = the holder is not a server.
    pub dns: Option<String>,
    /// Its only URI: the role.
    pub uri: String,
}

impl CertNames {
    /// Returns the names of a slot's sidecar: the host of its tenant, and the role of a peer on the GPU of that
    /// claim.
    pub fn slot(namespace: &str, name: &str, claim: &str) -> CertNames {
        CertNames {
            dns: Some(admin_host(namespace, name)),
            uri: format!("{ROLE_URI_PREFIX}neighbour/{claim}"),
        }
    }

    /// Returns the names of the operator, which is not a server.
    pub fn operator() -> CertNames {
        CertNames { dns: None, uri: format!("{ROLE_URI_PREFIX}operator") }
    }
}

/// A parsed certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedCert {
    /// Its names; `None` = not exactly one URI, more than one DNS name, or names of other kinds.
    pub names: Option<CertNames>,
    /// Common name of its issuer.
    pub issuer: String,
    /// Its own common name.
    pub subject: String,
    /// Start of its validity, seconds since 1970.
    pub not_before: i64,
    /// End of its validity, seconds since 1970.
    pub not_after: i64,
    /// Its public key, DER.
    pub public_key: Vec<u8>,
}

/// Parses the first certificate of a PEM text.
///
/// # Errors
/// The text contains no valid certificate.
pub fn parse_cert(pem: &str) -> Result<ParsedCert, IssueError> {
    let unread = |error: String| IssueError::Read(error);
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|e| unread(e.to_string()))?;
    let (_, cert) = X509Certificate::from_der(&block.contents).map_err(|e| unread(e.to_string()))?;
    let common = |name: &x509_parser::x509::X509Name<'_>| {
        let first = name.iter_common_name().next().and_then(|name| name.as_str().ok());
        first.unwrap_or_default().to_owned()
    };
    Ok(ParsedCert {
        names: names(&cert),
        issuer: common(cert.issuer()),
        subject: common(cert.subject()),
        not_before: cert.validity().not_before.timestamp(),
        not_after: cert.validity().not_after.timestamp(),
        public_key: cert.public_key().raw.to_vec(),
    })
}

fn names(cert: &X509Certificate<'_>) -> Option<CertNames> {
    let all = &cert.subject_alternative_name().ok()??.value.general_names;
    let (mut dns, mut uri) = (None, None);
    for name in all {
        let (place, value) = match name {
            GeneralName::DNSName(value) => (&mut dns, value),
            GeneralName::URI(value) => (&mut uri, value),
            _ => return None,
        };
        if place.replace((*value).to_owned()).is_some() {
            return None;
        }
    }
    Some(CertNames { dns, uri: uri? })
}

/// Whether `key` (PEM) belongs to a certificate with this public key.
pub fn is_key_pair(key: &str, public_key: &[u8]) -> bool {
    use rcgen::PublicKeyData as _;
    KeyPair::from_pem(key).is_ok_and(|key| key.subject_public_key_info() == public_key)
}

/// Issues a new authority. Its name contains the time, so that two authorities differ.
///
/// # Errors
/// The key or the certificate cannot be generated.
pub fn issue_ca(now: i64) -> Result<Identity, IssueError> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = common_name(format!("sluice authority {now}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, now - CLOCK_SKEW_SECONDS, now + CA_VALIDITY_DAYS * DAY_SECONDS);
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok(Identity { cert: cert.pem(), key: key.serialize_pem() })
}

/// Issues a certificate with its own key, signed by `authority`.
///
/// # Errors
/// The authority cannot be parsed, or the key or the certificate cannot be generated.
pub fn issue_leaf(authority: &Identity, names: &CertNames, now: i64) -> Result<Identity, IssueError> {
    let issuer = Issuer::from_ca_cert_pem(&authority.cert, KeyPair::from_pem(&authority.key)?)?;
    let mut params = CertificateParams::new(names.dns.iter().cloned().collect::<Vec<_>>())?;
    params.distinguished_name = common_name("sluice".to_owned());
    params.subject_alt_names.push(SanType::URI(names.uri.as_str().try_into()?));
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    // A sidecar is a server, and a client of its peers.
    params.extended_key_usages.extend(names.dns.as_ref().map(|_| ExtendedKeyUsagePurpose::ServerAuth));
    set_validity(&mut params, now - CLOCK_SKEW_SECONDS, now + LEAF_VALIDITY_DAYS * DAY_SECONDS);
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?;
    Ok(Identity { cert: cert.pem(), key: key.serialize_pem() })
}

fn common_name(name: String) -> DistinguishedName {
    let mut all = DistinguishedName::new();
    all.push(DnType::CommonName, name);
    all
}

/// Sets the validity, given in seconds since 1970.
fn set_validity(params: &mut CertificateParams, from: i64, until: i64) {
    let since = |seconds: i64| std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let moment = |seconds: i64| date_time_ymd(1970, 1, 1) + since(seconds);
    (params.not_before, params.not_after) = (moment(from), moment(until));
}
