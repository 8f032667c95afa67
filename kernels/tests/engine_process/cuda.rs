//! The same tests with an engine on a GPU, and those of what only an engine on a GPU does. A stand-in poses as the
//! driver. The library path of a process is fixed when it starts, so each runs in a process that a test starts.

mod products;
mod stopped_steps;

use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use sluice_cuda_standin::library_folder::LibraryFolder;
use sluice_cuda_standin::test_machine::TestMachine;
use sluice_link::control::{WaitLimit, WaitResult};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;
use sluice_link::server::EngineLink;
use sluice_link::vocabulary::*;
use sluice_ports::compute::Step;

use super::harness::*;
use crate::agreement::tokens;
use crate::specs::{GPU_VAR, llama, opt};

/// Runs tests of this program in a process whose engines compute on a GPU. Each must pass.
fn run_on_gpu(arguments: &[&str], variables: &[(&str, &str)], expected: usize) {
    run_with_libraries(arguments, variables, expected, Ok);
}

/// As [`run_on_gpu`], with more libraries than the driver's.
fn run_with_libraries(
    arguments: &[&str],
    variables: &[(&str, &str)],
    expected: usize,
    libraries_of: impl FnOnce(LibraryFolder) -> io::Result<LibraryFolder>,
) {
    let folder = tempfile::tempdir().unwrap();
    let machine =
        TestMachine::new(folder.path()).and_then(|machine| machine.with_library(libraries_of)).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(arguments)
        .envs(variables.iter().copied())
        .env(GPU_VAR, "1")
        .envs(machine.variables())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let passed = child.status.success() && said.contains(&format!(" {expected} passed"));
    assert!(passed, "{said}{}", String::from_utf8_lossy(&child.stderr));
    machine.assert_nothing_held();
}

/// Tests of the host's engine that hold for one on a GPU, among them all that compare bits. Not those of a dropped wait:
/// on a GPU the check after the last read finds it.
const SHARED: [&str; 11] = [
    "engine_process::steps::greedy_tokens_equal_the_reference",
    "engine_process::steps::each_layer_reports_its_time_and_only_moving_ones_their_stall",
    "engine_process::steps::layers_that_move_through_one_slot_give_the_same_bits",
    "engine_process::steps::a_slot_that_was_reused_before_it_was_read_refuses_the_step_instead_of_waiting_for_ever",
    "engine_process::fetches::layers_that_share_a_buffer_of_kv_read_their_own_also_in_a_step_of_several_chunks",
    "engine_process::fetches::a_buffer_that_was_filled_again_before_it_was_read_refuses_the_step",
    "engine_process::faults::worker_killed_in_step_is_replaced_with_same_bits",
    "engine_process::faults::steps_outside_of_memory_or_layers_are_refused_and_change_nothing",
    "engine_process::faults::only_invalid_sequence_is_refused_and_others_get_tokens",
    "engine_process::faults::only_row_without_candidate_fails_and_others_get_tokens",
    "engine_process::time_slice::step_begins_no_layer_after_its_slice",
];

fn shared(variables: &[(&str, &str)]) {
    let arguments: Vec<_> = ["--exact", "--test-threads=2"].into_iter().chain(SHARED).collect();
    run_on_gpu(&arguments, variables, SHARED.len());
}

#[test]
fn tests_of_the_hosts_engine_hold_on_a_gpu_with_graphs() {
    shared(&[]);
}

#[test]
fn tests_of_the_hosts_engine_hold_on_a_gpu_without_graphs() {
    shared(&[("SLUICE_ENGINE_NO_GRAPHS", "1")]);
}

#[test]
fn an_engine_on_a_gpu_reuses_graphs_and_finds_what_is_overtaken() {
    run_on_gpu(&["engine_process::cuda::on_gpu::", "--ignored", "--test-threads=2"], &[], 4);
}

#[test]
fn an_engine_on_a_gpu_publishes_and_writes_nothing_of_layers_that_it_did_not_compute() {
    run_on_gpu(&["engine_process::cuda::stopped_steps::", "--ignored", "--test-threads=2"], &[], 6);
}

/// An engine in one process whose log lines the test reads at its end.
struct LoggedEngine(Child);

impl LoggedEngine {
    fn start(sidecar: &MiniSidecar, more: &[&str]) -> LoggedEngine {
        LoggedEngine::start_with(sidecar, more, &[])
    }

    /// Starts one with more variables.
    fn start_with(sidecar: &MiniSidecar, more: &[&str], variables: &[(&str, &str)]) -> LoggedEngine {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-engine"));
        command.arg("--socket").arg(sidecar.socket()).arg("--no-supervisor").args(more);
        let command = command.envs(variables.iter().copied()).env("SLUICE_LOG", "info");
        let command = command.stdin(Stdio::null()).stderr(Stdio::piped());
        LoggedEngine(command.spawn().unwrap())
    }

    /// Says goodbye, and returns what the engine logged.
    fn end(self, link: &EngineLink) -> String {
        link.sender.send_bye().unwrap();
        self.wait()
    }

    /// Waits until it ends, and returns what it logged.
    fn wait(self) -> String {
        String::from_utf8(self.0.wait_with_output().unwrap().stderr).unwrap()
    }
}

/// Waits until the engine has read a layer for the last time.
fn wait_done(sidecar: &MiniSidecar, layer: u16, generation: u64) {
    let patience = WaitLimit { abort: &AtomicBool::new(false), limit: Some(TEST_TIMEOUT) };
    let end = sidecar.control.wait_done(LayerId(layer), Generation(generation), patience).unwrap();
    assert_eq!(end, WaitResult::Reached, "layer {layer} is computed");
}

/// Cases that a test above starts.
mod on_gpu {
    use super::*;

    /// Returns what an engine generates, and what it logs.
    fn generated(spec: &sluice_link::model::ModelSpec, more: &[&str]) -> (Vec<Sampled>, String) {
        let faults = Faults { poison_activations: true, ..Faults::default() };
        let mut sidecar = MiniSidecar::new(spec, faults);
        let engine = LoggedEngine::start(&sidecar, more);
        let mut link = sidecar.attach(&sidecar.resident());
        let sampled = sidecar.generate(&mut link, &tokens(13, 5, spec), 30);
        (sampled, engine.end(&link))
    }

    #[test]
    #[ignore = "started by a test above"]
    fn graphs_are_reused_and_change_no_bit() {
        for spec in [llama(Dtype::Bf16), opt(Dtype::F16), llama(Dtype::F32)] {
            let (sampled, log) = generated(&spec, &[]);
            // Positions 13 to 41: one, two and then (of four) three KV blocks.
            assert!(log.contains("captured=3 launched=29"), "{log}");
            let (without, log) = generated(&spec, &["--no-graphs"]);
            assert_eq!(sampled, without, "{:?}", spec.dtype);
            assert!(!log.contains("captured"), "{log}");
        }
    }

    /// A step at `start` that waits for weights of layers 0 and 1, which are there, and for KV of layer 1.
    fn waiting_step(sidecar: &mut MiniSidecar, start: u32, feed: &[u32], number: u64) -> Step {
        let mut step = sidecar.step(start, feed);
        step.generations = [0, 1].map(|layer| (LayerId(layer), Generation(number))).into();
        step.kv_generations = vec![(LayerId(1), Generation(number))];
        for layer in [0, 1] {
            sidecar.control.publish_ready(LayerId(layer), Generation(number)).unwrap();
        }
        step
    }

    /// Runs a prefill and a decode, in each of which a slot is filled early or not. Returns the answers.
    fn answers(more: &[&str], early: bool) -> Vec<Result<Vec<Sampled>, String>> {
        let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), Faults::default());
        let engine = LoggedEngine::start(&sidecar, more);
        let mut link = sidecar.attach(&sidecar.resident());
        let mut answers = Vec::new();
        for (number, start, feed) in [(10, 0, &[1, 2, 3][..]), (20, 3, &[4])] {
            let step = waiting_step(&mut sidecar, start, feed, number);
            link.sender.send_step(&step, &mut sidecar.tables).unwrap();
            // The engine looks at the weights of layer 1, or waits for its KV already.
            wait_done(&sidecar, 0, number);
            if early {
                sidecar.control.publish_ready(LayerId(1), Generation(number + 1)).unwrap();
            }
            sidecar.control.publish_kv_ready(LayerId(1), Generation(number)).unwrap();
            answers.push(answer(&mut link).map(|done| done.sampled));
        }
        engine.end(&link);
        answers
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_slot_that_is_filled_while_it_is_read_refuses_the_step_by_name() {
        let calm = answers(&[], false);
        assert!(calm.iter().all(Result::is_ok), "nothing is overtaken: {calm:?}");
        assert_eq!(answers(&["--no-graphs"], false), calm);
        for more in [&[][..], &["--no-graphs"]] {
            for answer in answers(more, true) {
                let refused = answer.expect_err("the slot was filled early");
                assert!(refused.contains("layer 1 was overwritten"), "{refused}");
            }
        }
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_dropped_wait_is_found_by_name() {
        for more in [&[][..], &["--no-graphs"]] {
            let faults = Faults { dropped_wait: Some(1), ..Faults::default() };
            let mut sidecar = MiniSidecar::new(&llama(Dtype::Bf16), faults);
            let engine = LoggedEngine::start(&sidecar, more);
            let mut link = sidecar.attach(&sidecar.resident());
            let prompt = sidecar.step(0, &[1, 2, 3]);
            sidecar.run(&mut link, &prompt).unwrap();
            let mut step = sidecar.step(3, &[4]);
            step.generations = vec![(LayerId(1), Generation(1)), (LayerId(2), Generation(1))];
            sidecar.control.publish_ready(LayerId(1), Generation(1)).unwrap();
            let refused = sidecar.run(&mut link, &step).expect_err("layer 2 was not there");
            assert!(refused.contains("layer 2 was overwritten"), "{refused}");
            engine.end(&link);
        }
    }

    #[test]
    #[ignore = "started by a test above"]
    fn a_batch_of_three_is_padded_to_four_with_the_bits_of_each_alone() {
        let spec = llama(Dtype::Bf16);
        let mut sidecar = MiniSidecar::new(&spec, Faults::default());
        let engine = LoggedEngine::start(&sidecar, &[]);
        let mut link = sidecar.attach(&sidecar.resident());
        let alone = sidecar.step(0, &[7]);
        let alone = sidecar.run(&mut link, &alone).unwrap().sampled;
        let mut step = sidecar.step(0, &[7]);
        for row in 1..3 {
            add_row(&mut step, row, spec.layers);
        }
        let done = sidecar.run(&mut link, &step).unwrap();
        assert_eq!(done.sampled.len(), 3, "{:?}", done.failed);
        for sampled in &done.sampled {
            let expected = Sampled { row: sampled.row, ..alone[0].clone() };
            assert_eq!(*sampled, expected);
        }
        engine.end(&link);
    }

    /// Adds a copy of the first sequence in a row and a block of its own.
    fn add_row(step: &mut Step, row: u32, layers: u16) {
        let layers = u32::from(layers);
        let layer_blocks = (0..layers).map(|layer| LayerBlockId(10 * row + layer)).collect();
        let row = RowId(row);
        step.updates.push(sluice_ports::compute::TableUpdate::Reset { row, tokens: Vec::new() });
        step.updates.push(sluice_ports::compute::TableUpdate::KvBlock { row, kv_block: 0, layer_blocks });
        let next = sluice_ports::compute::SequenceStep { row, ..step.sequences[0].clone() };
        step.sequences.push(next);
    }
}
