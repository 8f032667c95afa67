//! [`SwapTransfer`].

use sluice_policy::ids::{ActionId, Nanos};

use crate::direction::Direction;
use crate::machine::LinkTransfer;

/// The current swap of KV over the link, between two steps or during a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SwapTransfer {
    pub(crate) id: ActionId,
    pub(crate) direction: Direction,
    pub(crate) bytes: u64,
    /// Deadline of this operation or of one that waits behind it, if any.
    pub(crate) due: Option<Nanos>,
    /// When the operation started to wait for the link.
    pub(crate) since: Nanos,
    /// The transfer, once it has the link.
    pub(crate) transfer: Option<LinkTransfer>,
}
