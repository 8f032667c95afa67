//! Decides which devices an allocated claim gets on this node. Pure.

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::{Deserialize, Serialize};

use crate::DRIVER;
use crate::config::{self, ConfigError};
use crate::devices::{DeviceKind, Offer};
use crate::proto::dra;

/// Version of [`PreparedClaim`] on disk. A reader ignores unknown fields, so an older driver can read the record of a
/// newer one. A different version marks a record that it cannot read.
pub const RECORD_VERSION: u32 = 1;

/// A prepared claim, as recorded on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedClaim {
    /// Version of the record, see [`RECORD_VERSION`].
    pub version: u32,
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim.
    pub uid: String,
    /// Devices of the claim, in the order of the allocation.
    pub devices: Vec<AllocatedDevice>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllocatedDevice {
    /// Request of the claim. For a request with alternatives, the main request, by which containers name it.
    pub request: String,
    /// Pool of the device.
    pub pool: String,
    /// Name of the device.
    pub device: String,
}

/// Why a claim is not prepared. The pod's events show this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// Another claim has this name.
    #[error("claim {claim} has the UID {found}, not {asked}: it was deleted and created again")]
    UidMismatch {
        /// Namespace and name of the claim.
        claim: String,
        /// UID of the claim.
        found: String,
        /// UID in the kubelet's request.
        asked: String,
    },
    /// The UID cannot be used in file names.
    #[error("`{0}` is not a valid UID")]
    InvalidUid(String),
    /// The scheduler has not allocated the claim.
    #[error("claim {0} is not allocated yet")]
    NotAllocated(String),
    /// No allocated device belongs to this driver and node.
    #[error("claim {0} has no device of {DRIVER} in the pool of this node")]
    NoOwnDevices(String),
    /// The node does not offer the device.
    #[error("claim {claim}: this node has no device `{device}`")]
    DeviceNotOffered {
        /// Namespace and name of the claim.
        claim: String,
        /// Name of the device.
        device: String,
    },
    /// The configuration of the claim is invalid.
    #[error("claim {claim}, request {request}: {source}")]
    InvalidConfig {
        /// Namespace and name of the claim.
        claim: String,
        /// Name of the request.
        request: String,
        /// Reason.
        source: ConfigError,
    },
}

/// Returns the devices that `claim` gets from `offer`. `asked` is the claim in the kubelet's request.
///
/// # Errors
/// The claim cannot be prepared until its owner corrects it.
pub fn prepared_claim(
    claim: &ResourceClaim,
    asked: &dra::Claim,
    offer: &Offer,
) -> Result<PreparedClaim, ClaimError> {
    let title = format!("{}/{}", asked.namespace, asked.name);
    check_uid(claim, asked, &title)?;
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let allocation = allocation.and_then(|allocation| allocation.devices.as_ref());
    let allocation = allocation.ok_or_else(|| ClaimError::NotAllocated(title.clone()))?;
    let ours = |result: &&DeviceRequestAllocationResult| result.driver == DRIVER && result.pool == offer.node;
    let results: Vec<_> = allocation.results.iter().flatten().filter(ours).collect();
    if results.is_empty() {
        return Err(ClaimError::NoOwnDevices(title));
    }
    let devices = results.into_iter().map(|result| checked_device(allocation, result, offer, &title));
    Ok(PreparedClaim {
        version: RECORD_VERSION,
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        uid: asked.uid.clone(),
        devices: devices.collect::<Result<_, _>>()?,
    })
}

fn check_uid(claim: &ResourceClaim, asked: &dra::Claim, title: &str) -> Result<(), ClaimError> {
    if !is_uid(&asked.uid) {
        return Err(ClaimError::InvalidUid(asked.uid.clone()));
    }
    let found = claim.metadata.uid.as_deref().unwrap_or("none");
    if found == asked.uid {
        return Ok(());
    }
    Err(ClaimError::UidMismatch { claim: title.into(), found: found.into(), asked: asked.uid.clone() })
}

/// Whether `text` can be part of file names. The API server makes UIDs of hexadecimal digits and dashes.
pub fn is_uid(text: &str) -> bool {
    let fits = (1..=64).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn checked_device(
    allocation: &DeviceAllocationResult,
    result: &DeviceRequestAllocationResult,
    offer: &Offer,
    title: &str,
) -> Result<AllocatedDevice, ClaimError> {
    let absent = || ClaimError::DeviceNotOffered { claim: title.into(), device: result.device.clone() };
    let offered = |device: &k8s_openapi::api::resource::v1::Device| device.name == result.device;
    let kind = DeviceKind::from_name(&result.device).ok_or_else(absent)?;
    if !crate::devices::devices(offer).iter().any(offered) {
        return Err(absent());
    }
    check_config(kind, allocation, result, offer).map_err(|source| ClaimError::InvalidConfig {
        claim: title.into(),
        request: result.request.clone(),
        source,
    })?;
    Ok(to_allocated_device(result))
}

fn to_allocated_device(result: &DeviceRequestAllocationResult) -> AllocatedDevice {
    let (request, pool) = (main_request(&result.request).to_owned(), result.pool.clone());
    AllocatedDevice { request, pool, device: result.device.clone() }
}

fn main_request(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

/// Returns the devices of this driver that are allocated to `claim` on `node`, without checking them. Empty if the
/// claim is not allocated there.
pub fn allocated_devices(claim: &ResourceClaim, node: &str) -> Vec<AllocatedDevice> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    let ours = results.into_iter().flatten().filter(|result| result.driver == DRIVER && result.pool == node);
    ours.map(to_allocated_device).collect()
}

fn check_config(
    kind: DeviceKind,
    allocation: &DeviceAllocationResult,
    result: &DeviceRequestAllocationResult,
    offer: &Offer,
) -> Result<(), ConfigError> {
    let Some((config, parameters)) = parameters(allocation, &result.request) else { return Ok(()) };
    match kind {
        DeviceKind::HostGpu => config::check(parameters, &result.device, &offer.host_memory).map(drop),
        // A configuration without requests is meant for the GPU.
        DeviceKind::Neighbourhood if config.requests.as_ref().is_none_or(Vec::is_empty) => Ok(()),
        DeviceKind::Neighbourhood => Err(ConfigError::Neighbourhood(result.device.clone())),
    }
}

/// Returns the configuration that applies to `request`: the last one, because configurations of a class precede those
/// of the claim.
fn parameters<'a>(
    allocation: &'a DeviceAllocationResult,
    request: &str,
) -> Option<(&'a DeviceAllocationConfiguration, &'a serde_json::Value)> {
    let configs = allocation.config.iter().flatten().filter(|config| applies(config, request));
    let mut ours = configs.filter_map(|config| {
        let opaque = config.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER)?;
        Some((config, &opaque.parameters.0))
    });
    ours.next_back()
}

/// Whether `config` applies to `request`. A configuration without requests applies to all; one for `gpu` also applies
/// to its alternative `gpu/large`.
fn applies(config: &DeviceAllocationConfiguration, request: &str) -> bool {
    let requests = config.requests.as_deref().unwrap_or_default();
    requests.is_empty() || requests.iter().any(|named| named == request || named == main_request(request))
}

#[cfg(test)]
mod tests;
