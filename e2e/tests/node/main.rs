//! Pods on a real node.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod any_kubeconfig;
mod api_server_restart;
mod devices;
mod failures;
mod installed;
mod left_behind;
mod nvidia;
mod pods;
mod product;
mod proxied;
mod releases;
mod rights;
mod shares;
mod sources;
mod two_nodes;
