//! Keeps the node's ResourceSlice equal to the node's offer.
//!
//! The kubelet deletes a node's slices after the driver has been absent for 30 seconds. A driver that stops therefore
//! leaves its slice in place, as upstream's helper does, so an update of the DaemonSet removes no device. If the
//! slice is deleted or changed, the watch notices and the driver writes it again.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::DRIVER;
use crate::devices::{Offer, slice, slice_name};

/// Time before a failed write is retried, and shortest time between two successful writes. It limits the load on the
/// API server if another client keeps changing the slice.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Longest time that the driver waits for the registration before it offers its devices. A pod that is scheduled
/// before the kubelet knows the driver is retried only after a minute.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Publishes a node's devices.
pub struct Publisher {
    slices: Api<ResourceSlice>,
    nodes: Api<Node>,
    offer: Offer,
    published: watch::Sender<bool>,
}

impl Publisher {
    /// Creates a publisher of `offer`.
    pub fn new(client: Client, offer: Offer) -> Publisher {
        let (slices, nodes) = (Api::all(client.clone()), Api::all(client));
        Publisher { slices, nodes, offer, published: watch::Sender::new(false) }
    }

    /// Subscribes to whether the last write of the slice succeeded.
    pub fn subscribe(&self) -> watch::Receiver<bool> {
        self.published.subscribe()
    }

    /// Publishes the devices once the kubelet has registered the driver, or after `REGISTRATION_TIMEOUT`, and after
    /// every change of the slice. Never returns.
    pub async fn run(&self, mut registered: watch::Receiver<bool>) {
        // The result is dropped at once: it borrows the value, which would block the sender of the next registration.
        let late =
            tokio::time::timeout(REGISTRATION_TIMEOUT, registered.wait_for(|taken| *taken)).await.is_err();
        if late {
            tracing::warn!(
                "the kubelet has not registered the driver yet: publishing its devices without it"
            );
        }
        let ours = watcher::Config::default().fields(&self.fields());
        let mut changes = watcher(self.slices.clone(), ours).default_backoff().boxed();
        loop {
            match changes.try_next().await {
                Ok(Some(watcher::Event::Init | watcher::Event::InitApply(_))) => {}
                Ok(Some(_)) => self.publish_with_retry().await,
                Ok(None) => unreachable!("a watcher starts again by itself"),
                Err(error) => {
                    tracing::warn!(%error, "the watch of the ResourceSlice failed and is restarted")
                }
            }
        }
    }

    fn fields(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.offer.node)
    }

    async fn publish_with_retry(&self) {
        loop {
            let written = self.publish().await;
            self.published.send_replace(written.is_ok());
            match written {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => tracing::warn!(%error, "could not publish the ResourceSlice"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Deletes other slices of the node, and creates or updates its own. Returns whether its own slice was written.
    ///
    /// # Errors
    /// The API server refused or did not answer.
    pub async fn publish(&self) -> Result<bool, kube::Error> {
        let name = slice_name(&self.offer.node);
        let found = self.slices.list(&ListParams::default().fields(&self.fields())).await?.items;
        for foreign in found.iter().filter_map(|slice| slice.metadata.name.as_deref()).filter(|n| *n != name)
        {
            self.slices.delete(foreign, &DeleteParams::default()).await?;
        }
        let ours = found.into_iter().find(|slice| slice.metadata.name.as_deref() == Some(&name));
        let uid = self.nodes.get_metadata(&self.offer.node).await?.metadata.uid.unwrap_or_default();
        match ours {
            None => self.create(&slice(&self.offer, &uid, 1)).await,
            Some(old) => self.update(&old, &uid).await,
        }
    }

    async fn create(&self, slice: &ResourceSlice) -> Result<bool, kube::Error> {
        tracing::info!(
            devices = slice.spec.devices.as_ref().map_or(0, Vec::len),
            "created the ResourceSlice"
        );
        self.slices.create(&PostParams::default(), slice).await.map(|_| true)
    }

    async fn update(&self, old: &ResourceSlice, node_uid: &str) -> Result<bool, kube::Error> {
        let generation = old.spec.pool.generation;
        let mut new = slice(&self.offer, node_uid, generation);
        if old.spec == new.spec && old.metadata.owner_references == new.metadata.owner_references {
            return Ok(false);
        }
        new.spec.pool.generation = generation + 1;
        new.metadata.resource_version.clone_from(&old.metadata.resource_version);
        tracing::info!(generation = generation + 1, "updated the ResourceSlice");
        let name = slice_name(&self.offer.node);
        self.slices.replace(&name, &PostParams::default(), &new).await.map(|_| true)
    }
}
