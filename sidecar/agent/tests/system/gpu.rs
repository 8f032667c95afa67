//! A tenant on a CUDA device: a stand-in for the driver, which runs the kernels from their PTX by an interpreter.
//!
//! The library path of a process is fixed when it starts, so the tenant runs in a child process of the test.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluice_agent::inspect::{DeviceArgs, DeviceKind};
use sluice_cuda_standin::test_machine::TestMachine;
use sluice_ports::sampling::Sampling;
use sluice_wire::config::{CudaConfig, LimitsConfig};

use crate::golden::{greedy_tokens, reference, requests};
use crate::sizes::{floor, inspected, refused};
use crate::support::{Answer, Tenant, TestRequest, config};

/// Bytes of a chunk: the granularity of the device.
const CHUNK: u64 = 2 << 20;
/// Chunks of the device. The workspace of cuBLASLt alone takes 16.
const CHUNKS: u64 = 64;
/// Tokens of each answer: the interpreter takes some 50 ms for a step.
const TOKENS: u32 = 24;

/// Where the tenant records its events, if set.
const JOURNAL_VAR: &str = "SLUICE_TEST_JOURNAL";

#[test]
fn stories260k_generates_golden_tokens_on_a_gpu_whose_engine_is_killed() {
    if reference().is_some() {
        run_on_a_gpu("gpu::tenant_on_a_gpu");
    }
}

#[test]
fn an_inspection_for_a_gpu_equals_what_its_sidecar_needs() {
    if reference().is_some() {
        run_on_a_gpu("gpu::floors_on_a_gpu");
    }
}

/// Runs a test of this module in a process that finds the stand-in. It must release everything.
fn run_on_a_gpu(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let machine = TestMachine::new(folder.path()).unwrap();
    let machine = machine.with("SLUICE_STANDIN_BYTES", (2 * CHUNKS * CHUNK).to_string());
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(machine.variables())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&child.stderr)
    );
    // The engine that SIGKILL ended writes none.
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
