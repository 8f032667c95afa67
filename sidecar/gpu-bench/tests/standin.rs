//! Measurements over the stand-in for the driver, whose shapes are tiny: each runs from start to end and releases
//! everything.

use std::path::PathBuf;
use std::process::{Command, Output};

use sluice_cuda_standin::test_machine::{TestMachine, folder_in_memory};
use sluice_gpu_bench::limits::Verdict;
use sluice_gpu_bench::measurements::attention;
use sluice_gpu_bench::report::BenchReport;
use sluice_gpu_bench::row::{Outcome, Row};
use sluice_sim::profiles::measured::{MachineProfile, ProfileError};
use tempfile::TempDir;

/// A machine with one device of the stand-in.
struct TestEnv {
    machine: TestMachine,
    folder: TempDir,
    program: PathBuf,
}

impl TestEnv {
    fn new() -> TestEnv {
        let folder = TempDir::new_in(folder_in_memory()).expect("a folder for tests");
        let machine = TestMachine::new(folder.path()).expect("the folder is ours");
        // As much as real models need: the tiny ones take little of it.
        let machine = machine.with("SLUICE_STANDIN_BYTES", "17179869184");
        let program = PathBuf::from(env!("CARGO_BIN_EXE_sluice-gpu-bench"));
        TestEnv { machine, folder, program }
    }

    /// With cuBLASLt of the stand-in, which poses as a driver of CUDA 12.
    fn with_cublaslt(self) -> TestEnv {
        let machine = self.machine.with_library(|library| library.with_cublas(12));
        TestEnv { machine: machine.expect("the folder is ours"), ..self }
    }

    fn with(mut self, name: &'static str, value: &str) -> TestEnv {
        self.machine = self.machine.with(name, value);
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bench(&self, arguments: &[&str]) -> Output {
        self.bench_with(&["--quick"], arguments)
    }

    fn bench_with(&self, quick: &[&str], arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command.args(quick).args(arguments).envs(self.machine.variables());
        command.output().expect("the benchmark starts")
    }

    /// Runs these measurements and reads the report back.
    fn report(&self, only: &str) -> (BenchReport, Output) {
        self.report_with(only, &[])
    }

    fn report_with(&self, only: &str, more: &[&str]) -> (BenchReport, Output) {
        let file = self.path("report.json").display().to_string();
        let output = self.bench(&[&["--only", only, "--json", file.as_str()], more].concat());
        let text = std::fs::read(&file).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (serde_json::from_slice(&text).expect("the report is the JSON of its type"), output)
    }

    /// Runs one measurement, which comes to its end and leaves nothing.
    fn measured(&self, name: &str) -> Row {
        let (report, output) = self.report(name);
        let [row] = <[Row; 1]>::try_from(report.rows).expect("one was chosen");
        assert_eq!((&row.outcome, output.status.code()), (&Outcome::Measured, Some(0)), "{row:?}");
        self.machine.assert_nothing_held();
        row
    }
}

fn has(row: &Row, name: &str) {
    let figure = row.figures.iter().find(|figure| figure.name == name);
    assert!(figure.is_some_and(|figure| figure.median > 0.0), "{name} in {row:?}");
}

#[test]
fn link_has_the_peaks_and_what_copies_keep_next_to_a_decode() {
    let row = TestEnv::new().measured("link");
    for name in [
        "to device, registered: peak",
        "to host, registered: peak",
        "signalled copy of 4 MiB keeps",
        "read of 64 MiB keeps",
    ] {
        has(&row, name);
    }
}

#[test]
fn memory_has_each_call_and_the_growth() {
    let row = TestEnv::new().measured("memory");
    for name in ["create, 2 MiB", "export, 2 MiB", "map, 2 MiB", "unmap, 2 MiB"] {
        has(&row, name);
    }
    has(&row, "grow by 100 x 2 MiB, access set once");
}

#[test]
fn attention_has_every_figure_that_a_limit_needs() {
    let row = TestEnv::new().measured("attention");
    for name in [attention::COPY, attention::MATRIX, attention::PREFILL, attention::DECODE] {
        has(&row, name);
    }
    for name in
        [attention::PREFILL_SHARE, attention::DECODE_SHARE, attention::NORM_SHARE, attention::ROPE_SHARE]
    {
        has(&row, name);
    }
    let without = row.notes.iter().find(|note| note.starts_with("products of cuBLASLt are not measured: "));
    assert!(without.is_some_and(|note| note.contains("libcublasLt.so.12")), "{row:?}");
    assert!(row.figures.iter().all(|figure| !figure.name.contains("cuBLASLt")), "{row:?}");
}

#[test]
fn our_product_is_compared_with_that_of_cublaslt_and_drawn() {
    let world = TestEnv::new().with_cublaslt();
    let folder = world.path("drawings");
    let (report, _) = world.report_with("attention", &["--svg", &folder.display().to_string()]);
    let row = &report.rows[0];
    for name in [attention::CUBLASLT_MATRIX, attention::MATRIX_SHARE, attention::PREFILL_CUBLASLT_SHARE] {
        has(row, name);
    }
    assert!(row.notes.iter().all(|note| !note.contains("not measured")), "{row:?}");
    let drawn = std::fs::read_to_string(folder.join("attention.svg")).expect("it is drawn");
    assert!(drawn.contains("cuBLASLt"), "{drawn}");
}

#[test]
fn models_have_tokens_per_second_of_each_step() {
    let row = TestEnv::new().with_cublaslt().measured("models");
    for model in ["Llama of 4 tiny layers", "OPT of 4 tiny layers"] {
        for step in [
            "decode of 1 at 40 tokens",
            "decode of 2 at 40 tokens",
            "decode of 2 at 40 tokens, without a graph",
            "prefill of 24 tokens",
            "decode of 2 at 40 tokens, cuBLASLt",
            "decode of 2 at 40 tokens, cuBLASLt, without a graph",
            "prefill of 24 tokens, cuBLASLt",
        ] {
            has(&row, &format!("{model}: {step}"));
        }
    }
}

#[test]
fn remap_has_each_alpha_with_the_step_model_s_expectation() {
    let row = TestEnv::new().measured("remap");
    let step = "Llama of 4 tiny layers: decode of 2 at 40 tokens";
    has(&row, &format!("{step}: alpha 0"));
    for slots in ["slots 1", "slots 2"] {
        let of = |end: &str| row.figures.iter().filter(|figure| figure.name.ends_with(end)).count();
        let (measured, expected) = (of(slots), of(&format!("{slots}: expected")));
        assert!(measured > 0 && measured == expected, "{row:?}");
    }
    assert!(row.notes.iter().any(|note| note.contains("launched kernel by kernel")), "{row:?}");
    has(&row, "Llama of 4 tiny layers: remap of a layer of 1 x 2 MiB");
    has(&row, "OPT of 4 tiny layers: its reversion, with its weights");
}

#[test]
#[ignore = "cargo xtask nightly: the interpreter takes half a minute for three tenants"]
fn policies_compares_recompute_and_oneiros_by_real_tenants() {
    let row = TestEnv::new().measured("policies");
    for name in
        ["Recompute: tokens/s", "Oneiros: requests in the batch, most", "Oneiros: remaps of own layers"]
    {
        has(&row, name);
    }
    for what in ["tokens/s", "time to first token, p50", "time to first token, p99"] {
        has(&row, &format!("Oneiros to Recompute: {what}"));
    }
}

#[test]
#[ignore = "cargo xtask nightly: the interpreter takes a minute for five tenants"]
fn two_tenants_lend_each_other_memory() {
    let row = TestEnv::new().measured("two-tenants");
    for name in ["Recompute: requests in the batch, most", "Oneiros: loans", "Oneiros to Recompute: tokens/s"]
    {
        has(&row, name);
    }
}

#[test]
fn a_gpu_that_the_kernels_do_not_run_on_is_refused_before_the_first_measurement() {
    // Attribute 75 is the major compute capability.
    let output = TestEnv::new().with("SLUICE_STANDIN_ATTRIBUTES", "75=7").bench(&["--only", "memory"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("device 0: compute capability 7.") && said.contains("the kernels need 8.0"),
        "{said}"
    );
    assert!(output.stdout.is_empty(), "there is no report");
}

#[test]
fn tenants_without_their_binaries_are_no_measurement() {
    let world = TestEnv::new().with("SLUICE_BIN_DIR", "").with("PATH", "");
    let copy = world.path("sluice-gpu-bench");
    std::fs::copy(env!("CARGO_BIN_EXE_sluice-gpu-bench"), &copy).expect("the folder is ours");
    let (report, _) = TestEnv { program: copy, ..world }.report("policies");
    let Outcome::Failed { reason } = &report.rows[0].outcome else { panic!("{report:?}") };
    assert!(reason.contains("sluice-engine is not in $SLUICE_BIN_DIR"), "{reason}");
}

#[test]
fn a_run_that_is_resumed_keeps_what_was_measured() {
    let world = TestEnv::new();
    let file = world.path("report.json").display().to_string();
    let run = |only: &str, quick: &[&str]| {
        let output = world.bench_with(quick, &["--only", only, "--json", &file, "--resume"]);
        let report: Option<BenchReport> =
            std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        (report.expect("a report"), output)
    };
    let (first, _) = run("memory", &["--quick"]);
    let (both, output) = run("attention,memory", &["--quick"]);
    let names: Vec<&str> = both.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names.as_slice(), output.status.code()), (&["memory", "attention"][..], Some(0)));
    assert_eq!(both.rows[0], first.rows[0], "it was not measured again");
    let (_, refused) = run("memory", &[]);
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr.contains("--resume keeps only what the same program has measured"), "{stderr}");
}

#[test]
fn the_profile_of_the_stand_in_is_written_and_the_simulator_refuses_it() {
    let world = TestEnv::new();
    let file = world.path("machine.json");
    let output = world.bench(&["--only", "link,attention,models", "--profile", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("predicted us"), "{text}");
    let profile = MachineProfile::parse(&std::fs::read_to_string(&file).expect("it is written"));
    let refused = profile.expect("it is a profile").hardware();
    assert!(matches!(refused, Err(ProfileError::StandIn { .. })), "{refused:?}");
}

#[test]
fn drawings_are_made_of_what_was_measured() {
    let world = TestEnv::new();
    let folder = world.path("drawings");
    let output = world.bench(&["--only", "remap", "--svg", &folder.display().to_string()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let drawn = std::fs::read_to_string(folder.join("remap.svg")).expect("it is drawn");
    assert!(drawn.starts_with("<svg") && drawn.contains("expected, slots 1"), "{drawn}");
    assert!(!folder.join("link.svg").exists(), "the link was not measured");
}

#[test]
fn a_profile_names_the_measurement_that_it_lacks() {
    let world = TestEnv::new();
    let file = world.path("machine.json");
    let output = world.bench(&["--only", "attention", "--profile", &file.display().to_string()]);
    assert_eq!((output.status.code(), file.exists()), (Some(1), false));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("no machine profile: link has not measured: "), "{stderr}");
}

#[test]
fn a_report_of_the_stand_in_says_so_and_judges_nothing() {
    let (report, output) = TestEnv::new().report("memory");
    assert!(report.stand_in && report.quick);
    let grow = report.limits.iter().find(|limit| limit.what.starts_with("grow")).expect("it is a limit");
    assert!(grow.value.is_some() && matches!(grow.verdict, Verdict::Open { .. }), "{grow:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, report.to_string(), "the text goes to stdout");
    assert!(text.contains("no figure says anything about a GPU"), "{text}");
}

#[test]
fn a_measurement_that_fails_leaves_the_others() {
    let world = TestEnv::new().with("SLUICE_STANDIN_FAULTS", "cuMemHostRegister_v2=801");
    let (report, output) = world.report("link,attention");
    let Outcome::Failed { reason } = &report.rows[0].outcome else { panic!("{report:?}") };
    assert!(reason.starts_with("cuMemHostRegister_v2: CUDA_ERROR_NOT_SUPPORTED ("), "{reason}");
    assert_eq!((&report.rows[1].outcome, output.status.code()), (&Outcome::Measured, Some(1)));
    let copies = report.limits.iter().find(|limit| limit.what.starts_with("copies")).expect("it is a limit");
    assert_eq!(copies.verdict, Verdict::Open { reason: "it was not measured".into() });
}
