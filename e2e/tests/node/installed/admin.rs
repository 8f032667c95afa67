//! Requests to a sidecar's admin port with different certificates.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Secret;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use reqwest::{Method, StatusCode};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use sluice_wire::config::admin_host;

use crate::installed::Product;

/// A certificate, its key and the authorities that it trusts, PEM.
pub struct Credential {
    pair: Option<(String, String)>,
    authorities: String,
}

impl Credential {
    /// Returns the credential of a tenant's first slot, from its Secret.
    pub fn of_slot(product: &Product<'_>, tenant: &str) -> Credential {
        let secret = product.get("secret", &format!("sluice-{tenant}-0"));
        let pair = (field(&secret, "tls.crt"), field(&secret, "tls.key"));
        Credential { pair: Some(pair), authorities: field(&secret, "ca.crt") }
    }

    /// Returns a credential without a certificate that trusts the right authority.
    pub fn none(product: &Product<'_>, tenant: &str) -> Credential {
        Credential { pair: None, ..Credential::of_slot(product, tenant) }
    }

    /// Returns an operator's credential, signed by its authority as the operator signs its own, which it does not
    /// store.
    pub fn of_operator(product: &Product<'_>) -> Credential {
        let secret =
            product.kubectl(&["-n", "sluice-system", "get", "secret", "sluice-authority", "-o", "json"]);
        let secret: Value = serde_json::from_str(&secret).unwrap();
        let (cert, key) = (field(&secret, "tls.crt"), field(&secret, "tls.key"));
        let issuer = Issuer::from_ca_cert_pem(&cert, KeyPair::from_pem(&key).unwrap()).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://sluice/role/operator".try_into().unwrap()));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let own = KeyPair::generate().unwrap();
        let signed = params.signed_by(&own, &issuer).unwrap();
        Credential { pair: Some((signed.pem(), own.serialize_pem())), authorities: cert }
    }

    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authorities.as_bytes()) {
            roots.add(authority.unwrap()).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(roots);
        let Some((cert, key)) = &self.pair else { return config.with_no_client_auth() };
        let chain = CertificateDer::pem_slice_iter(cert.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        config.with_client_auth_cert(chain, key).unwrap()
    }
}

fn field(secret: &Value, name: &str) -> String {
    let secret: Secret = serde_json::from_value(secret.clone()).unwrap();
    let data = secret.data.unwrap_or_default();
    let bytes = data.get(name).unwrap_or_else(|| panic!("{name} is not in the Secret"));
    String::from_utf8(bytes.0.clone()).unwrap()
}

/// The admin port of a tenant's first slot.
pub struct Admin {
    host: String,
    address: SocketAddr,
}

impl Admin {
    /// Returns the admin port of the pod with this address.
    pub fn of(product: &Product<'_>, tenant: &str, address: &str) -> Admin {
        let address = SocketAddr::new(address.parse().unwrap(), 8001);
        Admin { host: admin_host(&product.namespace, tenant), address }
    }

    /// Sends a request with this credential. Fails without a connection.
    pub async fn ask(
        &self,
        credential: &Credential,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<(StatusCode, String)> {
        let client = reqwest::Client::builder().no_proxy().resolve(&self.host, self.address);
        let client = client.tls_backend_preconfigured(credential.config()).build()?;
        let url = format!("https://{}:{}{path}", self.host, self.address.port());
        let mut request = client.request(method, url).header("content-type", "application/json");
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let answer = request.send().await?;
        Ok((answer.status(), answer.text().await?))
    }

    /// Returns the directive in force.
    pub async fn directive(&self, operator: &Credential) -> Value {
        self.directive_if_given(operator).await.expect("the operator has given a directive")
    }

    /// Returns the directive in force; `None` = the operator has sent none yet.
    pub async fn directive_if_given(&self, operator: &Credential) -> Option<Value> {
        let (status, body) = self.ask(operator, Method::GET, "/v1/directive", None).await.unwrap();
        if status == 404 {
            return None;
        }
        assert_eq!(status, 200, "{body}");
        Some(serde_json::from_str(&body).unwrap())
    }

    /// Returns the state of its tenant.
    pub async fn state(&self, operator: &Credential) -> Value {
        self.get(operator, "/v1/state").await
    }

    async fn get(&self, operator: &Credential, path: &str) -> Value {
        let (status, body) = self.ask(operator, Method::GET, path, None).await.unwrap();
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}
