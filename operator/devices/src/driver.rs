//! The driver: reads allocations of claims from the API server and owns the store of prepared claims.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use tokio::sync::{Notify, watch};
use tonic::{Request, Response, Status};

use crate::DRIVER;
use crate::cdi;
use crate::claim::{ClaimError, PreparedClaim, allocated_devices, is_uid, prepared_claim};
use crate::devices::Offer;
use crate::health::DriverMetrics;
use crate::proto::dra::dra_plugin_server::DraPlugin;
use crate::proto::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::proto::pluginregistration::registration_server::Registration;
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::proto::{DRA_TYPE, DRA_VERSION};
use crate::store::{Store, StoreError};

/// Time limit for reading a claim from the API server. The kubelet waits 45 seconds for a whole call.
const API_READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Prepares claims on one node.
pub struct Driver {
    client: Client,
    offer: Offer,
    store: Mutex<Store>,
    metrics: Arc<DriverMetrics>,
    /// Serialises prepare, unprepare and sweep calls, as the helper of upstream's drivers does. Otherwise a claim
    /// that is unprepared while it is being prepared would stay.
    prepare_lock: tokio::sync::Mutex<()>,
    /// UIDs of recorded claims that did not exist at the last sweep.
    missing_claims: Mutex<HashSet<String>>,
    stale_added: Notify,
}

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The claim is invalid until its owner corrects it.
    #[error(transparent)]
    Refused(#[from] ClaimError),
    /// The claim does not exist or cannot be read.
    #[error("claim {claim} cannot be read: {source}")]
    Read {
        /// Namespace and name of the claim.
        claim: String,
        /// Reason.
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("claim {0} cannot be read: the API server did not answer within {seconds} s", seconds = API_READ_TIMEOUT.as_secs())]
    Timeout(String),
    /// A file of the store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Driver {
    /// Creates a driver that offers `offer` and owns `store`.
    pub fn new(client: Client, offer: Offer, store: Store, metrics: Arc<DriverMetrics>) -> Driver {
        let driver = Driver {
            client,
            offer,
            store: Mutex::new(store),
            metrics,
            prepare_lock: tokio::sync::Mutex::default(),
            missing_claims: Mutex::default(),
            stale_added: Notify::new(),
        };
        driver.count();
        driver
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("no holder of the lock of the store panics")
    }

    fn count(&self) {
        let store = self.store();
        if let (Ok(claims), Ok(bad)) = (store.claims(), store.bad_records()) {
            self.metrics.records(claims.len(), bad);
        }
    }

    async fn prepare_one(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        let title = || format!("{}/{}", asked.namespace, asked.name);
        let claim = tokio::time::timeout(API_READ_TIMEOUT, self.get(asked)).await;
        let claim = claim.map_err(|_| PrepareError::Timeout(title()))?;
        let claim =
            claim.map_err(|source| PrepareError::Read { claim: title(), source: Box::new(source) })?;
        let granted = match self.recorded_claim(&claim, asked)? {
            Some(held) => held,
            None => prepared_claim(&claim, asked, &self.offer)?,
        };
        self.store().add(&granted)?;
        Ok(devices(&granted))
    }

    /// Returns the recorded claim if it has the devices that are allocated to it now. A prepared claim keeps its
    /// devices even if the node now offers fewer.
    fn recorded_claim(
        &self,
        claim: &ResourceClaim,
        asked: &Claim,
    ) -> Result<Option<PreparedClaim>, StoreError> {
        if !is_uid(&asked.uid) || claim.metadata.uid.as_ref() != Some(&asked.uid) {
            return Ok(None);
        }
        let held = self.store().find(&asked.uid)?;
        Ok(held.filter(|held| held.devices == allocated_devices(claim, &self.offer.node)))
    }

    async fn get(&self, claim: &Claim) -> Result<ResourceClaim, kube::Error> {
        Api::namespaced(self.client.clone(), &claim.namespace).get(&claim.name).await
    }

    async fn prepare_response(&self, claim: Claim) -> (String, NodePrepareResourceResponse) {
        let result = self.prepare_one(&claim).await;
        self.metrics.prepared(result.is_ok());
        let answer = match result {
            Ok(devices) => NodePrepareResourceResponse { devices, error: String::new() },
            Err(error) => {
                tracing::warn!(namespace = claim.namespace, name = claim.name, %error, "refused");
                NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() }
            }
        };
        (claim.uid, answer)
    }

    fn unprepare_response(&self, claim: Claim) -> (String, NodeUnprepareResourceResponse) {
        let error = self.store().remove(&claim.uid).err();
        self.stale_added.notify_one();
        self.metrics.unprepared(error.is_none());
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        (claim.uid, NodeUnprepareResourceResponse { error })
    }

    /// Removes the files of claims that did not exist at this sweep and at the previous one. This happens if pods
    /// were deleted by force while this driver was not running. The kubelet knows whether a container still runs; the
    /// time between two sweeps lets it unprepare the claim first.
    pub async fn garbage_collect(&self) {
        let claims = self.store().claims();
        let claims = claims.inspect_err(|error| tracing::error!(%error, "records")).unwrap_or_default();
        let before = std::mem::take(&mut *self.missing_claims());
        for granted in claims {
            let _guard = self.prepare_lock.lock().await;
            if !self.is_claim_deleted(&granted).await {
                continue;
            }
            if !before.contains(&granted.uid) {
                self.missing_claims().insert(granted.uid);
                continue;
            }
            tracing::info!(
                namespace = granted.namespace,
                name = granted.name,
                "claim no longer exists: removing its files"
            );
            let removed = self.store().remove(&granted.uid);
            removed.unwrap_or_else(|error| tracing::error!(%error, "could not remove the files of a claim"));
            self.stale_added.notify_one();
        }
        self.count();
    }

    fn missing_claims(&self) -> MutexGuard<'_, HashSet<String>> {
        self.missing_claims.lock().expect("no holder of the lock of missing claims panics")
    }

    /// Whether the claim was deleted, was created again, or has none of the recorded devices now. `false` if the API
    /// server does not answer.
    async fn is_claim_deleted(&self, granted: &PreparedClaim) -> bool {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &granted.namespace);
        match tokio::time::timeout(API_READ_TIMEOUT, claims.get_opt(&granted.name)).await {
            Ok(Ok(found)) => found.is_none_or(|claim| {
                let allocated = allocated_devices(&claim, &self.offer.node);
                let other = claim.metadata.uid.as_ref() != Some(&granted.uid);
                other || !granted.devices.iter().any(|device| allocated.contains(device))
            }),
            Ok(Err(error)) => {
                tracing::warn!(%error, "could not read a claim: keeping its files");
                false
            }
            Err(_) => false,
        }
    }

    /// Removes stale files at the start and after each call that may add some. Never returns.
    pub async fn remove_stale_files(&self) {
        loop {
            let rubbish = self.store().stale_files();
            let emptied = tokio::task::spawn_blocking(move || rubbish.remove_all()).await;
            if let Err(error) = emptied.expect("removing files does not panic") {
                tracing::error!(%error, "could not remove stale files");
            }
            self.stale_added.notified().await;
        }
    }
}

fn devices(granted: &PreparedClaim) -> Vec<Device> {
    let device = |given: &crate::claim::AllocatedDevice| Device {
        request_names: vec![given.request.clone()],
        pool_name: given.pool.clone(),
        device_name: given.device.clone(),
        cdi_device_ids: vec![cdi::device_id(&granted.uid, &given.device)],
        share_id: None,
    };
    granted.devices.iter().map(device).collect()
}

/// Prepares each claim or returns the reason why not. The kubelet repeats a call for claims that are already prepared
/// or unprepared.
#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        if claims.is_empty() {
            // A probe sends no claims and must not wait for the lock.
            return Ok(Response::new(NodePrepareResourcesResponse::default()));
        }
        let _guard = self.prepare_lock.lock().await;
        let answers = join_all(claims.into_iter().map(|claim| self.prepare_response(claim))).await;
        self.count();
        Ok(Response::new(NodePrepareResourcesResponse { claims: answers.into_iter().collect() }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        let _guard = self.prepare_lock.lock().await;
        let answers = claims.into_iter().map(|claim| self.unprepare_response(claim)).collect();
        self.count();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims: answers }))
    }
}

/// Describes the driver to the kubelet and publishes whether the kubelet has registered it.
pub struct RegistrationInfo {
    socket: PathBuf,
    registered: watch::Sender<bool>,
}

impl RegistrationInfo {
    /// Describes the driver that listens at `socket`.
    pub fn new(socket: PathBuf) -> RegistrationInfo {
        RegistrationInfo { socket, registered: watch::Sender::new(false) }
    }

    /// Subscribes to whether the kubelet has registered the driver.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.registered.subscribe()
    }
}

#[tonic::async_trait]
impl Registration for RegistrationInfo {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: DRA_TYPE.into(),
            name: DRIVER.into(),
            endpoint: self.socket.display().to_string(),
            supported_versions: vec![DRA_VERSION.into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
        } else {
            tracing::error!(error = status.error, "the kubelet refused to register the driver");
        }
        self.registered.send_replace(status.plugin_registered);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
