//! Reads and writes the Secrets of the authorities and of slots, by name.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use rustls::ClientConfig;
use serde_json::json;
use sluice_plan::objects::MANAGER;

use super::ca::{CaBundle, CaSecretError};
use super::issue::{CertNames, IssueError};
use super::renewal::{
    CA_BUNDLE_KEY, Credentials, RenewalAction, TLS_CERT_KEY, TLS_PRIVATE_KEY_KEY, renew_if_due,
    renewal_action,
};
use crate::sidecars::tls::{TlsError, client_config};

/// Name of the Secret with the authorities. An admission policy keeps the operator to names that begin with `sluice-`.
pub const CA_SECRET_NAME: &str = "sluice-authority";
/// Seconds for which cached authorities are used: another leader may rotate them.
const CA_CACHE_SECONDS: i64 = 300;
/// Maximum time between two checks of a Secret, seconds: another client may have changed it.
const RECHECK_SECONDS: i64 = 6 * 3600;
/// The same for the Secret of a slot whose pod does not start, seconds.
const UNVERIFIED_RECHECK_SECONDS: i64 = 30;

/// A slot's Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotSecret {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub secret: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Title of the claim, as in the sidecar's configuration.
    pub claim: String,
    /// The owner that it is deleted with.
    pub owner: OwnerReference,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl SlotSecret {
    /// Returns the digest of all inputs of its Secret, with this bundle.
    fn digest(&self, bundle: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.namespace, &self.secret, &self.tenant, &self.claim, bundle).hash(&mut hasher);
        (&self.owner.kind, &self.owner.name, &self.owner.uid, &self.labels).hash(&mut hasher);
        hasher.finish()
    }

    fn names(&self) -> CertNames {
        CertNames::slot(&self.namespace, &self.tenant, &self.claim)
    }
}

/// Why credentials could not be updated.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The API server rejected the request, or did not answer.
    #[error("Secret {namespace}/{name}: {error}")]
    Api {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// What went wrong.
        error: Box<kube::Error>,
    },
    /// The Secret of the authorities contains none.
    #[error(
        "Secret {namespace}/{name}: {error}; restore the Secret, or delete it to give all sidecars new certificates"
    )]
    InvalidCa {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong.
        error: CaSecretError,
    },
    /// A Secret of that name exists that the operator does not own.
    #[error("Secret {namespace}/{name} exists and the operator does not own it; rename or delete it")]
    NotOwned {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A certificate could not be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The issued credentials cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Cached state of the API server.
#[derive(Default)]
struct CertificateCache {
    authorities: Option<(Arc<CaBundle>, i64)>,
    slots: HashMap<(String, String), VerifiedSlot>,
    own: Option<(Credentials, Arc<ClientConfig>)>,
}

/// A slot whose Secret was correct. There are thousands, so nothing else is cached.
#[derive(Clone, Copy, Debug)]
struct VerifiedSlot {
    /// Digest of the inputs.
    digest: u64,
    /// Time of the check.
    checked_at: i64,
    /// End of validity.
    valid_until: i64,
}

impl CertificateCache {
    /// Caches a slot. No event reports removed tenants: expired entries are dropped when the map is full.
    fn insert(&mut self, key: (String, String), known: VerifiedSlot) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.retain(|_, other| known.checked_at < other.valid_until);
        }
        self.slots.insert(key, known);
    }
}

/// Manages all credentials. Only the leader uses it.
pub struct CertificateManager {
    client: Client,
    namespace: String,
    cache: Mutex<CertificateCache>,
    /// Time between two checks of the Secret of a slot whose pod does not start, seconds.
    unverified_recheck_seconds: i64,
}

impl std::fmt::Debug for CertificateManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl CertificateManager {
    /// Creates a manager with the authorities in a Secret of `namespace`, the operator's own.
    pub fn new(client: Client, namespace: impl Into<String>) -> CertificateManager {
        let unverified_recheck_seconds = UNVERIFIED_RECHECK_SECONDS;
        let cache = Mutex::default();
        CertificateManager { client, namespace: namespace.into(), cache, unverified_recheck_seconds }
    }

    /// Checks the Secret of a slot whose pod does not start every `seconds`; `None` = the usual 30 s.
    #[must_use]
    pub fn with_unverified_recheck(mut self, seconds: Option<u32>) -> CertificateManager {
        self.unverified_recheck_seconds = seconds.map_or(UNVERIFIED_RECHECK_SECONDS, i64::from);
        self
    }

    /// Returns the authorities at `now` (seconds since 1970): reads them, creates them if there are none, and rotates
    /// them when due.
    ///
    /// # Errors
    /// The Secret could not be read or written, or has other contents.
    pub async fn authorities(&self, now: i64) -> Result<Arc<CaBundle>, CredentialError> {
        let known = self.with_cache(|memory| memory.authorities.clone());
        if let Some((authorities, _)) = known.filter(|(_, until)| now < *until) {
            return Ok(authorities);
        }
        let authorities = Arc::new(self.load_or_create_ca(now).await?);
        let until = authorities.next_rotation()?.min(now + CA_CACHE_SECONDS);
        self.with_cache(|memory| memory.authorities = Some((authorities.clone(), until)));
        Ok(authorities)
    }

    async fn load_or_create_ca(&self, now: i64) -> Result<CaBundle, CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let Some(secret) = api.get_opt(CA_SECRET_NAME).await.map_err(|e| self.api_error(e))? else {
                let first = CaBundle::generate(now)?;
                match api.create(&PostParams::default(), &ca_secret(&first)).await {
                    Ok(_) => return Ok(first),
                    // Another replica created it first.
                    Err(kube::Error::Api(status)) if status.is_already_exists() => continue,
                    Err(error) => return Err(self.api_error(error)),
                }
            };
            let held = CaBundle::from_secret(&secret_data(&secret)).map_err(|error| {
                let (namespace, name) = (self.namespace.clone(), CA_SECRET_NAME.to_owned());
                CredentialError::InvalidCa { namespace, name, error }
            })?;
            let Some(turned) = held.rotated(now)? else { return Ok(held) };
            let version = secret.metadata.resource_version;
            // The version makes the patch fail if another replica has rotated them.
            let encoded: BTreeMap<_, _> =
                turned.to_secret().into_iter().map(|(key, text)| (key, to_byte_string(text))).collect();
            let patch = json!({"metadata": {"resourceVersion": version}, "data": encoded});
            match api.patch(CA_SECRET_NAME, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(turned),
                Err(kube::Error::Api(status)) if status.is_conflict() => continue,
                Err(error) => return Err(self.api_error(error)),
            }
        }
    }

    /// Updates a slot's Secret if needed. Returns the next time at which a check is due, seconds since 1970.
    ///
    /// # Errors
    /// The Secret could not be read or written, or has another owner.
    pub async fn ensure_slot_secret(&self, slot: &SlotSecret, now: i64) -> Result<i64, CredentialError> {
        let authorities = self.authorities(now).await?;
        let key = (slot.namespace.clone(), slot.secret.clone());
        let digest = slot.digest(&authorities.bundle());
        let known = self.with_cache(|memory| memory.slots.get(&key).copied());
        if let Some(known) = known.filter(|known| known.digest == digest && now < known.valid_until) {
            return Ok(known.valid_until);
        }
        let until = self.reconcile_secret(slot, &authorities, now).await?.min(now + RECHECK_SECONDS);
        // A check hours later would miss a rotation step.
        let until = until.min(authorities.next_rotation()?);
        self.with_cache(|memory| {
            memory.insert(key, VerifiedSlot { digest, checked_at: now, valid_until: until })
        });
        Ok(until)
    }

    /// Invalidates the cached Secret of a slot whose pod does not start: no watch reports that it was deleted or
    /// damaged.
    pub fn invalidate(&self, namespace: &str, secret: &str) {
        let key = (namespace.to_owned(), secret.to_owned());
        self.with_cache(|memory| {
            if let Some(known) = memory.slots.get_mut(&key) {
                known.valid_until = known.valid_until.min(known.checked_at + self.unverified_recheck_seconds);
            }
        });
    }

    async fn reconcile_secret(
        &self,
        slot: &SlotSecret,
        authorities: &CaBundle,
        now: i64,
    ) -> Result<i64, CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &slot.namespace);
        let failed = |error| CredentialError::Api {
            namespace: slot.namespace.clone(),
            name: slot.secret.clone(),
            error: Box::new(error),
        };
        let found = api.get_opt(&slot.secret).await.map_err(failed)?;
        if found.as_ref().is_some_and(|secret| !is_owned(&secret.metadata, |uid| uid == slot.owner.uid)) {
            return Err(CredentialError::NotOwned {
                namespace: slot.namespace.clone(),
                name: slot.secret.clone(),
            });
        }
        let held = found.as_ref().and_then(|secret| Credentials::from_secret(&secret_data(secret)));
        let names = slot.names();
        if let Some(credentials) = renew_if_due(held.as_ref(), &names, authorities, now)? {
            let params = PatchParams::apply(MANAGER).force();
            let secret = slot_secret(slot, &credentials);
            api.patch(&slot.secret, &params, &Patch::Apply(&secret)).await.map_err(failed)?;
            return Ok(valid_until(Some(&credentials), &names, authorities, now));
        }
        Ok(valid_until(held.as_ref(), &names, authorities, now))
    }

    /// Drops removed slots from the cache. Their Secrets are deleted with their owner, or by
    /// [`CertificateManager::delete`].
    pub fn retain(&self, is_there: impl Fn(&str, &str) -> bool) {
        self.with_cache(|memory| memory.slots.retain(|(namespace, secret), _| is_there(namespace, secret)));
    }

    /// Deletes the Secret of a removed slot whose tenant remains; `is_owner` checks the tenant's uid. A missing
    /// Secret is no error, and a foreign one is not deleted.
    ///
    /// # Errors
    /// The API server rejected the request, or did not answer.
    pub async fn delete(
        &self,
        namespace: &str,
        secret: &str,
        is_owner: impl Fn(&str) -> bool,
    ) -> Result<(), CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        self.with_cache(|memory| memory.slots.remove(&(namespace.to_owned(), secret.to_owned())));
        let failed = |error| {
            let (namespace, name) = (namespace.to_owned(), secret.to_owned());
            CredentialError::Api { namespace, name, error: Box::new(error) }
        };
        let found = api.get_metadata_opt(secret).await.map_err(failed)?;
        let Some(found) = found.filter(|found| is_owned(&found.metadata, is_owner)) else { return Ok(()) };
        let only = Preconditions { uid: found.metadata.uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        match api.delete(secret, &params).await {
            Ok(_) => Ok(()),
            // Deleted, or replaced by another Secret of that name.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Returns the operator's client configuration for sidecars at `now`. It is not stored: each leader creates its
    /// own.
    ///
    /// # Errors
    /// The authorities could not be read, or the certificate could not be issued.
    pub async fn own_client_config(&self, now: i64) -> Result<Arc<ClientConfig>, CredentialError> {
        let authorities = self.authorities(now).await?;
        let known = self.with_cache(|memory| memory.own.clone());
        let held = known.as_ref().map(|(credentials, _)| credentials);
        let fresh = renew_if_due(held, &CertNames::operator(), &authorities, now)?;
        match (fresh, known) {
            (None, Some((_, config))) => Ok(config),
            (fresh, _) => {
                let credentials = fresh.expect("a missing certificate is always issued");
                let config = client_config(&credentials)?;
                self.with_cache(|memory| memory.own = Some((credentials, config.clone())));
                Ok(config)
            }
        }
    }

    fn with_cache<T>(&self, of: impl FnOnce(&mut CertificateCache) -> T) -> T {
        // A panic leaves entries complete.
        of(&mut self.cache.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn api_error(&self, error: kube::Error) -> CredentialError {
        let (namespace, name) = (self.namespace.clone(), CA_SECRET_NAME.to_owned());
        CredentialError::Api { namespace, name, error: Box::new(error) }
    }
}

fn valid_until(held: Option<&Credentials>, names: &CertNames, authorities: &CaBundle, now: i64) -> i64 {
    match renewal_action(held, names, authorities, now) {
        RenewalAction::RenewAt(moment) => moment,
        RenewalAction::UpdateBundle | RenewalAction::Renew(_) => now,
    }
}

fn is_owned(secret: &ObjectMeta, is_owner: impl Fn(&str) -> bool) -> bool {
    secret.owner_references.iter().flatten().any(|one| is_owner(&one.uid))
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

fn to_byte_string(text: Option<String>) -> Option<ByteString> {
    text.map(|text| ByteString(text.into_bytes()))
}

fn ca_secret(authorities: &CaBundle) -> Secret {
    let data = authorities
        .to_secret()
        .into_iter()
        .filter_map(|(key, text)| Some((key.to_owned(), to_byte_string(text)?)));
    let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())]);
    Secret {
        metadata: ObjectMeta {
            name: Some(CA_SECRET_NAME.into()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".into()),
        data: Some(data.collect()),
        ..Secret::default()
    }
}

fn slot_secret(slot: &SlotSecret, credentials: &Credentials) -> Secret {
    let Credentials { identity, bundle } = credentials;
    let data =
        [(TLS_CERT_KEY, &identity.cert), (TLS_PRIVATE_KEY_KEY, &identity.key), (CA_BUNDLE_KEY, bundle)];
    Secret {
        metadata: ObjectMeta {
            name: Some(slot.secret.clone()),
            namespace: Some(slot.namespace.clone()),
            labels: Some(slot.labels.clone()),
            owner_references: Some(vec![slot.owner.clone()]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        data: Some(data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes()))).into()),
        ..Secret::default()
    }
}
