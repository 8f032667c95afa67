//! `scripts/gpu-pack.sh`: its parts, with small programs in place of those that need a GPU.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

/// A program that writes the files of `--json` and `--profile`, and says that one of its tests has passed. It fails if
/// its name and arguments contain the text of the variable FAIL, waits if they contain that of SLOW, and runs no test
/// if they contain that of EMPTY.
const PROGRAM: &str = r#"#!/bin/sh
said="$(basename "$0") $*"
echo "called: $said; gpu=${SLUICE_TEST_GPU:-}"
case "$said" in *"${SLOW:-no such step}"*) sleep 30 ;; esac
case "$said" in *"${FAIL:-no such step}"*) exit 7 ;; esac
case "$said" in
*"${EMPTY:-no such step}"*) echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 10 filtered out' ;;
*-tests*) echo 'test result: ok. 10 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out' ;;
esac
while [ $# -gt 1 ]; do
    case "$1" in --json | --profile) echo '{}' >"$2" ;; esac
    shift
done
"#;

/// What the script starts of the pack.
const PROGRAMS: [&str; 5] =
    ["kernels-tests", "memory-tests", "agent-tests", "sluice-gpu-probe", "sluice-gpu-bench"];

/// Refused, and start again.
const REFUSED: Option<i32> = Some(3);
const AGAIN: Option<i32> = Some(75);

struct Pack {
    folder: TempDir,
}

impl Pack {
    fn new() -> Pack {
        let pack = Pack { folder: tempfile::tempdir().unwrap() };
        fs::create_dir(pack.at("tools")).unwrap();
        fs::write(pack.at("program"), PROGRAM).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/gpu-pack.sh");
        pack.install(&script, "run");
        PROGRAMS.iter().for_each(|name| pack.add(name));
        pack
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn add(&self, name: &str) {
        self.install(&self.at("program"), name);
    }

    /// Copies `from` as an executable. Another process writes it: a file that is open for writing in a process
    /// that another test forks just then cannot be executed (ETXTBSY).
    fn install(&self, from: &Path, name: &str) {
        let status =
            Command::new("install").args(["-m", "755"]).arg(from).arg(self.at(name)).status().unwrap();
        assert!(status.success(), "install {name}: {status}");
    }

    fn with_tools(self) -> Pack {
        ["compute-sanitizer", "ncu", "nvidia-smi"].iter().for_each(|name| self.add(&format!("tools/{name}")));
        self
    }

    fn run(&self, part: &str, variables: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.at("tools").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(self.at("run"));
        command.arg(part).arg(self.at("results")).env("PATH", path).env("CUDA_HOME", self.at("none"));
        command.envs(variables.iter().copied()).output().unwrap()
    }

    /// Runs all parts, which must pass.
    fn pass(&self) {
        for part in ["1", "2", "3"] {
            let output = self.run(part, &[]);
            assert_eq!(code(&output), Some(0), "{output:?}");
        }
    }

    /// The result of a step: ok, failed, skipped, or nothing.
    fn result(&self, step: &str) -> Option<String> {
        let state = fs::read_to_string(self.at("results/state.tsv")).unwrap_or_default();
        let line = state.lines().find(|line| line.split('\t').next() == Some(step))?;
        line.split('\t').nth(1).map(str::to_owned)
    }

    fn log(&self, part: &str) -> String {
        fs::read_to_string(self.at(&format!("results/part{part}.log"))).unwrap_or_default()
    }
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn all_parts_pass_with_the_tools_of_cuda_and_leave_at_most_eight_files() {
    let pack = Pack::new().with_tools();
    pack.pass();
    let steps = [
        "machine",
        "smoke",
        "parity",
        "probe",
        "conformance",
        "bits",
        "memcheck",
        "racecheck",
        "synccheck",
        "initcheck",
        "model",
        "profile",
        "bench",
        "tenants",
    ];
    for step in steps {
        assert_eq!(pack.result(step).as_deref(), Some("ok"), "{step}");
    }
    let log = pack.log("2");
    assert!(log.contains("called: memory-tests conformance:: --test-threads=8; gpu=1"), "{log}");
    let checked =
        log.lines().find(|line| line.contains("called: compute-sanitizer --tool racecheck")).unwrap();
    assert!(checked.contains(" cuda::cases::every_kernel_passes_every_check "), "{checked}");
    let files = fs::read_dir(pack.at("results")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    // A real run adds the journal.
    let expected =
        ["bench.json", "part1.log", "part2.log", "part3.log", "probe.json", "profile.json", "state.tsv"];
    assert_eq!(files, expected);
}

#[test]
fn the_first_part_unpacks_the_programs() {
    let pack = Pack::new();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(pack.at("")).args(["--remove-files", "-czf"]).arg(pack.at("programs.tar.gz"));
    assert!(tar.args(PROGRAMS).status().unwrap().success());
    assert!(!pack.at("sluice-gpu-probe").exists());
    pack.pass();
    assert_eq!(pack.result("parity").as_deref(), Some("ok"));
    // A pack that is unpacked needs no archive.
    fs::write(pack.at("programs.tar.gz"), "no archive").unwrap();
    pack.pass();
}

#[test]
fn a_tool_that_is_missing_is_skipped_by_name() {
    let pack = Pack::new();
    pack.pass();
    let state = fs::read_to_string(pack.at("results/state.tsv")).unwrap();
    for (step, tool) in [("memcheck", "compute-sanitizer"), ("profile", "ncu"), ("machine", "nvidia-smi")] {
        let line = format!("{step}\tskipped\t0\t{tool} is not on this machine");
        assert!(state.lines().any(|found| found == line), "{line} in {state}");
    }
}

#[test]
fn nothing_runs_after_smoke_has_failed() {
    let pack = Pack::new();
    assert_eq!(code(&pack.run("1", &[("FAIL", "--only aliases")])), REFUSED);
    assert_eq!(pack.result("smoke").as_deref(), Some("failed"));
    assert_eq!(pack.result("parity"), None);
    for part in ["1", "2", "3"] {
        assert_eq!(code(&pack.run(part, &[])), REFUSED, "part {part}");
    }
    assert_eq!(pack.log("2") + &pack.log("3"), "");
}

#[test]
fn part_3_does_not_run_after_parity_has_failed() {
    let pack = Pack::new();
    assert_eq!(code(&pack.run("1", &[("FAIL", "the_same_tests_pass_by_a_driver")])), Some(1));
    assert_eq!(pack.result("parity").as_deref(), Some("failed"));
    assert_eq!(pack.result("probe").as_deref(), Some("ok"), "the rest of part 1 runs");
    assert_eq!(code(&pack.run("2", &[])), Some(0));
    assert_eq!(code(&pack.run("3", &[])), REFUSED);
    assert_eq!(pack.log("3"), "");
}

#[test]
fn part_2_and_3_refuse_before_part_1() {
    let pack = Pack::new();
    assert_eq!(code(&pack.run("2", &[])), REFUSED);
    assert_eq!(code(&pack.run("3", &[])), REFUSED);
}

#[test]
fn every_other_step_that_fails_leaves_the_rest() {
    let steps = [
        ("1", "probe", "--only link", "parity"),
        ("2", "conformance", "conformance::", "initcheck"),
        ("2", "bits", "cuda::invariance", "initcheck"),
        ("2", "racecheck", "--tool racecheck", "initcheck"),
        ("3", "model", "gpu::tenant_on_a_gpu", "bench"),
        ("3", "profile", "ncu", "bench"),
        ("3", "bench", "--only link", "tenants"),
        ("3", "tenants", "--only policies", "bench"),
    ];
    for (part, step, text, other) in steps {
        let pack = Pack::new().with_tools();
        let before = if part == "1" { Some(0) } else { code(&pack.run("1", &[])) };
        assert_eq!(before, Some(0));
        let output = pack.run(part, &[("FAIL", text)]);
        assert_eq!(code(&output), Some(1), "{step}: {output:?}");
        assert_eq!(pack.result(step).as_deref(), Some("failed"));
        assert_eq!(pack.result(other).as_deref(), Some("ok"), "{other} after {step}");
        // Once more: nothing runs again, and the failure is not forgotten.
        let log = pack.log(part);
        assert_eq!(code(&pack.run(part, &[])), Some(1));
        assert_eq!(pack.log(part), log);
    }
}

#[test]
fn tests_of_which_none_ran_have_failed() {
    let steps = [
        ("1", "parity", "--skip engine_process"),
        ("2", "conformance", "conformance::"),
        ("2", "bits", "cuda::invariance"),
        ("2", "racecheck", "--tool racecheck"),
        ("3", "model", "gpu::tenant_on_a_gpu"),
        ("3", "profile", "ncu"),
    ];
    for (part, step, text) in steps {
        let pack = Pack::new().with_tools();
        let before = if part == "1" { Some(0) } else { code(&pack.run("1", &[])) };
        assert_eq!(before, Some(0));
        let output = pack.run(part, &[("EMPTY", text)]);
        assert_eq!(code(&output), Some(1), "{step}: {output:?}");
        let state = fs::read_to_string(pack.at("results/state.tsv")).unwrap();
        let line = state.lines().find(|line| line.starts_with(&format!("{step}\tfailed\t")));
        assert!(line.is_some_and(|line| line.ends_with("\tno test ran")), "{step} in {state}");
    }
}

#[test]
fn a_part_without_time_for_a_step_goes_on_when_it_is_started_again() {
    let pack = Pack::new();
    // Smoke has 60 s, parity 240.
    assert_eq!(code(&pack.run("1", &[("SLUICE_GPU_PACK_SECONDS", "100")])), AGAIN);
    assert_eq!((pack.result("smoke").as_deref(), pack.result("parity")), (Some("ok"), None));
    assert_eq!(code(&pack.run("1", &[])), Some(0));
    assert_eq!(pack.log("1").matches("--only aliases; gpu=").count(), 0);
    assert_eq!(pack.log("1").matches("called: sluice-gpu-probe --only aliases --quick").count(), 1);
    assert_eq!(pack.result("parity").as_deref(), Some("ok"));
}

#[test]
fn the_benchmark_goes_on_once_when_its_time_ends() {
    let pack = Pack::new();
    assert_eq!(code(&pack.run("1", &[])), Some(0));
    let slow = [("SLOW", "--only link"), ("SLUICE_GPU_PACK_BENCH_SECONDS", "1")];
    assert_eq!(code(&pack.run("3", &slow)), AGAIN);
    assert_eq!((pack.result("bench"), pack.result("tenants").as_deref()), (None, Some("ok")));
    assert_eq!(code(&pack.run("3", &slow)), Some(1), "a second time is a failure");
    assert_eq!(pack.result("bench").as_deref(), Some("failed"));
    let pack = Pack::new();
    assert_eq!((code(&pack.run("1", &[])), code(&pack.run("3", &slow))), (Some(0), AGAIN));
    assert_eq!(code(&pack.run("3", &[])), Some(0), "the second time is enough");
    assert_eq!(pack.result("bench").as_deref(), Some("ok"));
    assert!(pack.log("3").contains("--resume"), "it goes on");
}

#[test]
fn products_of_cublaslt_are_tested_where_the_library_is_found() {
    let pack = Pack::new();
    fs::create_dir(pack.at("lib64")).unwrap();
    fs::write(pack.at("lib64/libcublasLt.so.12"), "").unwrap();
    assert_eq!(code(&pack.run("1", &[("CUDA_HOME", pack.folder.path().to_str().unwrap())])), Some(0));
    assert_eq!(pack.result("cublaslt").as_deref(), Some("ok"));
    let log = pack.log("1");
    assert!(log.contains("called: kernels-tests cuda::products::by_cublaslt:: --ignored"), "{log}");
}

#[test]
fn a_step_that_a_signal_cut_off_runs_again() {
    let pack = Pack::new();
    let mut command = Command::new(pack.at("run"));
    command.arg("1").arg(pack.at("results")).env("SLOW", "the_same_tests_pass_by_a_driver");
    let mut child = command.stdout(std::process::Stdio::null()).process_group(0).spawn().unwrap();
    let begun = std::time::Instant::now();
    while !pack.log("1").contains("called: kernels-tests") {
        assert!(begun.elapsed().as_secs() < 30, "parity starts");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // With the group goes the step, which would hold the folder.
    rustix::process::kill_process_group(Pid::from_child(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(pack.result("parity"), None);
    assert_eq!(code(&pack.run("1", &[])), Some(0));
    assert_eq!(pack.log("1").matches("called: kernels-tests").count(), 2);
}

#[test]
fn wrong_arguments_print_what_the_parts_do() {
    let pack = Pack::new();
    let output = Command::new(pack.at("run")).arg("4").arg(pack.at("results")).output().unwrap();
    assert_eq!(code(&output), Some(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("./run PART FOLDER") && said.contains("Part 3 does not run"), "{said}");
    assert!(!said.contains("pipefail"), "{said}");
}
