//! Committed packets of a hostile or broken peer. `ok-*` must decode and `bad-*` must be refused; `any-*` (bits flipped
//! at random) must do either without a panic. `wrong-*` decode but contradict `orders()`, so the sidecar refuses them
//! as replies; `right-*` fit, and `again-*` follow `right-done`. Regenerate: `cargo test -p sluice-link -- --ignored
//! corpus`.

use std::path::PathBuf;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use rustix::net::SendFlags;
use sluice_link::error::LinkError;
use sluice_link::frame::{Header, MAX_PACKET_BYTES, MessageKind, ProtocolError};
use sluice_link::message::Message;
use sluice_link::server::{EngineEvent, EngineLink};
use sluice_link::vocabulary::*;
use sluice_ports::compute::{SequenceStep, Step};

use crate::handshake::{Sidecar, TIMEOUT, attached, refusal};
use crate::messages::{packets, receive};
use crate::strategies::message;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

#[test]
fn corpus_is_decoded_or_refused_by_file_name() {
    let mut seen = [0; 4];
    for entry in std::fs::read_dir(folder()).expect("the corpus is committed") {
        let path = entry.expect("readable folder").path();
        let name = path.file_stem().expect("named").to_string_lossy().into_owned();
        let outcome = receive(&[std::fs::read(&path).expect("readable file")]);
        match name.split('-').next() {
            Some("ok" | "right" | "wrong" | "again") => {
                assert!(matches!(outcome, Ok(Some(_))), "{name}: {outcome:?}")
            }
            Some("bad") => assert!(outcome.is_err(), "{name}: {outcome:?}"),
            Some("any") => {}
            _ => panic!("{name} has no known prefix"),
        }
        let kinds = ["ok", "bad", "any", "wrong"];
        kinds.iter().position(|kind| name.starts_with(kind)).into_iter().for_each(|kind| seen[kind] += 1);
    }
    assert!(seen.iter().all(|count| *count >= 10), "the corpus is incomplete: {seen:?}");
}

#[test]
fn the_fuzz_target_passes_every_packet_of_the_corpus() {
    let packets = committed(&[""]);
    assert!(packets.len() >= 100, "the corpus is incomplete: {} packets", packets.len());
    packets.iter().for_each(|(_, packet)| sluice_link::fuzz::fuzz_packets(packet));
}

#[test]
fn contradicting_answers_are_refused() {
    for (name, packet) in committed(&["right", "wrong", "again"]) {
        let (mut sidecar, mut link, client, _welcome) = attached();
        orders(&link, &mut sidecar);
        let mut answer = |packet: &[u8]| {
            rustix::net::send(client.fd(), packet, SendFlags::NOSIGNAL).expect("sent");
            link.receiver.recv_within(TIMEOUT)
        };
        match name.split('-').next() {
            Some("right") => assert!(answer(&packet).is_ok(), "{name} is refused"),
            Some("again") => {
                let right = std::fs::read(folder().join("right-done.bin")).expect("readable file");
                assert!(answer(&right).is_ok());
                assert_contradicts(&name, answer(&packet));
            }
            _ => assert_contradicts(&name, answer(&packet)),
        }
    }
}

fn assert_contradicts(name: &str, answer: Result<EngineEvent, LinkError>) {
    let refused = refusal(answer.expect_err(name));
    assert!(matches!(refused, ProtocolError::Contradiction { .. }), "{name}: {refused}");
}

fn committed(prefixes: &[&str]) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder()).expect("the corpus is committed") {
        let path = entry.expect("readable folder").path();
        let name = path.file_stem().expect("named").to_string_lossy().into_owned();
        if prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            found.push((name, std::fs::read(&path).expect("readable file")));
        }
    }
    found
}

/// Sends the engine a `Remap` with id 5, then attempt 2 of step 9, in which rows 1 and 3 sample and row 2 does not.
fn orders(link: &EngineLink, sidecar: &mut Sidecar) {
    let part = |row, sample: bool| SequenceStep {
        row: RowId(row),
        start: 0,
        tokens: vec![4, 5],
        sample: sample.then(|| SampleRequest { sampling: SharedSampling::default(), prompt_tokens: 2 }),
    };
    let step = Step {
        id: StepId(9),
        attempt: 2,
        epoch: 0,
        sequences: vec![part(1, true), part(2, false), part(3, true)],
        updates: Vec::new(),
        generations: Vec::new(),
        kv_generations: Vec::new(),
        activation_limit_bytes: 0,
    };
    link.sender.send_remap(ActionId(5), &[]).expect("sent");
    link.sender.send_step(&step, &mut sidecar.tables).expect("sent");
}

/// Returns the reply that fits `orders()`.
fn right() -> StepDone {
    let sampled = |row, token| Sampled { row: RowId(row), token, logprobs: None };
    StepDone {
        id: StepId(9),
        attempt: 2,
        sampled: vec![sampled(1, 7), sampled(3, 63)],
        failed: Vec::new(),
        layer_ns: vec![1; 3],
        stall_ns: vec![0; 3],
        kv_stall_ns: vec![0; 3],
        total_ns: 9,
    }
}

fn done(change: impl Fn(&mut StepDone)) -> Message {
    let mut done = right();
    change(&mut done);
    Message::Done(done)
}

fn fitting() -> Vec<(&'static str, Message)> {
    let failed = FailedSequence { row: RowId(3), failure: SequenceFailure::NoCandidate };
    let unfit =
        |row| FailedSequence { row: RowId(row), failure: SequenceFailure::Refused("unfit".to_owned()) };
    let refused = |id| Message::StepRefused { id: StepId(id), attempt: 2, message: "no".to_owned() };
    vec![
        ("right-done", done(|_| {})),
        ("right-done-in-another-order", done(|d| d.sampled.reverse())),
        (
            "right-done-one-row-failed",
            done(move |d| (d.sampled.truncate(1), d.failed.push(failed.clone())).1),
        ),
        (
            "right-done-every-row-refused",
            done(move |d| (d.sampled.clear(), d.failed.extend([1, 2, 3].map(unfit))).1),
        ),
        ("right-done-a-row-that-does-not-sample-refused", done(move |d| d.failed.push(unfit(2)))),
        ("right-step-refused", refused(9)),
        ("right-stale-epoch", Message::StaleEpoch { id: StepId(9), attempt: 2 }),
        ("right-applied", Message::Applied { id: ActionId(5) }),
        ("again-done", done(|_| {})),
        ("again-step-refused", refused(9)),
    ]
}

fn contradicting() -> Vec<(&'static str, Message)> {
    let failed = |row| FailedSequence { row: RowId(row), failure: SequenceFailure::NoCandidate };
    let unfit =
        |row| FailedSequence { row: RowId(row), failure: SequenceFailure::Refused("unfit".to_owned()) };
    let refused = |id, attempt| Message::StepRefused { id: StepId(id), attempt, message: "no".to_owned() };
    let beyond = TokenLogprobs { chosen: -1.0, top: vec![(64, -1.0)] };
    vec![
        ("wrong-step", done(|d| d.id = StepId(8))),
        ("wrong-attempt", done(|d| d.attempt = 1)),
        ("wrong-one-token-too-few", done(|d| d.sampled.truncate(1))),
        ("wrong-no-tokens", done(|d| d.sampled.clear())),
        ("wrong-one-row-twice", done(|d| d.sampled[1].row = RowId(1))),
        ("wrong-one-token-too-many", done(|d| d.sampled.push(d.sampled[0].clone()))),
        ("wrong-token-beyond-the-vocabulary", done(|d| d.sampled[0].token = 64)),
        (
            "wrong-alternative-beyond-the-vocabulary",
            done(move |d| d.sampled[0].logprobs = Some(beyond.clone())),
        ),
        ("wrong-row-that-does-not-sample", done(|d| d.sampled[1].row = RowId(2))),
        ("wrong-row-of-nobody", done(|d| d.sampled[1].row = RowId(u32::MAX))),
        ("wrong-row-sampled-and-failed", done(move |d| d.failed.push(failed(1)))),
        ("wrong-failure-of-nobody", done(move |d| d.failed.push(failed(0)))),
        ("wrong-refusal-of-nobody", done(move |d| d.failed.push(unfit(0)))),
        ("wrong-row-sampled-and-refused", done(move |d| d.failed.push(unfit(3)))),
        ("wrong-row-refused-twice", done(move |d| d.failed.extend([2, 2].map(unfit)))),
        ("wrong-no-candidate-for-a-row-that-does-not-sample", done(move |d| d.failed.push(failed(2)))),
        ("wrong-times-of-two-layers", done(|d| d.layer_ns.truncate(2))),
        ("wrong-stalls-of-four-layers", done(|d| d.stall_ns.push(0))),
        ("wrong-stalls-of-no-layers-kv", done(|d| d.kv_stall_ns.clear())),
        ("wrong-refusal-of-another-step", refused(10, 2)),
        ("wrong-refusal-of-another-attempt", refused(9, 3)),
        ("wrong-epoch-of-another-step", Message::StaleEpoch { id: StepId(8), attempt: 2 }),
        ("wrong-order-applied", Message::Applied { id: ActionId(6) }),
        ("wrong-order-refused", Message::Refused { id: ActionId(4), message: "no".to_owned() }),
    ]
}

#[test]
#[ignore = "rewrites the committed corpus"]
fn corpus_is_regenerated() {
    let write = |name: String, packet: &[u8]| {
        std::fs::write(folder().join(format!("{name}.bin")), packet).expect("writable folder");
    };
    let mut runner = TestRunner::deterministic();
    let strategy = message();
    for number in 0..60 {
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
    for (name, message) in fitting().into_iter().chain(contradicting()) {
        write(name.to_owned(), &packets(&message).remove(0));
    }
    for (name, packet) in crafted() {
        write(format!("bad-{name}"), &packet);
    }
}

/// Returns packets that each target one check.
fn crafted() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |kind, payload: &[u8]| {
        let header = Header { kind, part: 0, parts: 1, length: payload.len() as u32 };
        [header.encode().as_slice(), payload].concat()
    };
    let parts = |part, parts| Header { kind: MessageKind::Step, part, parts, length: 0 }.encode().to_vec();
    let huge_length = [0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    vec![
        ("empty", Vec::new()),
        (
            "header-only-half",
            Header { kind: MessageKind::Bye, part: 0, parts: 1, length: 0 }.encode()[..8].to_vec(),
        ),
        ("reback-states-2-to-the-63-changes", framed(MessageKind::Remap, &huge_length)),
        ("hello-states-a-huge-string", framed(MessageKind::Hello, &huge_length[1..])),
        ("hello-is-not-utf8", framed(MessageKind::Hello, &[2, 0xff, 0xfe, 1, 1])),
        ("varint-without-end", framed(MessageKind::Applied, &[0xff; 40])),
        ("bye-with-payload", framed(MessageKind::Bye, &[0])),
        ("no-parts", parts(0, 0)),
        ("part-beyond-parts", parts(3, 3)),
        ("too-many-parts", parts(0, 33)),
        ("begins-in-the-middle", parts(1, 2)),
        ("step-of-a-third-parity", framed(MessageKind::Step, &[1, 0, 0, 2, 0, 0, 0, 0])),
        ("step-with-an-empty-sequence", framed(MessageKind::Step, &[1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0])),
        ("unknown-address", framed(MessageKind::Remap, &[1, 1, 0, 9, 1, 1])),
        ("done-with-an-unknown-failure", framed(MessageKind::Done, &[1, 0, 0, 1, 1, 9, 0, 0, 0])),
        ("setup-with-a-chunk-of-three-bytes", framed(MessageKind::WorkerSetup, &[0, 3, 1, 1, 1, 1])),
        ("setup-of-no-layers", framed(MessageKind::WorkerSetup, &[0, 0x80, 0x80, 0x04, 1, 0, 1])),
        ("held-states-2-to-the-63-extents", framed(MessageKind::Held, &huge_length)),
        ("captured-with-payload", framed(MessageKind::Captured, &[0])),
        ("refusal-for-an-unknown-reason", framed(MessageKind::SetupRefused, &[9, 0])),
        ("option-is-neither", framed(MessageKind::Step, &[1, 0, 0, 1, 1, 0, 0, 1, 7, 0, 0])),
    ]
}

#[test]
fn oversized_packet_is_refused_before_decoding() {
    assert!(receive(&[vec![0; MAX_PACKET_BYTES + 1]]).is_err());
}
