//! Help, version, completion, siblings.

use std::process::Stdio;

use crate::support::{ProcessOutput, TestEnv, finish};

const POOL: &str = "apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata: {name: local}
spec:
  deviceClassName: host.sluice.dev
  device: {host: {memory: 40Mi}}
  hostMemoryPerGPU: 1Gi
  gpus: [{name: one}]
";

#[test]
fn help_names_every_command() {
    let outcome = finish(TestEnv::new().sluice(&["--help"]));
    assert_eq!(outcome.code, Some(0));
    for command in ["up", "plan", "top", "explain", "bench", "gpu-probe", "gpu-bench", "completion"] {
        assert!(outcome.stdout.contains(&format!("\n  {command} ")), "{command}: {}", outcome.stdout);
    }
    assert!(outcome.stdout.contains("Usage: sluice <COMMAND>"), "{}", outcome.stdout);
}

#[test]
fn the_plugin_calls_itself_as_kubectl_does() {
    let world = TestEnv::new();
    let outcome = finish(world.command(env!("CARGO_BIN_EXE_kubectl-sluice"), &["top", "--help"]));
    assert_eq!(outcome.code, Some(0));
    assert!(outcome.stdout.contains("Usage: kubectl sluice top"), "{}", outcome.stdout);
}

#[test]
fn version_names_commit_and_interfaces() {
    let outcome = finish(TestEnv::new().sluice(&["--version"]));
    let expected = format!("sluice {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(outcome.stdout.starts_with(&expected), "{}", outcome.stdout);
    assert!(outcome.stdout.ends_with(", API sluice.dev/v1alpha1, wire 2)\n"), "{}", outcome.stdout);
}

#[test]
fn an_unknown_flag_is_named_and_ends_with_2() {
    let outcome = finish(TestEnv::new().sluice(&["up", "--frobnicate"]));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("--frobnicate"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn a_file_without_its_option_comes_with_the_option() {
    for (arguments, has_tip) in [
        (vec!["up", "local.yaml"], true),
        (vec!["plan", "local.yaml"], true),
        (vec!["up", "-f", "local.yaml", "other.yaml"], true),
        (vec!["bench", "local.yaml"], false),
    ] {
        let outcome = finish(TestEnv::new().sluice(&arguments));
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let tip = format!("tip: use -f {}\n", arguments.last().unwrap());
        assert_eq!(outcome.stderr.contains(&tip), has_tip, "{}", outcome.stderr);
    }
}

#[test]
fn help_breaks_lines_between_words() {
    for arguments in [&["--help"][..], &["run", "--help"], &["up", "--help"]] {
        let world = TestEnv::new();
        let mut command = world.sluice(arguments);
        command.env("COLUMNS", "80");
        let outcome = finish(command);
        let long = outcome.stdout.lines().find(|line| line.chars().count() > 80);
        assert_eq!((outcome.code, long), (Some(0), None));
    }
}

#[test]
fn completion_covers_the_three_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let outcome = finish(TestEnv::new().sluice(&["completion", shell]));
        assert_eq!(outcome.code, Some(0));
        assert!(outcome.stdout.contains("runtime-dir"), "{shell}");
    }
    assert_eq!(finish(TestEnv::new().sluice(&["completion", "powershell"])).code, Some(2));
}

#[test]
fn man_pages_are_written_for_every_shown_command() {
    let world = TestEnv::new();
    assert_eq!(finish(world.sluice(&["man", "pages/man1"])).code, Some(0));
    for page in ["sluice.1", "sluice-up.1", "sluice-top.1", "sluice-bench.1"] {
        assert!(world.path("pages/man1").join(page).is_file(), "{page}");
    }
    assert!(!world.path("pages/man1/sluice-man.1").exists(), "hidden commands have none");
}

#[test]
fn the_gpu_programs_are_started_with_their_arguments_and_their_status_is_passed_on() {
    for command in ["gpu-probe", "gpu-bench"] {
        let world = TestEnv::new();
        world.script(&format!("sluice-{command}"), "echo \"program: $*\"\nexit 3\n");
        let outcome = finish(world.sluice(&[command, "--json", "-v"]));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(3), "program: --json -v\n"));
    }
}

#[test]
fn the_arguments_of_the_gpu_programs_are_named_where_there_is_none() {
    for (command, only) in [("gpu-probe", "--only ROW[,ROW]"), ("gpu-bench", "--only NAME[,NAME]")] {
        let outcome = finish(TestEnv::new().sluice_without_siblings(&[command, "--help"]));
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        // Lines break between words.
        let words = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for argument in ["--device N", only, "--list", "--quick", "--json FILE"] {
            assert!(words.contains(argument), "{argument}: {words}");
        }
    }
}

#[test]
fn a_missing_gpu_program_is_reported() {
    for (command, name, package) in
        [("gpu-probe", "probe", "sluice-probe"), ("gpu-bench", "benchmark", "sluice-gpu-bench")]
    {
        let world = TestEnv::new();
        let outcome = finish(world.sluice_without_siblings(&[command]));
        assert_eq!(outcome.code, Some(1));
        let first = format!("sluice: this installation does not include the GPU {name}: ");
        assert!(outcome.stderr.starts_with(&first), "{}", outcome.stderr);
        assert!(
            outcome.stderr.ends_with(&format!(" -p sluice-kernels -p {package}\n")),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn a_benchmark_of_nothing_is_a_wrong_argument_and_does_not_wait_for_ever() {
    for nothing in [["bench", "--concurrency", "0"], ["bench", "--requests", "0"]] {
        let outcome = finish(TestEnv::new().sluice(&nothing));
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("a whole number above 0"), "{}", outcome.stderr);
    }
}

/// The commands whose output is their product, as far as they work without a running tenant.
const PRODUCTS: [&[&str]; 4] =
    [&["plan", "-f", "pool.yaml"], &["top", "--once"], &["top", "--once", "--json"], &["completion", "bash"]];

/// Runs `args` with `stdout`.
fn run_with_stdout(stdout: Stdio, args: &[&str]) -> ProcessOutput {
    let world = TestEnv::new();
    world.write("pool.yaml", POOL);
    let mut command = world.sluice(args);
    let child = command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
    ProcessOutput::from_output(child.wait_with_output().unwrap())
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    for args in PRODUCTS {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let outcome = run_with_stdout(full.into(), args);
        assert_eq!(outcome.code, Some(1), "{args:?}: {}", outcome.stderr);
        let said = "sluice: standard output: No space left on device (os error 28)\n";
        assert_eq!(outcome.stderr, said, "{args:?}");
    }
}

#[test]
fn closed_pipe_is_not_a_failure() {
    for args in PRODUCTS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = run_with_stdout(writer.into(), args);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}
