//! Tests of KV of two layers that is loaded into one buffer alternately: the engine waits for each layer and publishes
//! `done` after reading it.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sluice_link::control::{WaitLimit, WaitResult};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::vocabulary::*;
use sluice_ports::compute::{Step, TableUpdate};

use super::harness::*;
use crate::agreement::tokens;
use crate::specs::llama;

/// Delay of a fetch while the engine waits for it.
const HELD_BACK: Duration = Duration::from_millis(200);

static NEVER: AtomicBool = AtomicBool::new(false);

/// A sidecar whose first KV block is on the device only for layer 0; layers 1 and 2 keep theirs in host memory.
struct OffloadedKv {
    sidecar: MiniSidecar,
    link: EngineLink,
    _engine: Engine,
    host: Vec<Vec<u8>>,
    /// The tokens after the first KV block, and the token that the engine samples then.
    feed: Vec<u32>,
    expected: Vec<Sampled>,
}

impl OffloadedKv {
    fn new(feed: usize, faults: Faults) -> OffloadedKv {
        let spec = llama(Dtype::F32);
        let mut sidecar = MiniSidecar::new(&spec, faults);
        let engine = Engine::start(&sidecar.socket(), &[]);
        let mut link = sidecar.attach(&sidecar.resident());
        let prompt = tokens(16 + feed, 3, &spec);
        let (first, feed) = prompt.split_at(16);
        let step = sidecar.step(0, first);
        sidecar.run(&mut link, &step).unwrap();
        let step = sidecar.step(16, feed);
        let expected = sidecar.run(&mut link, &step).unwrap().sampled;
        let mut away =
            OffloadedKv { sidecar, link, _engine: engine, host: Vec::new(), feed: feed.to_vec(), expected };
        away.host = [1, 2].map(|layer| away.read_and_invalidate(LayerBlockId(2 - layer))).into();
        away
    }

    /// Returns the last block of the arena, which no KV block uses.
    fn buffer(&self) -> LayerBlockId {
        LayerBlockId(self.sidecar.setup.kv_chunks * self.sidecar.layer_blocks_per_chunk() - 1)
    }

    /// Returns the content of a block and overwrites it.
    fn read_and_invalidate(&self, layer_block: LayerBlockId) -> Vec<u8> {
        let (start, bytes) = self.sidecar.place(layer_block);
        let content = self.sidecar.pool.read(start, bytes as usize);
        self.sidecar.pool.write(start, &vec![0xff; bytes as usize]);
        content
    }

    fn fetch(&self, layer: u16, generation: u64) {
        self.sidecar.pool.write(self.sidecar.place(self.buffer()).0, &self.host[usize::from(layer) - 1]);
        self.sidecar.control.publish_kv_ready(LayerId(layer), Generation(generation)).unwrap();
    }

    /// Returns the step after the first KV block; layers 1 and 2 find the KV block in the buffer as generations 5 and
    /// 6.
    fn step(&mut self) -> Step {
        let mut step = self.sidecar.step(16, &self.feed.clone());
        let layer_blocks = vec![LayerBlockId(2), self.buffer(), self.buffer()];
        step.updates.push(TableUpdate::KvBlock { row: RowId(0), kv_block: 0, layer_blocks });
        step.kv_generations = vec![(LayerId(1), Generation(5)), (LayerId(2), Generation(6))];
        step
    }

    fn send(&mut self, step: &Step) {
        self.link.sender.send_step(step, &mut self.sidecar.tables).unwrap();
    }

    fn wait_done(&self, layer: u16, generation: u64, limit: Duration) -> bool {
        let patience = WaitLimit { abort: &NEVER, limit: Some(limit) };
        let end = self.sidecar.control.wait_kv_done(LayerId(layer), Generation(generation), patience);
        end.unwrap() == WaitResult::Reached
    }
}

#[test]
fn layers_that_share_a_buffer_of_kv_read_their_own_also_in_a_step_of_several_chunks() {
    for feed in [1, 40] {
        let mut away = OffloadedKv::new(feed, Faults::default());
        let step = away.step();
        away.send(&step);
        away.fetch(1, 5);
        assert!(away.wait_done(1, 5, TEST_TIMEOUT), "layer 1 is read");
        std::thread::sleep(HELD_BACK);
        away.fetch(2, 6);
        let done = answer(&mut away.link).unwrap();
        assert_eq!(done.sampled, away.expected, "{feed} tokens");
        let control = &away.sidecar.control;
        assert_eq!(control.kv_done(LayerId(2)).unwrap(), Generation(6));
        assert_eq!(control.done(LayerId(2)).unwrap(), Generation(0), "its weights were not mentioned");
        let held_back = HELD_BACK.as_nanos() as u64 / 10;
        assert!((held_back..done.total_ns).contains(&done.kv_stall_ns[2]), "{:?}", done.kv_stall_ns);
        assert_eq!(
            (done.kv_stall_ns[0], &done.stall_ns[..]),
            (0, &[0; 3][..]),
            "nothing else was waited for"
        );
    }
}

#[test]
fn one_dropped_wait_for_kv_reads_another_layers() {
    let late = |faults| {
        let mut away = OffloadedKv::new(1, faults);
        let step = away.step();
        away.send(&step);
        away.fetch(1, 5);
        let read_early = away.wait_done(2, 6, Duration::from_millis(500));
        away.fetch(2, 6);
        (read_early, answer(&mut away.link).unwrap().sampled == away.expected)
    };
    assert_eq!(late(Faults::default()), (false, true), "the engine waits for as long as it takes");
    let dropped = Faults { dropped_wait: Some(1), ..Faults::default() };
    assert_eq!(late(dropped), (true, false), "the second wait was not made, and it shows in the bits");
}

#[test]
fn a_buffer_that_was_filled_again_before_it_was_read_refuses_the_step() {
    let mut away = OffloadedKv::new(1, Faults::default());
    let step = away.step();
    away.fetch(1, 7);
    let refused = away.sidecar.run(&mut away.link, &step).expect_err("generation 5 never comes");
    assert!(refused.contains("KV of layer 1 was overwritten"), "{refused}");
}
