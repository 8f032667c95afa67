//! Tests with killed engines and with invalid orders of the sidecar.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use rustix::process::{Pid, Signal, kill_process};
use sluice_link::control::{WaitLimit, WaitResult};
use sluice_link::error::LinkError;
use sluice_link::frame::{Header, MessageKind};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::socket::wait_readable;
use sluice_link::vocabulary::*;
use sluice_ports::compute::{SequenceStep, Step, TableUpdate};

use super::harness::*;
use crate::agreement::tokens;
use crate::specs::llama;
use std::os::fd::AsFd;

/// Limit for a worker's exit. The design's limit is 100 ms; the test fails only at ten times that, so that a busy
/// machine does not fail it, and prints the measured time.
const WORKER_END: Duration = Duration::from_secs(1);

/// Orders `step` and returns when the worker is inside it: it has computed layer 0 and waits for `generation` of layer
/// 1.
pub fn stop_inside(
    sidecar: &mut MiniSidecar,
    link: &EngineLink,
    mut step: Step,
    generation: Generation,
) -> Step {
    step.generations = vec![(LayerId(0), generation), (LayerId(1), generation)];
    sidecar.control.publish_ready(LayerId(0), generation).unwrap();
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    let patience = WaitLimit { abort: &AtomicBool::new(false), limit: Some(TEST_TIMEOUT) };
    let waited = sidecar.control.wait_done(LayerId(0), generation, patience).unwrap();
    assert!(matches!(waited, WaitResult::Reached), "the worker computes layer 0");
    step
}

#[test]
fn worker_killed_in_step_is_replaced_with_same_bits() {
    let spec = llama(Dtype::F32);
    let prompt = tokens(10, 4, &spec);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let mut engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let undisturbed = sidecar.generate(&mut link, &prompt, 6);
    let mut disturbed: Vec<Sampled> = Vec::new();
    let (mut feed, mut at) = (prompt, 0);
    for number in 0..6 {
        let mut step = sidecar.step(at, &feed);
        if number % 2 == 1 {
            // KV of the first of three layers is written, that of the others is not.
            let generation = Generation(number);
            step = stop_inside(&mut sidecar, &link, step, generation);
            kill_process(Pid::from_raw(link.hello.pid as i32).unwrap(), Signal::KILL).unwrap();
            assert!(matches!(link.receiver.recv_within(TEST_TIMEOUT), Err(LinkError::Closed)));
            link.process.kill_and_wait(Duration::from_secs(2), Duration::from_secs(2)).unwrap();
            link = sidecar.attach(&sidecar.resident());
            step.attempt += 1;
            sidecar.control.publish_ready(LayerId(1), generation).unwrap();
        }
        let done = sidecar.run(&mut link, &step).unwrap();
        assert_eq!((done.id, done.attempt), (step.id, step.attempt));
        at += feed.len() as u32;
        feed = vec![done.sampled[0].token];
        disturbed.extend(done.sampled);
    }
    // The first run was fed in chunks, this one was not; batch invariance makes them equal.
    assert_eq!(disturbed, undisturbed);
    assert!(engine.exited_within(Duration::ZERO).is_none(), "the supervisor lives on");
}

/// Returns the time from the sidecar's exit to the exit of its worker.
fn end_of_worker(in_step: bool) -> Duration {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let link = sidecar.attach(&sidecar.resident());
    if in_step {
        let step = sidecar.step(0, &[1, 2]);
        stop_inside(&mut sidecar, &link, step, Generation(1));
    }
    drop(sidecar.listener.take());
    let begun = Instant::now();
    link.sender.shutdown();
    assert!(link.process.wait_exit(WORKER_END).unwrap(), "in a step: {in_step}");
    begun.elapsed()
}

#[test]
fn a_worker_ends_with_its_sidecar_even_inside_a_step() {
    for in_step in [false, true] {
        let took: Vec<_> = (0..3).map(|_| end_of_worker(in_step)).collect();
        let best = took.iter().min().unwrap();
        eprintln!("worker ended after {best:?} at best of {took:?} (in a step: {in_step}, limit 100 ms)");
    }
}

#[test]
fn a_killed_sidecars_successor_is_served() {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    for _ in 0..3 {
        let mut link = sidecar.attach(&sidecar.resident());
        let step = sidecar.step(0, &[1, 2, 3]);
        assert!(sidecar.run(&mut link, &step).is_ok());
        // The kernel does the same for a killed process: it closes every descriptor, and no message is sent.
        drop(link);
    }
}

/// A change that makes a valid step refused, and a part of the expected message.
type StepMutation = (&'static str, fn(&mut Step));

#[test]
fn steps_outside_of_memory_or_layers_are_refused_and_change_nothing() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let good = sidecar.generate(&mut link, &[1, 2, 3], 2);
    let spoils: [StepMutation; 5] = [
        ("layer 3, but the model has", |step| step.generations.push((LayerId(3), Generation(1)))),
        ("layer 3, but the model has", |step| step.kv_generations.push((LayerId(3), Generation(1)))),
        ("are backed", |step| step.activation_limit_bytes += 1),
        ("are backed", |step| step.activation_limit_bytes = 64),
        ("twice", |step| step.sequences.push(step.sequences[0].clone())),
    ];
    for (word, spoil) in spoils {
        let mut step = sidecar.step(0, &[1, 2, 3]);
        spoil(&mut step);
        let refused = sidecar.run(&mut link, &step).expect_err(word);
        assert!(refused.contains(word), "{word}: {refused}");
    }
    let kv_full = MapOp::Map(Address::Kv(KvChunkId(0)), ChunkId(0));
    let unmap = MapOp::Unmap(Address::Global(0), ChunkId(0));
    for bad in [
        kv_full,
        MapOp::Map(Address::Kv(KvChunkId(99)), ChunkId(0)),
        MapOp::Map(Address::Staging(0), ChunkId(sidecar.chunk_layout.end)),
        MapOp::Unmap(Address::Staging(0), ChunkId(0)),
        MapOp::Unmap(Address::Layer(LayerId(9), 0), ChunkId(0)),
    ] {
        assert!(remap(&mut link, &[unmap, bad]).is_err(), "{bad:?}");
    }
    assert_eq!(sidecar.generate(&mut link, &[1, 2, 3], 2), good, "the refused orders changed nothing");
    remap(&mut link, &[unmap]).unwrap();
    let step = sidecar.step(0, &[1, 2, 3]);
    let refused = sidecar.run(&mut link, &step).unwrap_err();
    assert!(refused.contains("global range is not fully backed"), "{refused}");
}

/// A second row with the same prompt in its own blocks.
const OTHER_ROW: RowId = RowId(1);

fn add_other_row(step: &mut Step, layers: u16) {
    let layers = u32::from(layers);
    let layer_blocks = (0..layers).map(|layer| LayerBlockId(5 * layers + layer)).collect();
    step.updates.push(TableUpdate::Reset { row: OTHER_ROW, tokens: Vec::new() });
    step.updates.push(TableUpdate::KvBlock { row: OTHER_ROW, kv_block: 0, layer_blocks });
    let beside = SequenceStep { row: OTHER_ROW, ..step.sequences[0].clone() };
    step.sequences.push(beside);
}

/// Sets the sampling parameters of the sequence at `index`.
fn sampled_by(step: &mut Step, index: usize, sampling: Sampling) {
    step.sequences[index].sample = Some(SampleRequest { sampling: Arc::new(sampling), prompt_tokens: 3 });
}

/// A change that makes the sequence at an index invalid, and a part of the expected message.
type SequenceMutation = (&'static str, fn(&mut Step, usize));

const INVALID_SEQUENCES: [SequenceMutation; 6] = [
    ("token 300 at index 0 is not in the vocabulary", |step, index| step.sequences[index].tokens[0] = 300),
    ("token 4294967295 at index 2", |step, index| step.sequences[index].tokens[2] = u32::MAX),
    ("which is not backed", |step, index| put_block(step, index, 24 * 1000)),
    ("has no block in layer 0, KV block 1", |step, index| step.sequences[index].start = 64),
    ("top_p", |step, index| sampled_by(step, index, Sampling { top_p: 0.0, ..Sampling::default() })),
    ("logit_bias has token 300", |step, index| {
        sampled_by(step, index, Sampling { logit_bias: vec![(300, 1.0)], ..Sampling::default() });
    }),
];

#[test]
fn only_invalid_sequence_is_refused_and_others_get_tokens() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let good = sidecar.generate(&mut link, &[1, 2, 3], 1);
    for (word, spoil) in INVALID_SEQUENCES {
        for unfit in 0..2 {
            let mut step = sidecar.step(0, &[1, 2, 3]);
            add_other_row(&mut step, spec.layers);
            spoil(&mut step, unfit);
            // A prompt chunk asks for no token and is refused as well.
            if word.contains("token 3") && !word.contains("bias") {
                step.sequences[unfit].sample = None;
            }
            let done = sidecar.run(&mut link, &step).expect("the step goes on");
            let other = Sampled { row: step.sequences[1 - unfit].row, ..good[0].clone() };
            assert_eq!(done.sampled, [other], "{word}");
            assert_refused(&done, &[step.sequences[unfit].row], word);
        }
    }
    assert_eq!(sidecar.generate(&mut link, &[1, 2, 3], 1), good, "the refused sequences changed nothing");
}

/// The layers are passed nevertheless: a sidecar that moves them waits for each.
#[test]
fn step_of_only_invalid_sequences_runs_and_refuses_each() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    for (word, spoil) in INVALID_SEQUENCES {
        let mut step = sidecar.step(0, &[1, 2, 3]);
        add_other_row(&mut step, spec.layers);
        (0..2).for_each(|index| spoil(&mut step, index));
        let generation = Generation(step.id.0);
        step.generations = (0..spec.layers).map(|layer| (LayerId(layer), generation)).collect();
        for (layer, _) in &step.generations {
            sidecar.control.publish_ready(*layer, generation).unwrap();
        }
        let done = sidecar.run(&mut link, &step).expect("the step goes on");
        assert_eq!(done.sampled, []);
        assert_refused(&done, &[RowId(0), OTHER_ROW], word);
        let last = LayerId(spec.layers - 1);
        let patience = WaitLimit { abort: &AtomicBool::new(false), limit: Some(TEST_TIMEOUT) };
        let waited = sidecar.control.wait_done(last, generation, patience).unwrap();
        assert!(matches!(waited, WaitResult::Reached), "{word}");
    }
}

fn assert_refused(done: &StepDone, rows: &[RowId], word: &str) {
    assert_eq!(done.failed.iter().map(|one| one.row).collect::<Vec<_>>(), rows, "{word}");
    for one in &done.failed {
        assert!(matches!(&one.failure, SequenceFailure::Refused(reason) if reason.contains(word)), "{one:?}");
    }
}

#[test]
fn only_row_without_candidate_fails_and_others_get_tokens() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let good = sidecar.generate(&mut link, &[1, 2, 3], 1);
    let mut step = sidecar.step(0, &[1, 2, 3]);
    add_other_row(&mut step, spec.layers);
    let logit_bias = (0..spec.vocab).map(|token| (token, f32::NEG_INFINITY)).collect();
    sampled_by(&mut step, 1, Sampling { logit_bias, ..Sampling::default() });
    let done = sidecar.run(&mut link, &step).expect("the step goes on");
    assert_eq!(done.sampled, good);
    assert_eq!(done.failed, [FailedSequence { row: OTHER_ROW, failure: SequenceFailure::NoCandidate }]);
}

/// Sets another block for the first KV block of the sequence at `index`.
fn put_block(step: &mut Step, index: usize, id: u32) {
    let of = step.sequences[index].row;
    let kv_block = step.updates.iter_mut().find_map(|update| match update {
        TableUpdate::KvBlock { row, layer_blocks, .. } if *row == of => Some(layer_blocks),
        _ => None,
    });
    kv_block.unwrap()[0] = LayerBlockId(id);
}

#[test]
fn malformed_sidecar_is_disconnected_and_next_one_served() {
    let sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let listener = sidecar.listener.as_ref().unwrap();
    let bye = Header { kind: MessageKind::Done, part: 0, parts: 1, length: 0 }.encode();
    for nonsense in [&[0xff; 400][..], &bye[..], &bye[..9]] {
        assert!(wait_readable(listener.as_fd(), TEST_TIMEOUT).unwrap());
        let socket = accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        send(&socket, nonsense, SendFlags::NOSIGNAL).unwrap();
        // The worker disconnects: after its `Hello`, the stream ends.
        let mut buffer = [0; 4096];
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < TEST_TIMEOUT && wait_readable(socket.as_fd(), TEST_TIMEOUT).unwrap());
            let received = rustix::net::recv(&socket, &mut buffer, rustix::net::RecvFlags::empty());
            if received.is_err() || received.is_ok_and(|(_, bytes)| bytes == 0) {
                break;
            }
        }
    }
    drop(sidecar.attach(&sidecar.resident()));
}
