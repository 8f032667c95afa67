//! What the registry reports of a sidecar or a GPU.

use sluice_wire::directive::Fence;
use tokio::sync::mpsc;

use super::gpu_reading::GpuKey;
use super::http_client::SidecarAddress;

/// An event of a sidecar or a GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum SidecarEvent {
    /// A GPU's reading has changed.
    Read(GpuKey),
    /// A sidecar has accepted its directive (`None`), or the reason why it has not. The push is repeated.
    DirectiveStatus(SidecarAddress, Option<String>),
    /// A sidecar of a GPU has been without its directive for a while, or has accepted it after that.
    Stuck(GpuKey),
    /// A sidecar reports that it follows a newer leader. The push is repeated until it is accepted.
    Deposed(SidecarAddress, Fence),
}

pub(super) type EventSender = mpsc::UnboundedSender<SidecarEvent>;
