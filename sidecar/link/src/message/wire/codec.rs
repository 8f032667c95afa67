//! One payload as bytes, by postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{MessageKind, ProtocolError};

/// Initial buffer for a payload: holds a usual step or reply without growing.
const INITIAL_CAPACITY: usize = 1024;

/// Encodes a payload.
pub(super) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    // Postcard fails only on sequences of unknown length, and no wire struct has one.
    postcard::to_extend(value, Vec::with_capacity(INITIAL_CAPACITY)).expect("a wire struct always encodes")
}

/// Decodes a payload of `kind`. Refuses invalid and trailing bytes.
pub(super) fn read<T: DeserializeOwned>(kind: MessageKind, payload: &[u8]) -> Result<T, ProtocolError> {
    let (value, rest) = postcard::take_from_bytes::<T>(payload)
        .map_err(|error| ProtocolError::Payload { kind, reason: error.to_string() })?;
    if rest.is_empty() { Ok(value) } else { Err(ProtocolError::Trailing { kind, extra: rest.len() }) }
}
