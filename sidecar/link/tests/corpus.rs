//! Committed packets that a hostile or broken peer might send. `ok-*` must decode, `bad-*` must be refused, `any-*` (bits
//! flipped at random) must do either without a panic. Regenerate: `cargo test -p sluice-link -- --ignored corpus`.

use std::path::PathBuf;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use sluice_link::frame::{Header, Kind, MAX_PACKET_BYTES};

use crate::messages::{packets, receive};
use crate::strategies::message;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

#[test]
fn the_committed_corpus_is_decoded_or_refused_as_its_names_say() {
    let mut seen = [0; 3];
    for entry in std::fs::read_dir(folder()).expect("the corpus is committed") {
        let path = entry.expect("readable folder").path();
        let name = path.file_stem().expect("named").to_string_lossy().into_owned();
        let outcome = receive(&[std::fs::read(&path).expect("readable file")]);
        match name.split('-').next() {
            Some("ok") => assert!(matches!(outcome, Ok(Some(_))), "{name}: {outcome:?}"),
            Some("bad") => assert!(outcome.is_err(), "{name}: {outcome:?}"),
            Some("any") => {}
            _ => panic!("{name} has no known prefix"),
        }
        seen[["ok", "bad", "any"].iter().position(|p| name.starts_with(p)).expect("just matched")] += 1;
    }
    assert!(seen.iter().all(|count| *count >= 10), "the corpus is incomplete: {seen:?}");
}

#[test]
#[ignore = "rewrites the committed corpus"]
fn corpus_is_regenerated() {
    let write = |name: String, packet: &[u8]| {
        std::fs::write(folder().join(format!("{name}.bin")), packet).expect("writable folder");
    };
    let mut runner = TestRunner::deterministic();
    let strategy = message();
    for number in 0..24 {
        let message = strategy.new_tree(&mut runner).expect("generates").current();
        let packet = packets(&message).remove(0);
        if packet.len() > 4096 {
            continue;
        }
        let kind = format!("{:?}-{number:02}", message.kind()).to_lowercase();
        write(format!("ok-{kind}"), &packet);
        write(format!("bad-cut-{kind}"), &packet[..packet.len() - 1]);
        let mut flipped = packet.clone();
        let at = 16 + (number * 31) % (packet.len() - 15).max(1);
        if let Some(byte) = flipped.get_mut(at) {
            *byte ^= 1 << (number % 8);
        }
        write(format!("any-flip-{kind}"), &flipped);
    }
    for (name, packet) in crafted() {
        write(format!("bad-{name}"), &packet);
    }
}

/// Packets that aim at a particular check.
fn crafted() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |kind, payload: &[u8]| {
        let header = Header { kind, part: 0, parts: 1, length: payload.len() as u32 };
        [header.encode().as_slice(), payload].concat()
    };
    let parts = |part, parts| Header { kind: Kind::Step, part, parts, length: 0 }.encode().to_vec();
    let huge_length = [0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    vec![
        ("empty", Vec::new()),
        ("header-only-half", Header { kind: Kind::Bye, part: 0, parts: 1, length: 0 }.encode()[..8].to_vec()),
        ("reback-states-2-to-the-63-changes", framed(Kind::Reback, &huge_length)),
        ("hello-states-a-huge-string", framed(Kind::Hello, &huge_length[1..])),
        ("hello-is-not-utf8", framed(Kind::Hello, &[2, 0xff, 0xfe, 1, 1])),
        ("varint-without-end", framed(Kind::Applied, &[0xff; 40])),
        ("bye-with-payload", framed(Kind::Bye, &[0])),
        ("no-parts", parts(0, 0)),
        ("part-beyond-parts", parts(3, 3)),
        ("too-many-parts", parts(0, 33)),
        ("begins-in-the-middle", parts(1, 2)),
        ("step-of-a-third-parity", framed(Kind::Step, &[1, 0, 0, 2, 0, 0, 0])),
        ("step-with-an-empty-sequence", framed(Kind::Step, &[1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0])),
        ("unknown-address", framed(Kind::Reback, &[1, 1, 0, 9, 1, 1])),
        ("option-is-neither", framed(Kind::Step, &[1, 0, 0, 1, 1, 0, 0, 1, 7, 0, 0])),
    ]
}

#[test]
fn a_packet_above_the_limit_is_refused_before_it_is_looked_at() {
    assert!(receive(&[vec![0; MAX_PACKET_BYTES + 1]]).is_err());
}
