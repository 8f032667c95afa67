//! Tests of the process's steps: correct tokens, moving layers, and the waits for them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluice_link::control::{WaitLimit, WaitResult};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::vocabulary::*;

use super::harness::*;
use crate::agreement::tokens;
use crate::specs::{llama, opt};

/// Delay of a layer's copy while the engine waits for it.
const HELD_BACK: Duration = Duration::from_millis(200);

#[test]
fn greedy_tokens_equal_the_reference() {
    for spec in [llama(Dtype::F32), opt(Dtype::F32)] {
        let faults = Faults { poison_activations: true, ..Faults::default() };
        let mut sidecar = MiniSidecar::new(&spec, faults);
        let _engine = Engine::start(&sidecar.socket(), &[]);
        let mut link = sidecar.attach(&sidecar.resident());
        let prompt = tokens(19, 3, &spec);
        let sampled = sidecar.generate(&mut link, &prompt, 24);
        assert_eq!(tokens_of(&sampled), sidecar.reference(&prompt, 24));
    }
}

#[test]
fn each_layer_reports_its_time_and_only_moving_ones_their_stall() {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&sidecar.resident());
    let mut step = sidecar.step(0, &[1, 2, 3]);
    step.generations = vec![(LayerId(1), Generation(4)), (LayerId(2), Generation(4))];
    sidecar.control.publish_ready(LayerId(1), Generation(4)).unwrap();
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    // An engine waits for layer 2 only after it is done with layer 1, however late it starts.
    let patience = WaitLimit { abort: &AtomicBool::new(false), limit: Some(TEST_TIMEOUT) };
    assert_eq!(sidecar.control.wait_done(LayerId(1), Generation(4), patience).unwrap(), WaitResult::Reached);
    std::thread::sleep(HELD_BACK);
    sidecar.control.publish_ready(LayerId(2), Generation(4)).unwrap();
    let done = answer(&mut link).unwrap();
    assert!(done.layer_ns.iter().all(|ns| *ns > 0) && done.layer_ns.len() == 3, "{:?}", done.layer_ns);
    assert_eq!(done.stall_ns[0], 0, "a resident layer waits for nothing");
    let stalled_at_least = HELD_BACK.as_nanos() as u64 / 10;
    let (found, total_ns) = (done.stall_ns[2], done.total_ns);
    assert!((stalled_at_least..total_ns).contains(&found), "{found} of {total_ns}");
    assert_eq!(sidecar.control.done(LayerId(2)).unwrap(), Generation(4));
    assert_eq!(sidecar.control.done(LayerId(0)).unwrap(), Generation(0), "resident layers publish nothing");
}

/// Returns mappings in which layers 1 and 2 share layer 1's chunks.
fn shared_slot(sidecar: &MiniSidecar) -> Vec<MapOp> {
    let mine = |op: &MapOp| matches!(op, MapOp::Map(Address::Layer(LayerId(2), _), _) | MapOp::Unmap(_, _));
    let mut ops = sidecar.resident();
    ops.retain(|op| !mine(op));
    ops.extend(sidecar.map_layer(2, sidecar.layer_chunk(1)));
    ops
}

/// Runs a step whose layers 1 and 2 move through one slot. The slot is filled when its last reader is done.
fn moving_step(
    sidecar: &mut MiniSidecar,
    link: &mut EngineLink,
    number: u64,
    at: u32,
    feed: &[u32],
) -> StepDone {
    let mut step = sidecar.step(at, feed);
    let generations = [Generation(2 * number + 1), Generation(2 * number + 2)];
    step.generations = vec![(LayerId(1), generations[0]), (LayerId(2), generations[1])];
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    fill(sidecar, 1, generations[0]);
    let never = AtomicBool::new(false);
    let patience = WaitLimit { abort: &never, limit: Some(TEST_TIMEOUT) };
    let free = sidecar.control.wait_done(LayerId(1), generations[0], patience).unwrap();
    assert_eq!(free, WaitResult::Reached);
    fill(sidecar, 2, generations[1]);
    answer(link).unwrap()
}

fn fill(sidecar: &MiniSidecar, layer: u16, generation: Generation) {
    sidecar.write(sidecar.layer_chunk(1), &sidecar.slab(layer));
    sidecar.control.publish_ready(LayerId(layer), generation).unwrap();
}

#[test]
fn layers_that_move_through_one_slot_give_the_same_bits() {
    let spec = llama(Dtype::Bf16);
    let prompt = tokens(12, 8, &spec);
    let mut fixed = MiniSidecar::new(&spec, Faults::default());
    let _engine = Engine::start(&fixed.socket(), &[]);
    let mut link = fixed.attach(&fixed.resident());
    let mut moving = MiniSidecar::new(&spec, Faults::default());
    let _other = Engine::start(&moving.socket(), &[]);
    let mut other = moving.attach(&shared_slot(&moving));
    let (mut feed, mut at) = (prompt, 0);
    for number in 0..12 {
        let step = fixed.step(at, &feed);
        let expected = fixed.run(&mut link, &step).unwrap().sampled;
        let found = moving_step(&mut moving, &mut other, number, at, &feed).sampled;
        assert_eq!(found, expected, "step {number}");
        at += feed.len() as u32;
        feed = vec![found[0].token];
    }
}

/// Fills the slot of layer 2 only after the engine has read it, or after a timeout.
fn late_fill(faults: Faults) -> (bool, StepDone) {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), faults);
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&shared_slot(&sidecar));
    let mut step = sidecar.step(0, &[5, 6, 7]);
    step.generations = vec![(LayerId(1), Generation(1)), (LayerId(2), Generation(2))];
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    fill(&sidecar, 1, Generation(1));
    let never = AtomicBool::new(false);
    let patience = WaitLimit { abort: &never, limit: Some(Duration::from_millis(500)) };
    let read_early =
        sidecar.control.wait_done(LayerId(2), Generation(2), patience).unwrap() == WaitResult::Reached;
    fill(&sidecar, 2, Generation(2));
    (read_early, answer(&mut link).unwrap())
}

#[test]
fn one_dropped_wait_reads_another_layers_weights() {
    let (read_early, right) = late_fill(Faults::default());
    assert!(!read_early, "the engine waits for as long as it takes");
    let (read_early, wrong) = late_fill(Faults { dropped_wait: Some(1), ..Faults::default() });
    assert!(read_early, "the second wait was not made");
    assert_ne!(right.sampled, wrong.sampled, "and it shows in the bits");
    let (_, again) = late_fill(Faults { dropped_wait: Some(77), ..Faults::default() });
    assert_eq!(right.sampled, again.sampled, "a wait that is never reached cannot be dropped");
}

#[test]
fn a_slot_that_was_reused_before_it_was_read_refuses_the_step_instead_of_waiting_for_ever() {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::F32), Faults::default());
    let _engine = Engine::start(&sidecar.socket(), &[]);
    let mut link = sidecar.attach(&shared_slot(&sidecar));
    let mut step = sidecar.step(0, &[5, 6, 7]);
    step.generations = vec![(LayerId(1), Generation(1)), (LayerId(2), Generation(2))];
    // The copy for the next step was made too early.
    fill(&sidecar, 1, Generation(3));
    let refused = sidecar.run(&mut link, &step).expect_err("generation 1 never comes");
    assert!(refused.contains("layer 1 was overwritten"), "{refused}");
}
