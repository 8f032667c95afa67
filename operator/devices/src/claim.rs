//! What an allocated claim is to get on this node. Pure.

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceAllocationResult, DeviceRequestAllocationResult, ResourceClaim,
};
use serde::{Deserialize, Serialize};

use crate::DRIVER;
use crate::config::{self, ConfigError};
use crate::devices::{Kind, Offer};
use crate::proto;

/// A claim that is prepared, as it is kept on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Granted {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim.
    pub uid: String,
    /// Its devices, in the order of the allocation.
    pub devices: Vec<Given>,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Given {
    /// Request of the claim.
    pub request: String,
    /// Pool of the device.
    pub pool: String,
    /// The device.
    pub device: String,
}

/// Why a claim is not prepared. The text reaches the pod's events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is another claim of that name.
    #[error("claim {claim} has the UID {found} now, not {asked}: it was deleted and made anew")]
    OtherUid {
        /// Namespace and name.
        claim: String,
        /// Its UID.
        found: String,
        /// The UID that the kubelet asked for.
        asked: String,
    },
    /// A UID is a name of files here.
    #[error("`{0}` is no UID")]
    Uid(String),
    /// The scheduler has not given it anything.
    #[error("claim {0} is not allocated")]
    NotAllocated(String),
    /// Nothing of it is this driver's.
    #[error("claim {0} has no device of {DRIVER} in the pool of this node")]
    NotOurs(String),
    /// The node does not offer the device.
    #[error("claim {claim}: this node has no device {device}")]
    NoDevice {
        /// Namespace and name.
        claim: String,
        /// The device.
        device: String,
    },
    /// Its configuration cannot be used.
    #[error("claim {claim}, request {request}: {source}")]
    Config {
        /// Namespace and name.
        claim: String,
        /// The request.
        request: String,
        /// Why.
        source: ConfigError,
    },
}

/// What `claim`, which the kubelet calls `asked`, gets of what the node offers.
///
/// # Errors
/// It cannot be prepared, for a reason that its owner must mend.
pub fn granted(claim: &ResourceClaim, asked: &proto::Claim, offer: &Offer) -> Result<Granted, Refusal> {
    let title = format!("{}/{}", asked.namespace, asked.name);
    check_uid(claim, asked, &title)?;
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let allocation = allocation.and_then(|allocation| allocation.devices.as_ref());
    let allocation = allocation.ok_or_else(|| Refusal::NotAllocated(title.clone()))?;
    let ours = |result: &&DeviceRequestAllocationResult| result.driver == DRIVER && result.pool == offer.node;
    let results: Vec<_> = allocation.results.iter().flatten().filter(ours).collect();
    if results.is_empty() {
        return Err(Refusal::NotOurs(title));
    }
    let devices = results.into_iter().map(|result| given(allocation, result, offer, &title));
    Ok(Granted {
        namespace: asked.namespace.clone(),
        name: asked.name.clone(),
        uid: asked.uid.clone(),
        devices: devices.collect::<Result<_, _>>()?,
    })
}

fn check_uid(claim: &ResourceClaim, asked: &proto::Claim, title: &str) -> Result<(), Refusal> {
    if !is_uid(&asked.uid) {
        return Err(Refusal::Uid(asked.uid.clone()));
    }
    let found = claim.metadata.uid.as_deref().unwrap_or("none");
    if found == asked.uid {
        return Ok(());
    }
    Err(Refusal::OtherUid { claim: title.into(), found: found.into(), asked: asked.uid.clone() })
}

/// Whether `text` may name files: what the API server makes are hexadecimal digits and dashes.
pub fn is_uid(text: &str) -> bool {
    let fits = (1..=64).contains(&text.len());
    fits && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn given(
    allocation: &DeviceAllocationResult,
    result: &DeviceRequestAllocationResult,
    offer: &Offer,
    title: &str,
) -> Result<Given, Refusal> {
    let absent = || Refusal::NoDevice { claim: title.into(), device: result.device.clone() };
    let offered = |device: &k8s_openapi::api::resource::v1::Device| device.name == result.device;
    let kind = Kind::of(&result.device).ok_or_else(absent)?;
    if !crate::devices::devices(offer).iter().any(offered) {
        return Err(absent());
    }
    if kind == Kind::HostGpu
        && let Some(parameters) = parameters(allocation, &result.request)
    {
        config::check(parameters, &result.device, &offer.host_memory).map_err(|source| Refusal::Config {
            claim: title.into(),
            request: result.request.clone(),
            source,
        })?;
    }
    let (request, pool) = (result.request.clone(), result.pool.clone());
    Ok(Given { request, pool, device: result.device.clone() })
}

/// The configuration that counts for `request`: the last one, as those of a class come before those of the claim.
fn parameters<'a>(allocation: &'a DeviceAllocationResult, request: &str) -> Option<&'a serde_json::Value> {
    let configs = allocation.config.iter().flatten().filter(|config| applies(config, request));
    let mut opaque = configs.filter_map(|config| config.opaque.as_ref());
    opaque.rfind(|opaque| opaque.driver == DRIVER).map(|opaque| &opaque.parameters.0)
}

/// A configuration without requests is for all; one for `gpu` is also for its alternative `gpu/large`.
fn applies(config: &DeviceAllocationConfiguration, request: &str) -> bool {
    let requests = config.requests.as_deref().unwrap_or_default();
    let main = request.split('/').next().unwrap_or(request);
    requests.is_empty() || requests.iter().any(|named| named == request || named == main)
}

#[cfg(test)]
mod tests;
