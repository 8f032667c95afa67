//! Secrets, by name.

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

use super::authorities::{Authorities, BadSecret};
use super::due::{BUNDLE, CERT, Credentials, Due, KEY, due, renewed};
use super::issue::{IssueError, Names};
use crate::sidecars::tls::{TlsError, client_config};

/// Name of the Secret with the authorities. An admission policy keeps the operator to names that begin with `sluice-`.
pub const AUTHORITY: &str = "sluice-authority";
/// Seconds for which authorities that were read are taken to be the same: another leader may have turned them.
const READ_FOR: i64 = 300;
/// Longest time between two looks at a Secret that nothing is due for, seconds: somebody may have changed it.
const LOOK_EVERY: i64 = 6 * 3600;
/// The same, for the Secret of a slot whose pod does not start, seconds.
const DOUBTED_EVERY: i64 = 30;

/// A slot's Secret.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub secret: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Title of the claim, as the sidecar's configuration has it.
    pub claim: String,
    /// Who takes it along.
    pub owner: OwnerReference,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

impl Slot {
    /// Of all that its Secret is made of, with this bundle.
    fn digest(&self, bundle: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.namespace, &self.secret, &self.tenant, &self.claim, bundle).hash(&mut hasher);
        (&self.owner.kind, &self.owner.name, &self.owner.uid, &self.labels).hash(&mut hasher);
        hasher.finish()
    }

    fn names(&self) -> Names {
        Names::slot(&self.namespace, &self.tenant, &self.claim)
    }
}

/// Why credentials could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The API server said no, or nothing.
    #[error("Secret {namespace}/{name}: {error}")]
    Api {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// What went wrong.
        error: Box<kube::Error>,
    },
    /// The Secret of the authorities holds none.
    #[error(
        "Secret {namespace}/{name}: {error}: restore it, or delete it and all sidecars get new certificates"
    )]
    Authorities {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
        /// What is wrong.
        error: BadSecret,
    },
    /// There is a Secret of that name that is not the operator's.
    #[error("Secret {namespace}/{name} is not the operator's; it is left alone")]
    Taken {
        /// Namespace of the Secret.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A certificate could not be made.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// What was made cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What is remembered of the API server.
#[derive(Default)]
struct Memory {
    authorities: Option<(Arc<Authorities>, i64)>,
    slots: HashMap<(String, String), Known>,
    own: Option<(Credentials, Arc<ClientConfig>)>,
}

/// A slot whose Secret was as it must be. There are thousands, so nothing else is kept of them.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Digest of what it is made of.
    of: u64,
    /// When it was looked at.
    at: i64,
    /// Until when it is good.
    until: i64,
}

impl Memory {
    /// Keeps what is known of a slot. Of tenants that go nobody tells: now and then what is known no more is dropped.
    fn keep(&mut self, key: (String, String), known: Known) {
        if self.slots.len() == self.slots.capacity() {
            self.slots.retain(|_, other| known.at < other.until);
        }
        self.slots.insert(key, known);
    }
}

/// Keeps all credentials. Only the leader does.
pub struct Keeper {
    client: Client,
    namespace: String,
    memory: Mutex<Memory>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Keeper {
    /// Keeps the authorities in a Secret of `namespace`, the operator's own.
    pub fn new(client: Client, namespace: impl Into<String>) -> Keeper {
        Keeper { client, namespace: namespace.into(), memory: Mutex::default() }
    }

    /// The authorities at `now` (seconds since 1970): read, made if there are none, and turned when it is time.
    ///
    /// # Errors
    /// The Secret could not be read or written, or holds something else.
    pub async fn authorities(&self, now: i64) -> Result<Arc<Authorities>, CredentialError> {
        let known = self.memory(|memory| memory.authorities.clone());
        if let Some((authorities, _)) = known.filter(|(_, until)| now < *until) {
            return Ok(authorities);
        }
        let authorities = Arc::new(self.current(now).await?);
        let until = authorities.next_turn()?.min(now + READ_FOR);
        self.memory(|memory| memory.authorities = Some((authorities.clone(), until)));
        Ok(authorities)
    }

    async fn current(&self, now: i64) -> Result<Authorities, CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        loop {
            let Some(secret) = api.get_opt(AUTHORITY).await.map_err(|e| self.failed(e))? else {
                let first = Authorities::first(now)?;
                match api.create(&PostParams::default(), &authority_secret(&first)).await {
                    Ok(_) => return Ok(first),
                    // Another replica was faster.
                    Err(kube::Error::Api(status)) if status.is_already_exists() => continue,
                    Err(error) => return Err(self.failed(error)),
                }
            };
            let held = Authorities::of_secret(&data(&secret)).map_err(|error| {
                let (namespace, name) = (self.namespace.clone(), AUTHORITY.to_owned());
                CredentialError::Authorities { namespace, name, error }
            })?;
            let Some(turned) = held.turned(now)? else { return Ok(held) };
            let version = secret.metadata.resource_version;
            // The version makes it fail where somebody else has turned them meanwhile.
            let encoded: BTreeMap<_, _> =
                turned.to_secret().into_iter().map(|(key, text)| (key, bytes(text))).collect();
            let patch = json!({"metadata": {"resourceVersion": version}, "data": encoded});
            match api.patch(AUTHORITY, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(turned),
                Err(kube::Error::Api(status)) if status.is_conflict() => continue,
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    /// Sees to it that a slot's Secret is as it must be; the moment, seconds since 1970, before which nothing is due.
    ///
    /// # Errors
    /// The Secret could not be read or written, or is somebody else's.
    pub async fn slot(&self, slot: &Slot, now: i64) -> Result<i64, CredentialError> {
        let authorities = self.authorities(now).await?;
        let key = (slot.namespace.clone(), slot.secret.clone());
        let digest = slot.digest(&authorities.bundle());
        let known = self.memory(|memory| memory.slots.get(&key).copied());
        if let Some(known) = known.filter(|known| known.of == digest && now < known.until) {
            return Ok(known.until);
        }
        let until = self.see_to(slot, &authorities, now).await?.min(now + LOOK_EVERY);
        // Whoever comes back only hours later would miss a step of a rotation.
        let until = until.min(authorities.next_turn()?);
        self.memory(|memory| memory.keep(key, Known { of: digest, at: now, until }));
        Ok(until)
    }

    /// A slot's pod does not start: its Secret, which nothing watches, may be gone or spoilt, and is looked at again.
    pub fn doubt(&self, namespace: &str, secret: &str) {
        let key = (namespace.to_owned(), secret.to_owned());
        self.memory(|memory| {
            if let Some(known) = memory.slots.get_mut(&key) {
                known.until = known.until.min(known.at + DOUBTED_EVERY);
            }
        });
    }

    async fn see_to(&self, slot: &Slot, authorities: &Authorities, now: i64) -> Result<i64, CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &slot.namespace);
        let failed = |error| CredentialError::Api {
            namespace: slot.namespace.clone(),
            name: slot.secret.clone(),
            error: Box::new(error),
        };
        let found = api.get_opt(&slot.secret).await.map_err(failed)?;
        if found.as_ref().is_some_and(|secret| !is_of(&secret.metadata, |uid| uid == slot.owner.uid)) {
            return Err(CredentialError::Taken {
                namespace: slot.namespace.clone(),
                name: slot.secret.clone(),
            });
        }
        let held = found.as_ref().and_then(|secret| Credentials::of_secret(&data(secret)));
        let names = slot.names();
        if let Some(credentials) = renewed(held.as_ref(), &names, authorities, now)? {
            let params = PatchParams::apply(MANAGER).force();
            let secret = slot_secret(slot, &credentials);
            api.patch(&slot.secret, &params, &Patch::Apply(&secret)).await.map_err(failed)?;
            return Ok(until(Some(&credentials), &names, authorities, now));
        }
        Ok(until(held.as_ref(), &names, authorities, now))
    }

    /// Forgets slots that are gone. Their Secrets go with their owner, or by [`Keeper::delete`].
    pub fn retain(&self, is_there: impl Fn(&str, &str) -> bool) {
        self.memory(|memory| memory.slots.retain(|(namespace, secret), _| is_there(namespace, secret)));
    }

    /// Deletes the Secret of a slot that is gone while its tenant stays, whose uid `is_owner` knows. One that is not there is gone
    /// already, and one that is somebody else's is left alone.
    ///
    /// # Errors
    /// The API server said no, or nothing.
    pub async fn delete(
        &self,
        namespace: &str,
        secret: &str,
        is_owner: impl Fn(&str) -> bool,
    ) -> Result<(), CredentialError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        self.memory(|memory| memory.slots.remove(&(namespace.to_owned(), secret.to_owned())));
        let failed = |error| {
            let (namespace, name) = (namespace.to_owned(), secret.to_owned());
            CredentialError::Api { namespace, name, error: Box::new(error) }
        };
        let found = api.get_metadata_opt(secret).await.map_err(failed)?;
        let Some(found) = found.filter(|found| is_of(&found.metadata, is_owner)) else { return Ok(()) };
        let only = Preconditions { uid: found.metadata.uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
        match api.delete(secret, &params).await {
            Ok(_) => Ok(()),
            // Another one has its name by now.
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// What the operator itself connects to sidecars with at `now`. It is kept nowhere: whoever leads makes its own.
    ///
    /// # Errors
    /// The authorities could not be read, or no certificate be made.
    pub async fn own(&self, now: i64) -> Result<Arc<ClientConfig>, CredentialError> {
        let authorities = self.authorities(now).await?;
        let known = self.memory(|memory| memory.own.clone());
        let held = known.as_ref().map(|(credentials, _)| credentials);
        let fresh = renewed(held, &Names::operator(), &authorities, now)?;
        match (fresh, known) {
            (None, Some((_, config))) => Ok(config),
            (fresh, _) => {
                let credentials = fresh.expect("who holds nothing gets something");
                let config = client_config(&credentials)?;
                self.memory(|memory| memory.own = Some((credentials, config.clone())));
                Ok(config)
            }
        }
    }

    fn memory<T>(&self, of: impl FnOnce(&mut Memory) -> T) -> T {
        // Whoever panicked has left whole entries.
        of(&mut self.memory.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn failed(&self, error: kube::Error) -> CredentialError {
        let (namespace, name) = (self.namespace.clone(), AUTHORITY.to_owned());
        CredentialError::Api { namespace, name, error: Box::new(error) }
    }
}

fn until(held: Option<&Credentials>, names: &Names, authorities: &Authorities, now: i64) -> i64 {
    match due(held, names, authorities, now) {
        Due::At(moment) => moment,
        Due::Bundle | Due::Renew(_) => now,
    }
}

fn is_of(secret: &ObjectMeta, is_owner: impl Fn(&str) -> bool) -> bool {
    secret.owner_references.iter().flatten().any(|one| is_owner(&one.uid))
}

fn data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect()
}

fn bytes(text: Option<String>) -> Option<ByteString> {
    text.map(|text| ByteString(text.into_bytes()))
}

fn authority_secret(authorities: &Authorities) -> Secret {
    let data =
        authorities.to_secret().into_iter().filter_map(|(key, text)| Some((key.to_owned(), bytes(text)?)));
    let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), MANAGER.to_owned())]);
    Secret {
        metadata: ObjectMeta { name: Some(AUTHORITY.into()), labels: Some(labels), ..ObjectMeta::default() },
        type_: Some("Opaque".into()),
        data: Some(data.collect()),
        ..Secret::default()
    }
}

fn slot_secret(slot: &Slot, credentials: &Credentials) -> Secret {
    let Credentials { identity, bundle } = credentials;
    let data = [(CERT, &identity.cert), (KEY, &identity.key), (BUNDLE, bundle)];
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
