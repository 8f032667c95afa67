//! [`UnfitReason`].

use std::cmp::Reverse;

use sluice_common::text::bytes;

/// What a GPU lacks for a slot, from farthest to nearest to a fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum UnfitReason {
    /// Another slot of the tenant is there.
    #[error("another slot of this tenant is on it, and two slots of a tenant never share a GPU")]
    SameTenant,
    /// The settings in force until an update is applied do not fit the slot.
    #[error(
        "a change of the pool is pending there (spec.updatePolicy: WhenEmpty), and its current chunks are \
         too small for this model"
    )]
    UpdatePending,
    /// A proxied engine has the GPU or needs it exclusively.
    #[error("a Vllm engine does not share its GPU")]
    Exclusive,
    /// The demand of one of its slots is not known.
    #[error("a tenant on it has not been inspected")]
    Uninspected,
    /// The floors that its sidecars have determined are not known yet.
    #[error("the operator has just started and does not know the floors of its tenants yet")]
    FloorUnknown,
    /// It has its maximum number of slots.
    #[error("it has its maximum number of tenants")]
    Full,
    /// The floors of its slots leave too little.
    #[error("the floors of its tenants leave too little device memory: {} are missing", bytes(.0.0))]
    DeviceMemory(Reverse<u64>),
    /// Its slots leave too little host memory.
    #[error("its tenants leave too little host memory: {} are missing", bytes(.0.0))]
    HostMemory(Reverse<u64>),
}
