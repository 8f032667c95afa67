//! Engines that are killed, and sidecars that say what they must not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::net::{SendFlags, SocketFlags, accept_with, send};
use rustix::process::{Pid, Signal, kill_process};
use sluice_link::control::{Patience, Wait};
use sluice_link::error::LinkError;
use sluice_link::frame::{Header, Kind};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::socket::readable;
use sluice_link::vocabulary::*;
use sluice_ports::compute::{Step, TableUpdate};

use super::harness::*;
use crate::agreement::tokens;
use crate::specs::llama;
use std::os::fd::AsFd;

/// The design's limit for a worker's end is 100 ms. What fails is ten times that, so that a busy machine fails nothing;
/// the time itself is printed.
const WORKER_END: Duration = Duration::from_secs(1);

/// Orders `step` and returns when the worker is inside it: it has computed layer 0 and waits for layer 1, of which
/// `generation` is not there.
fn stop_inside(sidecar: &mut MiniSidecar, link: &EngineLink, mut step: Step, generation: Generation) -> Step {
    step.generations = vec![(LayerId(0), generation), (LayerId(1), generation)];
    sidecar.control.publish_ready(LayerId(0), generation).unwrap();
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    let patience = Patience { abort: &AtomicBool::new(false), limit: Some(SOON) };
    let waited = sidecar.control.wait_done(LayerId(0), generation, patience).unwrap();
    assert!(matches!(waited, Wait::Reached), "the worker computes layer 0");
    step
}

#[test]
fn a_worker_killed_inside_a_step_has_a_successor_that_gives_the_same_bits() {
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
            // KV of the first of three layers is written, the rest is not.
            let generation = Generation(number);
            step = stop_inside(&mut sidecar, &link, step, generation);
            kill_process(Pid::from_raw(link.hello.pid as i32).unwrap(), Signal::KILL).unwrap();
            assert!(matches!(link.receiver.recv_within(SOON), Err(LinkError::Closed)));
            link.process.confirm(Duration::from_secs(2), Duration::from_secs(2)).unwrap();
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
    // The first run was fed in chunks and this one was not; batch invariance makes them equal all the same.
    assert_eq!(disturbed, undisturbed);
    assert!(engine.ended_within(Duration::ZERO).is_none(), "the supervisor lives on");
}

/// Time from the sidecar's end to that of its worker.
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
    assert!(link.process.dead_within(WORKER_END).unwrap(), "in a step: {in_step}");
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
        // What the kernel does for a killed process: every descriptor is closed, no word is said.
        drop(link);
    }
}

/// A change to a good step that makes it one to be refused, and a word of the refusal.
type Spoil = (&'static str, fn(&mut Step));

#[test]
fn orders_outside_of_tables_or_memory_are_refused_and_change_nothing() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let good = sidecar.generate(&mut link, &[1, 2, 3], 2);
    let spoils: [Spoil; 7] = [
        ("not below the vocabulary", |step| step.sequences[0].tokens[0] = 300),
        ("which is not backed", |step| put_block(step, 24 * 1000)),
        ("layer 3 of a model", |step| step.generations.push((LayerId(3), Generation(1)))),
        ("layer 3 of a model", |step| step.kv_generations.push((LayerId(3), Generation(1)))),
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
    let kv_full = Reback::Map(Address::Kv(FrameId(0)), ChunkId(0));
    let unmap = Reback::Unmap(Address::Global(0), ChunkId(0));
    for bad in [
        kv_full,
        Reback::Map(Address::Kv(FrameId(99)), ChunkId(0)),
        Reback::Map(Address::Staging(0), ChunkId(sidecar.places.end)),
        Reback::Unmap(Address::Staging(0), ChunkId(0)),
        Reback::Unmap(Address::Layer(LayerId(9), 0), ChunkId(0)),
    ] {
        assert!(reback(&mut link, &[unmap, bad]).is_err(), "{bad:?}");
    }
    assert_eq!(sidecar.generate(&mut link, &[1, 2, 3], 2), good, "the refused orders changed nothing");
    reback(&mut link, &[unmap]).unwrap();
    let step = sidecar.step(0, &[1, 2, 3]);
    let refused = sidecar.run(&mut link, &step).unwrap_err();
    assert!(refused.contains("global range is not fully backed"), "{refused}");
}

#[test]
fn a_row_without_any_candidate_fails_alone_and_the_others_have_their_tokens() {
    let spec = llama(Dtype::F32);
    let mut sidecar = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let good = sidecar.generate(&mut link, &[1, 2, 3], 1);
    let mut step = sidecar.step(0, &[1, 2, 3]);
    let (row, layers) = (RowId(1), u32::from(spec.layers));
    let blocks = (0..layers).map(|layer| BlockId(5 * layers + layer)).collect();
    step.updates.push(TableUpdate::Reset { row, tokens: Vec::new() });
    step.updates.push(TableUpdate::Column { row, column: 0, blocks });
    let mut banned = step.sequences[0].clone();
    let logit_bias = (0..spec.vocab).map(|token| (token, f32::NEG_INFINITY)).collect();
    let sampling = Arc::new(Sampling { logit_bias, ..Sampling::default() });
    (banned.row, banned.sample) = (row, Some(SampleOrder { sampling, prompt_tokens: 3 }));
    step.sequences.push(banned);
    let done = sidecar.run(&mut link, &step).expect("the step goes on");
    assert_eq!(done.sampled, good);
    assert_eq!(done.unsampled, [Unsampled { row, failure: SampleFailure::NoCandidate }]);
}

fn put_block(step: &mut Step, id: u32) {
    let column = step.updates.iter_mut().find_map(|update| match update {
        TableUpdate::Column { blocks, .. } => Some(blocks),
        TableUpdate::Reset { .. } => None,
    });
    column.unwrap()[0] = BlockId(id);
}

#[test]
fn a_sidecar_that_speaks_nonsense_is_left_and_the_next_one_served() {
    let sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let listener = sidecar.listener.as_ref().unwrap();
    let bye = Header { kind: Kind::Done, part: 0, parts: 1, length: 0 }.encode();
    for nonsense in [&[0xff; 400][..], &bye[..], &bye[..9]] {
        assert!(readable(listener.as_fd(), SOON).unwrap());
        let socket = accept_with(listener, SocketFlags::CLOEXEC).unwrap();
        send(&socket, nonsense, SendFlags::NOSIGNAL).unwrap();
        // The worker leaves: after its Hello, the end of the stream.
        let mut buffer = [0; 4096];
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < SOON && readable(socket.as_fd(), SOON).unwrap());
            let received = rustix::net::recv(&socket, &mut buffer, rustix::net::RecvFlags::empty());
            if received.is_err() || received.is_ok_and(|(_, bytes)| bytes == 0) {
                break;
            }
        }
    }
    drop(sidecar.attach(&sidecar.resident()));
}
