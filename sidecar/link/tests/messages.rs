//! Tests of messages as bytes: a message survives its round trip, and bytes that violate the protocol are refused.

use proptest::prelude::*;
use sluice_link::frame::*;
use sluice_link::message::Message;
use sluice_link::vocabulary::*;

use crate::strategies::{message, small_setup};

/// Returns a message's packets.
pub fn packets(message: &Message) -> Vec<Vec<u8>> {
    let payload = message.encode();
    let parts = split_payload(message.kind(), &payload).expect("within the largest message");
    parts.map(|(header, part)| [header.encode().as_slice(), part].concat()).collect()
}

/// Feeds packets to a new assembler, as a receiver does; `None` if a message is still incomplete at the end.
pub fn receive(packets: &[Vec<u8>]) -> Result<Option<Message>, ProtocolError> {
    let mut assembler = Assembler::default();
    for packet in packets {
        if let Some(kind) = assembler.push(packet)? {
            return Message::decode(kind, assembler.payload()).map(Some);
        }
    }
    Ok(None)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_as_it_was_sent(message in message()) {
        prop_assert_eq!(receive(&packets(&message)), Ok(Some(message)));
    }

    #[test]
    fn every_truncated_packet_is_refused(message in message(), cut in any::<prop::sample::Index>()) {
        let mut packets = packets(&message);
        let keep = cut.index(packets[0].len());
        packets[0].truncate(keep);
        prop_assert!(receive(&packets[..1]).is_err());
    }

    #[test]
    fn a_truncated_payload_with_a_matching_header_is_refused(
        message in message(),
        cut in any::<prop::sample::Index>(),
    ) {
        let payload = message.encode();
        prop_assume!(!payload.is_empty());
        prop_assert!(Message::decode(message.kind(), &payload[..cut.index(payload.len())]).is_err());
    }

    #[test]
    fn bytes_after_the_payload_are_refused(message in message(), extra in 1..9usize) {
        let mut payload = message.encode();
        payload.resize(payload.len() + extra, 0);
        let refused = Message::decode(message.kind(), &payload);
        let trailing = ProtocolError::Trailing { kind: message.kind(), extra };
        prop_assert_eq!(refused, Err(trailing));
    }

    #[test]
    fn flipped_bits_never_panic_and_never_grow_the_message(
        message in message(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..6),
    ) {
        let mut packets = packets(&message);
        for (at, bit) in flips {
            let at = at.index(packets[0].len());
            packets[0][at] ^= 1 << bit;
        }
        if let Ok(Some(read)) = receive(&packets) {
            // An accepted message survives its own round trip. Compared as text, because NaN is unequal to itself.
            let again = Message::decode(read.kind(), &read.encode());
            prop_assert_eq!(format!("{again:?}"), format!("{:?}", Ok::<_, ProtocolError>(read)));
        }
    }

    #[test]
    fn random_bytes_never_panic(kind in 0..33u16, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut packet = Header { kind: MessageKind::Hello, part: 0, parts: 1, length: bytes.len() as u32 }.encode();
        packet[6..8].copy_from_slice(&kind.to_le_bytes());
        let _ = receive(&[[packet.as_slice(), bytes.as_slice()].concat()]);
        let _ = receive(&[bytes]);
    }
}

#[test]
fn large_message_is_split_into_parts() {
    let ops = (0..60_000).map(|at| MapOp::Map(Address::Kv(KvChunkId(at)), ChunkId(at))).collect();
    let message = Message::Remap { id: ActionId(7), ops, more: false };
    let packets = packets(&message);
    assert!(packets.len() > 1, "60,000 changes do not fit one packet");
    assert!(packets.iter().all(|packet| packet.len() <= MAX_PACKET_BYTES));
    assert_eq!(receive(&packets), Ok(Some(message)));
}

#[test]
fn parts_out_of_order_missing_or_mixed_are_refused() {
    let big = |id| {
        let ops = (0..60_000).map(|at| MapOp::Map(Address::Kv(KvChunkId(at)), ChunkId(at))).collect();
        packets(&Message::Remap { id: ActionId(id), ops, more: false })
    };
    let (one, other) = (big(1), packets(&Message::Bye));
    for order in [
        vec![one[1].clone()],
        vec![one[0].clone(), one[0].clone()],
        vec![one[0].clone(), one[2].clone()],
        vec![one[0].clone(), other[0].clone()],
    ] {
        assert!(matches!(receive(&order), Err(ProtocolError::Part { .. })));
    }
    assert_eq!(receive(&one[..1]), Ok(None), "an unfinished message is no message");
}

#[test]
fn oversized_message_is_refused() {
    let payload = vec![0; usize::from(MAX_PARTS) * MAX_PART_BYTES + 1];
    assert!(matches!(
        split_payload(MessageKind::Step, &payload).err(),
        Some(ProtocolError::Oversized { .. })
    ));
}

#[test]
fn another_version_magic_or_kind_is_refused_by_name() {
    let packet = packets(&Message::Bye).remove(0);
    let changed = |at: usize, byte: u8| {
        let mut packet = packet.clone();
        packet[at] = byte;
        receive(&[packet])
    };
    assert_eq!(changed(4, 99), Err(ProtocolError::Version { theirs: 99 }));
    assert!(matches!(changed(0, 0), Err(ProtocolError::Magic { .. })));
    assert_eq!(changed(6, 77), Err(ProtocolError::Kind { got: 77 }));
    assert_eq!(changed(12, 1), Err(ProtocolError::Length { stated: 1, got: 0 }));
}

#[test]
fn setups_that_overflow_or_reserve_without_bound_are_refused() {
    type Change = fn(&mut sluice_link::message::EngineSetup);
    let changes: [(&str, Change); 12] = [
        ("vocab", |s| s.spec.vocab = u32::MAX),
        ("layers", |s| s.spec.layers = 0),
        ("heads * head_dim", |s| (s.spec.heads, s.spec.kv_heads, s.spec.head_dim) = (1 << 20, 1, 1 << 20)),
        ("kv_heads", |s| s.spec.kv_heads = 3),
        ("head_dim", |s| s.spec.head_dim = 3),
        ("norm_eps", |s| s.spec.norm_eps = f32::NAN),
        ("chunk_bytes", |s| s.chunk_bytes = 65_537),
        ("block_bytes", |s| (s.spec.kv_heads, s.spec.heads, s.spec.head_dim) = (64, 64, 128)),
        ("reserved bytes", |s| s.kv_chunks = u32::MAX - 3),
        ("max_rows", |s| s.max_rows = 0),
        ("max_kv_blocks", |s| s.max_kv_blocks = 7),
        ("max_history", |s| s.max_history = u32::MAX),
    ];
    for (field, change) in changes {
        let mut setup = small_setup();
        assert_eq!(setup.check(), Ok(()));
        change(&mut setup);
        let error = setup.check().expect_err(field).to_string();
        assert!(error.contains(field), "{field}: {error}");
        let payload = Message::Model(Box::new(setup)).encode();
        assert!(Message::decode(MessageKind::Model, &payload).is_err(), "{field} is refused on receipt too");
    }
}
