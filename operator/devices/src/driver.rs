//! The driver: asks the API server what a claim was given, and keeps the store.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::watch;

use crate::DRIVER;
use crate::cdi;
use crate::claim::{Granted, Refusal, granted};
use crate::devices::Offer;
use crate::health::Metrics;
use crate::proto::{
    Claim, Claims, DRA_TYPE, DRA_VERSION, Device, PluginInfo, PrepareAnswer, Prepared, RegistrationStatus,
    UnprepareAnswer, Unprepared,
};
use crate::rpc::{Plugin, Registrar};
use crate::store::{Store, StoreError};

/// Prepares claims on one node.
pub struct Driver {
    client: Client,
    offer: Offer,
    store: Mutex<Store>,
    metrics: Arc<Metrics>,
}

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The claim says something that its owner must mend.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There is no such claim, or it cannot be read.
    #[error("claim {claim} cannot be read: {source}")]
    Read {
        /// Namespace and name.
        claim: String,
        /// Why.
        source: Box<kube::Error>,
    },
    /// The node's disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Driver {
    /// A driver that offers `offer` and keeps `store`.
    pub fn new(client: Client, offer: Offer, store: Store, metrics: Arc<Metrics>) -> Driver {
        let driver = Driver { client, offer, store: Mutex::new(store), metrics };
        driver.count();
        driver
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("nobody panics with the store in hand")
    }

    fn count(&self) {
        if let Ok(claims) = self.store().claims() {
            self.metrics.claims(claims.len());
        }
    }

    async fn prepare_one(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        let claim = self.get(asked).await.map_err(|source| PrepareError::Read {
            claim: format!("{}/{}", asked.namespace, asked.name),
            source: Box::new(source),
        })?;
        let granted = granted(&claim, asked, &self.offer)?;
        self.store().add(&granted)?;
        Ok(devices(&granted))
    }

    async fn get(&self, claim: &Claim) -> Result<ResourceClaim, kube::Error> {
        Api::namespaced(self.client.clone(), &claim.namespace).get(&claim.name).await
    }

    async fn prepared(&self, claim: Claim) -> (String, Prepared) {
        let result = self.prepare_one(&claim).await;
        self.metrics.prepared(result.is_ok());
        let answer = match result {
            Ok(devices) => Prepared { devices, error: String::new() },
            Err(error) => {
                tracing::warn!(namespace = claim.namespace, name = claim.name, %error, "refused");
                Prepared { devices: Vec::new(), error: error.to_string() }
            }
        };
        (claim.uid, answer)
    }

    fn unprepared(&self, claim: Claim) -> (String, Unprepared) {
        let error = self.store().remove(&claim.uid).err();
        self.metrics.unprepared(error.is_none());
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        (claim.uid, Unprepared { error })
    }

    /// Removes what was prepared for claims that are no more: their pods were deleted by force while this driver was away.
    pub async fn sweep(&self) {
        let claims = self.store().claims();
        let claims = claims.inspect_err(|error| tracing::error!(%error, "records")).unwrap_or_default();
        for granted in claims {
            if self.vanished(&granted).await {
                tracing::info!(namespace = granted.namespace, name = granted.name, "claim vanished: swept");
                let removed = self.store().remove(&granted.uid);
                removed.unwrap_or_else(|error| tracing::error!(%error, "sweeping"));
            }
        }
        self.count();
    }

    /// Only an API server that answers knows that a claim is gone.
    async fn vanished(&self, granted: &Granted) -> bool {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &granted.namespace);
        match claims.get_opt(&granted.name).await {
            Ok(found) => found.and_then(|claim| claim.metadata.uid).as_ref() != Some(&granted.uid),
            Err(error) => {
                tracing::warn!(%error, "a claim cannot be read: kept");
                false
            }
        }
    }
}

fn devices(granted: &Granted) -> Vec<Device> {
    let device = |given: &crate::claim::Given| Device {
        request_names: vec![given.request.clone()],
        pool_name: given.pool.clone(),
        device_name: given.device.clone(),
        cdi_device_ids: vec![cdi::device_id(&granted.uid, &given.device)],
    };
    granted.devices.iter().map(device).collect()
}

impl Plugin for Driver {
    async fn prepare(&self, claims: Claims) -> PrepareAnswer {
        let answers = join_all(claims.claims.into_iter().map(|claim| self.prepared(claim))).await;
        self.count();
        PrepareAnswer { claims: answers.into_iter().collect() }
    }

    async fn unprepare(&self, claims: Claims) -> UnprepareAnswer {
        let answers = claims.claims.into_iter().map(|claim| self.unprepared(claim)).collect();
        self.count();
        UnprepareAnswer { claims: answers }
    }
}

/// Tells the kubelet who the driver is, and everybody else whether the kubelet took it.
pub struct Introduction {
    socket: PathBuf,
    registered: watch::Sender<bool>,
}

impl Introduction {
    /// Introduces the driver that listens at `socket`.
    pub fn new(socket: PathBuf) -> Introduction {
        Introduction { socket, registered: watch::Sender::new(false) }
    }

    /// Whether the kubelet has taken the driver.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.registered.subscribe()
    }
}

impl Registrar for Introduction {
    fn info(&self) -> PluginInfo {
        PluginInfo {
            r#type: DRA_TYPE.into(),
            name: DRIVER.into(),
            endpoint: self.socket.display().to_string(),
            supported_versions: vec![DRA_VERSION.into()],
        }
    }

    fn registered(&self, status: RegistrationStatus) {
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error = status.error, "the kubelet refused the driver");
        }
        self.registered.send_replace(status.plugin_registered);
    }
}
