//! The kubelet's messages and services, generated from its protocol buffers (the folder `proto` of this crate).
//!
//! The generated files are committed, and a test compares them: a build needs neither protoc nor a generator.

use std::path::Path;

use tonic::transport::{Channel, Endpoint, Error};

/// Prepares claims: `k8s.io/kubelet/pkg/apis/dra/v1`.
#[allow(missing_docs, clippy::too_many_lines, reason = "it is generated")]
#[rustfmt::skip]
pub mod dra;
/// Registers a plugin with the kubelet: `k8s.io/kubelet/pkg/apis/pluginregistration/v1`.
#[allow(missing_docs, clippy::too_many_lines, reason = "it is generated")]
#[rustfmt::skip]
pub mod pluginregistration;

/// Service version that the kubelet looks for in [`pluginregistration::PluginInfo::supported_versions`].
pub const DRA_VERSION: &str = "v1.DRAPlugin";
/// [`pluginregistration::PluginInfo::type`] of a DRA driver.
pub const DRA_TYPE: &str = "DRAPlugin";

/// Connects a client, as the kubelet does, to the socket at `path`.
///
/// # Errors
/// No process listens on the socket.
pub async fn connect(path: &Path) -> Result<Channel, Error> {
    Endpoint::from_shared(format!("unix://{}", path.display()))?.connect().await
}
