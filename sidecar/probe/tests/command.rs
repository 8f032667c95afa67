//! Tests of the binary without a driver, and with wrong arguments.

use std::process::{Command, Output, Stdio};

fn probe(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu-probe"));
    command.args(arguments).env_remove("LD_LIBRARY_PATH").output().expect("the probe starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the probe writes text")
}

/// Whether this machine has a driver. If so, the tests of a missing driver are skipped.
fn has_driver() -> bool {
    let found = sluice_memory::cuda::driver::is_present();
    if found {
        eprintln!(
            "SKIPPED: this machine has a CUDA driver, so nothing here shows what the probe says without one"
        );
    }
    found
}

#[test]
fn missing_driver_is_reported_in_one_line() {
    if has_driver() {
        return;
    }
    for arguments in [&[][..], &["--quick", "--json", "-"], &["--only", "aliases"]] {
        let output = probe(arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}");
        assert_eq!(text(&output.stdout), "");
        let line = "sluice-gpu-probe: no CUDA driver: libcuda.so.1 is not on the library path\n";
        assert_eq!(text(&output.stderr), line);
    }
}

#[test]
fn a_library_that_is_no_driver_is_reported_with_the_reason_of_the_loader() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libcuda.so.1");
    std::fs::write(&library, "no library").expect("the folder is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu-probe"));
    let output = command.env("LD_LIBRARY_PATH", folder.path()).output().expect("the probe starts");
    assert_eq!(output.status.code(), Some(3));
    let start =
        format!("sluice-gpu-probe: no CUDA driver: the loader refuses libcuda.so.1: {}: ", library.display());
    assert!(text(&output.stderr).starts_with(&start), "{}", text(&output.stderr));
}

#[test]
fn questions_are_listed_without_a_driver() {
    let output = probe(&["--list"]);
    assert_eq!(output.status.code(), Some(0));
    let listed = text(&output.stdout);
    assert_eq!(listed.lines().count(), sluice_probe::checks::ALL.len());
    assert!(listed.starts_with("1 aliases"), "{listed}");
}

#[test]
fn unwritable_output_fails_and_broken_pipe_does_not() {
    let list = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice-gpu-probe"));
        command.arg("--list").stdout(stdout).output().expect("the probe starts")
    };
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let output = list(full.into());
    assert_eq!(output.status.code(), Some(1));
    let line = "sluice-gpu-probe: standard output: No space left on device (os error 28)\n";
    assert_eq!(text(&output.stderr), line);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = list(writer.into());
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn wrong_arguments_end_with_2() {
    for (arguments, words) in [
        (&["--only", "nine"][..], "the questions are: 1 aliases"),
        (&["--device", "first"], "invalid value 'first'"),
        (&["--fast"], "unexpected argument '--fast'"),
    ] {
        let output = probe(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn help_names_the_exit_statuses_and_no_inner_part() {
    let output = probe(&["--help"]);
    let help = text(&output.stdout);
    assert!(help.contains("3 when there is no usable CUDA driver; 4 when there is no such device"), "{help}");
    assert!(!help.contains("child"), "{help}");
}
