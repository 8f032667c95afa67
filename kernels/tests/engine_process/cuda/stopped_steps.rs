//! Decode steps that end early: their time slice is over, a layer is overtaken, or the driver has an error. Of layers
//! that were not computed nothing is published and no KV is written. A test of the module above starts these.

use rustix::process::{Pid, Signal, kill_process};
use sluice_link::error::LinkError;
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::vocabulary::*;
use sluice_memory::gpu_ledger::ParticipantHandle;
use sluice_ports::compute::Step;

use super::super::harness::*;
use super::super::time_slice::{ended, join, take, take_over};
use super::{LoggedEngine, wait_done};
use crate::specs::llama;

const PROMPT: [u32; 3] = [1, 2, 3];
/// The generation of all layers that move.
const NUMBER: Generation = Generation(5);

/// An engine that has computed a prompt in its time slice.
struct Decode {
    sidecar: MiniSidecar,
    engine: LoggedEngine,
    link: EngineLink,
    /// Another tenant of the GPU.
    other: ParticipantHandle,
    epoch: u64,
    /// KV of each layer after the prompt.
    kv: Vec<Vec<u8>>,
    _ledger: tempfile::TempDir,
}

impl Decode {
    fn new(more: &[&str], faults: Faults) -> Decode {
        Decode::with_variables(more, faults, &[])
    }

    fn with_variables(more: &[&str], faults: Faults, variables: &[(&str, &str)]) -> Decode {
        let ledger = tempfile::tempdir().unwrap();
        let other = join(ledger.path(), "other");
        let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), faults);
        let epoch = take(sidecar.participant.insert(join(ledger.path(), "own")));
        let engine = LoggedEngine::start_with(&sidecar, more, variables);
        let mut link = sidecar.attach(&sidecar.resident());
        let mut prompt = sidecar.step(0, &PROMPT);
        prompt.epoch = epoch;
        sidecar.run(&mut link, &prompt).unwrap();
        let mut decode = Decode { sidecar, engine, link, other, epoch, kv: Vec::new(), _ledger: ledger };
        decode.kv = decode.kv();
        decode
    }

    /// Returns the KV of each layer.
    fn kv(&self) -> Vec<Vec<u8>> {
        let read = |layer| {
            let (start, bytes) = self.sidecar.place(self.sidecar.layer_block(0, layer));
            self.sidecar.pool.read(start, bytes as usize)
        };
        (0..self.sidecar.setup.spec.layers).map(read).collect()
    }

    /// Returns the decode step after the prompt, in which weights and KV of `moving` move.
    fn step(&mut self, moving: &[u16]) -> Step {
        let mut step = self.sidecar.step(PROMPT.len() as u32, &[4]);
        step.epoch = self.epoch;
        step.generations = moving.iter().map(|layer| (LayerId(*layer), NUMBER)).collect();
        step.kv_generations = step.generations.clone();
        step
    }

    fn publish(&self, layer: u16, weights: u64, kv: u64) {
        self.sidecar.control.publish_ready(LayerId(layer), Generation(weights)).unwrap();
        self.sidecar.control.publish_kv_ready(LayerId(layer), Generation(kv)).unwrap();
    }

    fn send(&mut self, step: &Step) {
        self.link.sender.send_step(step, &mut self.sidecar.tables).unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.engine.0), signal).unwrap();
    }

    fn take_over(&self) {
        take_over(self.sidecar.participant.as_ref().unwrap(), &self.other);
    }

    /// Asserts that the step has computed the first `layers` layers, all of which move, and nothing of the later ones.
    /// `read` of these have written KV and were overtaken while they were read.
    fn assert_computed(&self, layers: usize, read: usize) {
        let control = &self.sidecar.control;
        for (layer, (now, before)) in self.kv().iter().zip(&self.kv).enumerate() {
            let id = LayerId(layer as u16);
            let expected = if layer < layers { NUMBER } else { Generation(0) };
            assert_eq!(control.done(id).unwrap(), expected, "weights of layer {layer}");
            assert_eq!(control.kv_done(id).unwrap(), expected, "KV of layer {layer}");
            assert_eq!(now != before, layer < layers + read, "KV of layer {layer} is written");
        }
    }

    /// Ends the engine, which has run `graphs` steps as graphs.
    fn end(self, graphs: usize) {
        let log = self.engine.end(&self.link);
        let launched = if graphs > 0 { format!("launched={graphs}") } else { "attached".to_owned() };
        assert!(log.contains(&launched), "{log}");
    }
}

/// Returns what an undisturbed engine samples.
fn undisturbed() -> Vec<Sampled> {
    let mut decode = Decode::new(&[], Faults::default());
    let step = decode.step(&[]);
    let done = decode.sidecar.run(&mut decode.link, &step).unwrap();
    decode.end(1);
    done.sampled
}

#[test]
#[ignore = "started by a test above"]
fn a_slice_that_ends_while_a_graph_waits_ends_the_step_before_that_layer() {
    let mut decode = Decode::new(&[], Faults::default());
    let step = decode.step(&[0, 1, 2]);
    decode.publish(0, 5, 5);
    // Of layer 1 the weights are there, and KV is not. All of layer 2 is there.
    decode.publish(1, 5, 0);
    decode.publish(2, 5, 5);
    decode.send(&step);
    wait_done(&decode.sidecar, 0, 5);
    decode.take_over();
    assert_eq!(ended(&mut decode.link), step.id);
    decode.assert_computed(1, 0);

    decode.other.slice_queue().release().unwrap();
    decode.epoch = take(decode.sidecar.participant.as_ref().unwrap());
    let step = decode.step(&[]);
    let done = decode.sidecar.run(&mut decode.link, &step).unwrap();
    assert_eq!(done.sampled, undisturbed(), "the next slice computes the step");
    decode.end(2);
}

#[test]
#[ignore = "started by a test above"]
fn a_slice_that_ends_behind_the_last_moving_layer_lets_the_step_end() {
    // Slow kernels, and an engine that stands still: the device computes later layers when the slice ends.
    let slow = [("SLUICE_STANDIN_CHECKED", "1")];
    let mut decode = Decode::with_variables(&[], Faults::default(), &slow);
    let step = decode.step(&[0]);
    decode.publish(0, 5, 5);
    decode.send(&step);
    wait_done(&decode.sidecar, 0, 5);
    decode.signal(Signal::STOP);
    decode.take_over();
    decode.signal(Signal::CONT);
    assert_eq!(answer(&mut decode.link).unwrap().sampled, undisturbed());
    decode.end(1);
}

#[test]
#[ignore = "started by a test above"]
fn a_layer_that_is_overtaken_before_it_is_read_ends_the_step_before_it() {
    for (more, graphs) in [(&[][..], 1), (&["--no-graphs"], 0)] {
        for (weights, kv, name) in
            [(6, 5, "layer 1 was overwritten"), (5, 6, "KV of layer 1 was overwritten")]
        {
            let mut decode = Decode::new(more, Faults::default());
            let step = decode.step(&[0, 1, 2]);
            decode.publish(0, 5, 5);
            decode.publish(1, weights, kv);
            decode.publish(2, 5, 5);
            let refused = decode.sidecar.run(&mut decode.link, &step).expect_err("layer 1 is overtaken");
            assert!(refused.starts_with(name), "{refused}");
            decode.assert_computed(1, 0);
            decode.end(graphs);
        }
    }
}

#[test]
#[ignore = "started by a test above"]
fn a_layer_that_is_overtaken_while_it_is_read_is_the_last_one_that_writes_kv() {
    for (more, graphs) in [(&[][..], 1), (&["--no-graphs"], 0)] {
        // The wait for the weights of layer 1 is not made, so that they are read though they are not there.
        let faults = Faults { dropped_wait: Some(2), ..Faults::default() };
        let mut decode = Decode::new(more, faults);
        let step = decode.step(&[0, 1, 2]);
        decode.publish(0, 5, 5);
        decode.publish(1, 4, 5);
        decode.publish(2, 5, 5);
        let refused = decode.sidecar.run(&mut decode.link, &step).expect_err("layer 1 is not there");
        assert!(refused.starts_with("layer 1 was overwritten"), "{refused}");
        decode.assert_computed(1, 1);
        decode.end(graphs);
    }
}

/// Returns a step that is a graph as the first one, and whose layer 1 moves.
fn first_step(sidecar: &mut MiniSidecar) -> Step {
    let mut step = sidecar.step(0, &[7]);
    step.generations = vec![(LayerId(1), NUMBER)];
    step
}

#[test]
#[ignore = "started by a test above"]
fn an_error_of_the_driver_while_a_graph_waits_ends_the_engine_at_once() {
    let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), Faults::default());
    // The first question whether the stream is idle: CUDA_ERROR_UNKNOWN.
    let fault = [("SLUICE_STANDIN_FAULTS", "cuStreamQuery=999@1")];
    let engine = LoggedEngine::start_with(&sidecar, &[], &fault);
    let mut link = sidecar.attach(&sidecar.resident());
    let step = first_step(&mut sidecar);
    link.sender.send_step(&step, &mut sidecar.tables).unwrap();
    let ended = link.receiver.recv_within(TEST_TIMEOUT);
    assert!(matches!(ended, Err(LinkError::Closed)), "its kernel waits no more: {ended:?}");
    let log = engine.wait();
    assert!(log.contains("the GPU failed") && log.contains("launched=1"), "{log}");
    assert_eq!(sidecar.control.done(LayerId(1)).unwrap(), Generation(0));
}

#[test]
#[ignore = "started by a test above"]
fn an_engine_whose_driver_makes_no_graph_launches_kernels_with_the_same_bits() {
    let run = |variables: &[(&str, &str)]| {
        let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), Faults::default());
        let engine = LoggedEngine::start_with(&sidecar, &[], variables);
        let mut link = sidecar.attach(&sidecar.resident());
        let mut sampled = Vec::new();
        sidecar.control.publish_ready(LayerId(1), NUMBER).unwrap();
        for _ in 0..2 {
            let step = first_step(&mut sidecar);
            sampled.push(sidecar.run(&mut link, &step).unwrap().sampled);
        }
        assert_eq!(sidecar.control.done(LayerId(1)).unwrap(), NUMBER);
        (sampled, engine.end(&link))
    };
    let (expected, log) = run(&[]);
    assert!(log.contains("captured=1 launched=2"), "{log}");
    for fault in ["cuGraphInstantiateWithFlags=2", "cuStreamBeginCapture_v2=900"] {
        let (sampled, log) = run(&[("SLUICE_STANDIN_FAULTS", fault)]);
        assert_eq!(sampled, expected, "{fault}");
        assert_eq!(log.matches("without CUDA graphs").count(), 1, "{fault}: {log}");
    }
}
