//! A tenant on a CUDA device: a stand-in for the driver, which runs the kernels from their PTX by an interpreter.
//!
//! The library path of a process is fixed when it starts, so the tenant runs in a child process of the test.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluice_agent::inspect::{DeviceArgs, DeviceKind};
use sluice_cuda_standin::test_machine::TestMachine;
use sluice_ports::sampling::Sampling;
use sluice_scheduler::journal::replay;
use sluice_wire::config::{CudaConfig, LimitsConfig};

use crate::golden::{greedy_tokens, reference, requests};
use crate::machine::{GPU_CHUNK, GPU_VAR};
use crate::models::{Shape, generate};
use crate::sizes::{floor, inspected, refused};
use crate::support::{Answer, Tenant, TestRequest, config, poisoned};

/// Bytes of a chunk: the granularity of the device.
const CHUNK: u64 = 2 << 20;
/// Chunks of the device. The workspace of cuBLASLt alone takes 16.
const CHUNKS: u64 = 64;
/// Tokens of each answer: the interpreter takes some 50 ms for a step.
const TOKENS: u32 = 24;

/// Where the tenant records its events, if set.
const JOURNAL_VAR: &str = "SLUICE_TEST_JOURNAL";

/// The tokens are golden, and the journal replays without a GPU: the scheduler makes the same decisions of the same
/// events.
#[test]
fn stories260k_generates_golden_tokens_on_a_gpu_whose_engine_is_killed() {
    if reference().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    run_alone("gpu::tenant_on_a_gpu", |machine| machine.with(JOURNAL_VAR, &path));
    let journal = std::fs::read_to_string(path).unwrap();
    let report = replay(journal.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    let steps = journal.lines().filter(|line| line.contains(" done ")).count();
    assert!(report.events > 100 && steps > 20 && journal.contains(" lost "), "{report:?}, {steps} steps");
}

#[test]
fn the_oldest_driver_and_the_newest_serve_a_tenant() {
    if reference().is_some() {
        for driver in ["12.0", "13.0"] {
            run_alone("gpu::tenant_on_a_gpu", |machine| machine.of_driver(driver).unwrap());
        }
    }
}

#[test]
fn an_inspection_for_a_gpu_equals_what_its_sidecar_needs() {
    if reference().is_some() {
        run_alone("gpu::floors_on_a_gpu", |machine| machine);
    }
}

#[test]
fn chunks_below_the_granularity_of_a_gpu_are_refused() {
    run_alone("gpu::small_chunks_on_a_gpu", |machine| machine);
}

/// Tests of the host that hold on a GPU, in seconds: each runs in a process of its own.
const BITS: &str = "bits::log_probabilities_are_equal_when_requests_are_recomputed_in_the_middle";
const LAYOUTS: &str = "random::random_models_answer_alike_with_every_layout_of_moving_layers";
const KILLS: &str =
    "kills::sampled_streams_with_log_probabilities_survive_an_engine_killed_while_layers_move";
const SLEEP: &str = "hibernate::commanded_sleep_suspends_requests_with_kv";
const CONTROL: &str = "controls::a_flipped_byte_in_every_filled_slot_changes_tokens";

/// The others.
const MORE: [&str; 10] = [
    "bits::log_probabilities_are_equal_in_random_batches_chunkings_and_on_any_number_of_threads",
    "bits::log_probabilities_do_not_depend_on_kv_placement",
    "bits::seed_determines_samples",
    "random::both_families_answer_alike_in_every_precision_with_moving_layers_and_with_short_kv",
    "hibernate::idle_tenant_hibernates_and_resumes_without_recompute",
    "hibernate::level_two_keeps_no_kv_and_no_token_changes",
    "hibernate::a_block_that_comes_back_spoilt_changes_an_answer",
    "hibernate::sleep_under_pressure_changes_no_bit",
    "controls::no_fault_changes_no_token",
    "controls::a_slot_reused_before_its_reader_is_done_changes_tokens",
];

/// Runs tests of the host in a process whose tenants have a GPU. They must pass, and release everything.
fn hold_on_a_gpu(tests: &[&str], change: impl FnOnce(TestMachine) -> TestMachine) {
    let arguments = [&["--exact", "--test-threads=2"], tests].concat();
    run_with_standin(&arguments, tests.len(), |machine| {
        let machine = machine.with("SLUICE_STANDIN_GRANULARITY", GPU_CHUNK.to_string());
        change(machine.with(GPU_VAR, "1"))
    });
}

#[test]
fn recomputed_requests_have_the_same_bits_on_a_gpu() {
    hold_on_a_gpu(&[BITS], |machine| machine);
}

#[test]
fn moving_layers_change_no_bit_on_a_gpu() {
    hold_on_a_gpu(&[LAYOUTS], |machine| machine);
}

#[test]
fn an_engine_killed_while_layers_move_changes_no_bit_on_a_gpu() {
    hold_on_a_gpu(&[KILLS], |machine| machine);
}

#[test]
fn a_tenant_that_slept_answers_with_the_same_bits_on_a_gpu() {
    hold_on_a_gpu(&[SLEEP], |machine| machine);
}

#[test]
fn a_flipped_byte_in_every_filled_slot_is_noticed_on_a_gpu() {
    hold_on_a_gpu(&[CONTROL], |machine| machine);
}

#[test]
#[ignore = "cargo xtask nightly: takes minutes by the interpreter"]
fn more_tests_of_the_host_hold_on_a_gpu_with_graphs_and_without() {
    hold_on_a_gpu(&MORE, |machine| machine);
    let all = [&[BITS, LAYOUTS, KILLS, SLEEP, CONTROL], &MORE[..]].concat();
    hold_on_a_gpu(&all, |machine| machine.with("SLUICE_ENGINE_NO_GRAPHS", "1"));
}

/// Runs an ignored test of this module in a process on a machine with the stand-in, which `change` may change. It must
/// release everything.
fn run_alone(test: &str, change: impl FnOnce(TestMachine) -> TestMachine) {
    run_with_standin(&["--exact", test, "--ignored", "--nocapture"], 1, change);
}

/// Runs tests of this program in a process on a machine with the stand-in, which `change` may change. `expected` of them must pass. The process and its
/// engines must release everything; an engine that SIGKILL ended reports nothing.
fn run_with_standin(arguments: &[&str], expected: usize, change: impl FnOnce(TestMachine) -> TestMachine) {
    let folder = tempfile::tempdir().unwrap();
    let machine = TestMachine::new(folder.path()).unwrap();
    let machine = change(machine.with("SLUICE_STANDIN_BYTES", (2 * CHUNKS * CHUNK).to_string()));
    let mut command = Command::new(std::env::current_exe().unwrap());
    let child = command.args(arguments).envs(machine.variables()).output().unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains(&format!(" {expected} passed")),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    machine.assert_nothing_held();
}

#[test]
#[ignore = "a child process of a test above"]
fn floors_on_a_gpu() {
    let folder = reference().unwrap();
    // The memory of a step depends on the longest sequence.
    for max_model_len in [None, Some(64)] {
        let sizes = inspected(&folder, None, DeviceArgs { device: DeviceKind::Cuda, max_model_len });
        let tokens = max_model_len.unwrap_or(sizes.max_model_len);
        // Policies that reclaim activations keep those of the smallest step.
        for (policy, bytes) in [("Ellm", sizes.activation_bytes), ("Recompute", sizes.step_activation_bytes)]
        {
            let mut config = config(&folder, 0, policy);
            (config.gpu.cuda, config.gpu.chunk_bytes) = (Some(CudaConfig::default()), CHUNK);
            (config.limits, config.max_model_len) = (LimitsConfig::default(), max_model_len);
            assert_eq!(refused(config), floor(&sizes, bytes, tokens, CHUNK), "{policy}");
        }
    }
}

#[test]
#[ignore = "a child process of a test above"]
fn small_chunks_on_a_gpu() {
    let model = generate(&Shape { family: "llama", dtype: "f32", layers: 2, hidden: 64, vocab: 512 });
    let mut config = config(model.path(), CHUNKS * CHUNK, "Oneiros");
    (config.gpu.cuda, config.gpu.chunk_bytes) = (Some(CudaConfig::default()), CHUNK / 2);
    let refused = Tenant::begin(config, poisoned()).err().expect("the chunks are too small").to_string();
    assert!(
        refused.contains("1048576 bytes are not a positive multiple of the page size of 2097152"),
        "{refused}"
    );
}

#[test]
#[ignore = "a child process of a test above, or a machine with a GPU"]
fn tenant_on_a_gpu() {
    let folder = reference().unwrap();
    let mut config = config(&folder, CHUNKS * CHUNK, "Oneiros");
    (config.gpu.cuda, config.gpu.chunk_bytes) = (Some(CudaConfig::default()), CHUNK);
    config.debug.force_remap = Some((2, 1));
    config.journal = std::env::var_os(JOURNAL_VAR).map(Into::into);
    let tenant = Tenant::start(config);
    // With log-probabilities the host samples; without, the device finds the largest logit.
    let golden = requests(&folder);
    let wanted: Vec<TestRequest> =
        golden.iter().enumerate().map(|(at, request)| shortened(at, request)).collect();
    let tickets: Vec<_> = wanted.iter().map(|wanted| tenant.submit(wanted)).collect();
    let state = tenant.state_when("tokens are generated", |state| state.figures.steps_total > 5);
    std::thread::sleep(Duration::from_millis(20));
    let engine = Pid::from_raw(state.engine.pid.unwrap().cast_signed()).unwrap();
    kill_process(engine, Signal::KILL).unwrap();
    let answers: Vec<Answer> = tickets.into_iter().map(|ticket| tenant.collect(ticket)).collect();
    for (answer, expected) in answers.iter().zip(greedy_tokens(&folder)) {
        assert_eq!(answer.tokens, expected[..TOKENS as usize]);
    }
    let state = tenant.assert_nothing_leaks("after the kill");
    assert_eq!(state.engine.restarts, 1, "the kill was the only loss");
}

fn shortened(at: usize, request: &TestRequest) -> TestRequest {
    let sampling = Sampling { ignore_stop: true, ..Sampling::default() };
    let sampling = if at.is_multiple_of(2) { sampling } else { request.sampling.clone() };
    TestRequest { prompt: request.prompt.clone(), max_tokens: TOKENS, sampling }
}
