//! What a fuzzer calls, and what tests call with the committed corpus (`tests/corpus`).

use crate::frame::{Assembler, HEADER_BYTES};
use crate::message::Message;

/// Receives bytes of an untrusted peer: as one packet, and cut into packets by the lengths that their headers state.
///
/// # Panics
/// A message that was decoded differs from what its own encoding gives.
pub fn fuzz_packets(data: &[u8]) {
    receive(std::iter::once(data));
    receive(split_by_headers(data));
}

fn receive<'a>(packets: impl Iterator<Item = &'a [u8]>) {
    let mut assembler = Assembler::default();
    for packet in packets {
        match assembler.push(packet) {
            Ok(Some(kind)) => {
                if let Ok(message) = Message::decode(kind, assembler.payload()) {
                    check_encoding(&message);
                }
            }
            Ok(None) => {}
            // The connection is unusable now.
            Err(_) => return,
        }
    }
}

/// Compares bytes and not values, because a value may hold NaN. A peer may write a number in more bytes than needed,
/// so its own bytes are not compared.
fn check_encoding(message: &Message) {
    let bytes = message.encode();
    let again = Message::decode(message.kind(), &bytes);
    assert_eq!(again.map(|again| again.encode()), Ok(bytes), "{message:?} does not survive its own encoding");
}

/// Cuts `data` where a header ends its packet; the last packet has the rest.
fn split_by_headers(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = match data.first_chunk::<HEADER_BYTES>() {
            Some(head) => u32::from_le_bytes([head[12], head[13], head[14], head[15]]) as usize,
            None => data.len(),
        };
        let (packet, rest) = data.split_at(data.len().min(length.saturating_add(HEADER_BYTES)));
        data = rest;
        (!packet.is_empty()).then_some(packet)
    })
}
