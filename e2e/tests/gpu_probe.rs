//! `sluice gpu-probe`: the installed probe, on a machine without a GPU.

use std::process::{Command, Output};

use crate::support::model::binary;

fn gpu_probe(arguments: &[&str]) -> Output {
    let mut command = Command::new(binary("sluice"));
    command.arg("gpu-probe").args(arguments).output().expect("sluice starts")
}

#[test]
fn sluice_execs_sibling_probe() {
    let listed = gpu_probe(&["--list"]);
    assert_eq!(listed.status.code(), Some(0), "{listed:?}");
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.lines().count() == 8 && text.starts_with("1 aliases "), "{text}");
    let wrong = gpu_probe(&["--only", "nine"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
}
