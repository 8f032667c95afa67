//! Refusals that reach the peer before its link ends.

use crate::error::LinkError;
use crate::message::{Message, RefusalReason, SetupRefused};
use crate::socket::Sender;

/// Refuses what a worker or scheduler has announced, and ends the link. What was sent before still arrives.
pub(super) fn refuse(
    sender: &Sender,
    reason: RefusalReason,
    message: impl Into<String>,
) -> Result<(), LinkError> {
    sender.send(&Message::SetupRefused(SetupRefused::new(reason, message)), &[])?;
    sender.shutdown();
    Ok(())
}
