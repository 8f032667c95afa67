//! `scripts/first-minutes.sh`: what it leaves behind.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use rustix::process::{Pid, Signal};

/// For each thing that is waited for.
const LIMIT: Duration = Duration::from_secs(30);
/// Starts a process, as cargo starts compilers. This one holds the pipe `HELD` open until it exits.
const CARGO: &str = "#!/bin/sh\nsleep 60 >\"$HELD\" &\nwait\n";

#[test]
fn a_script_that_is_ended_during_the_build_leaves_no_compiler() {
    let world = tempfile::tempdir().unwrap();
    let at = |name: &str| world.path().join(name);
    let (programs, held, work) = (at("bin"), at("held"), at("work"));
    [&programs, &work].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    for (name, text) in [("cargo", CARGO), ("cc", "#!/bin/sh\n"), ("curl", "#!/bin/sh\n")] {
        let program = programs.join(name);
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }
    rustix::fs::mknodat(CWD, &held, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let repository = at("repository");
    let made = Command::new("git").args(["init", "--quiet"]).arg(&repository).status().unwrap();
    assert!(made.success());

    let (sender, receiver) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        // Opens when the process that cargo starts has opened it, and ends when that process has ended.
        let mut pipe = File::open(held).unwrap();
        sender.send("started").unwrap();
        pipe.read_to_end(&mut Vec::new()).unwrap();
        sender.send("ended").unwrap();
    });
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/first-minutes.sh");
    let mut command = Command::new(script);
    command.arg("--from").arg(&repository).env("PATH", path).env("HELD", at("held")).env("TMPDIR", &work);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(receiver.recv_timeout(LIMIT), Ok("started"));
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = receiver.recv_timeout(LIMIT);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(ended, Ok("ended"), "the compiler goes on");
    reader.join().unwrap();
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0, "the script's folder is left");
}
