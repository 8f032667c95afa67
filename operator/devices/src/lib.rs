//! `sluice-devices`: the DRA driver `sluice.dev`, one on each node.
//!
//! It offers two kinds of devices. A *neighbourhood* is a folder that all pods of one ResourceClaim share: there the
//! tenants of a GPU keep their ledger, without a hostPath volume. A *host GPU* is made of host memory, for trials and
//! tests. The driver publishes them in a ResourceSlice, prepares claims when the kubelet says so and tells the
//! container runtime by CDI what a container gets.
//!
//! What it does not do: touch a GPU of NVIDIA's (their driver does), look into a neighbourhood, place a pod.
#![forbid(unsafe_code)]

pub mod args;
pub mod cdi;
pub mod claim;
pub mod cli;
pub mod config;
pub mod devices;
pub mod driver;
pub mod h2_authority;
pub mod health;
pub mod helm_hooks;
pub mod proto;
pub mod rpc;
pub mod serve;
pub mod slice;
pub mod store;

/// Name of the driver in claims, slices and in the kubelet's registry.
pub const DRIVER: &str = "sluice.dev";
