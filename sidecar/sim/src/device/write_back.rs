//! Write-backs of KV to the host tier, as values.

use sluice_policy::action::LayerBlockSwap;
use sluice_policy::ids::{ActionId, Nanos};
use sluice_ports::fake_memory::LayerBlockTokens;

use crate::machine::LinkTransfer;

/// A waiting write-back.
#[derive(Clone, Debug)]
pub(super) struct QueuedWriteBack {
    pub(super) id: ActionId,
    pub(super) swaps: Vec<LayerBlockSwap>,
    /// When its blocks are needed, if an operation waits for them.
    pub(super) due: Option<Nanos>,
    pub(super) since: Nanos,
}

/// A write-back on the link.
#[derive(Clone, Debug)]
pub(super) struct RunningWriteBack {
    pub(super) id: ActionId,
    pub(super) swaps: Vec<LayerBlockSwap>,
    /// Contents of the blocks when the copy began.
    pub(super) tokens: Vec<LayerBlockTokens>,
    pub(super) transfer: LinkTransfer,
    pub(super) should_fail: bool,
}
