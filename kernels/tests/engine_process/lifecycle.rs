//! Tests of supervisor and worker as processes: signals, `Bye`, exits.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluice_link::message::Faults;
use sluice_link::model::Dtype;

use super::harness::*;
use crate::specs::llama;

const A_WHILE: Duration = Duration::from_millis(300);

fn sidecar() -> MiniSidecar {
    MiniSidecar::new(&llama(Dtype::F32), Faults::default())
}

#[test]
fn an_engine_waits_for_a_socket_that_is_not_there_yet() {
    let mut sidecar = sidecar();
    drop(sidecar.listener.take());
    let mut engine = Engine::start(&sidecar.socket(), &[]);
    assert!(engine.exited_within(A_WHILE).is_none());
    sidecar.listener = Some(sluice_link::server::Listener::bind(&sidecar.socket()).unwrap());
    drop(sidecar.attach(&sidecar.resident()));
}

#[test]
fn sigterm_takes_effect_only_after_goodbye() {
    for more in [&[][..], &["--no-supervisor"]] {
        let mut sidecar = sidecar();
        let mut engine = Engine::start(&sidecar.socket(), more);
        let mut link = sidecar.attach(&sidecar.resident());
        engine.signal(Signal::TERM);
        engine.signal(Signal::INT);
        assert!(engine.exited_within(A_WHILE).is_none(), "its sidecar still needs it");
        let step = sidecar.step(0, &[1, 2, 3]);
        assert!(sidecar.run(&mut link, &step).is_ok());
        link.sender.send_bye().unwrap();
        let status = engine.exited_within(TEST_TIMEOUT).expect("ends after Bye");
        assert!(status.success(), "{status}");
    }
}

#[test]
fn sigterm_ends_engine_without_sidecar() {
    let mut sidecar = sidecar();
    let mut engine = Engine::start(&sidecar.socket(), &[]);
    let link = sidecar.attach(&sidecar.resident());
    drop(sidecar.listener.take());
    engine.signal(Signal::TERM);
    assert!(engine.exited_within(A_WHILE).is_none());
    drop(link);
    assert!(engine.exited_within(TEST_TIMEOUT).expect("ends with its sidecar").success());

    let mut engine = Engine::start(&sidecar.socket(), &[]);
    assert!(engine.exited_within(A_WHILE).is_none());
    engine.signal(Signal::TERM);
    assert!(engine.exited_within(TEST_TIMEOUT).expect("no process needs it").success());
}

#[test]
fn goodbye_ends_engine() {
    let sidecar = sidecar();
    let mut engine = Engine::start(&sidecar.socket(), &[]);
    let link = sidecar.attach(&sidecar.resident());
    link.sender.send_bye().unwrap();
    assert!(engine.exited_within(TEST_TIMEOUT).expect("ends").success());
}

#[test]
fn crashed_workers_are_restarted_with_backoff() {
    let sidecar = sidecar();
    let mut engine = Engine::start(&sidecar.socket(), &[]);
    let mut waits = Vec::new();
    for _ in 0..5 {
        let link = sidecar.accept().unwrap();
        let begun = Instant::now();
        kill_process(Pid::from_raw(link.hello.pid as i32).unwrap(), Signal::KILL).unwrap();
        link.process.kill_and_wait(Duration::from_secs(5), Duration::from_secs(5)).unwrap();
        drop(link);
        assert!(
            sluice_link::socket::wait_readable(
                std::os::fd::AsFd::as_fd(sidecar.listener.as_ref().unwrap()),
                TEST_TIMEOUT
            )
            .unwrap()
        );
        waits.push(begun.elapsed());
    }
    // 50, 100, 200, 400, 800 ms, each plus the start of a process.
    for (number, wait) in waits.iter().enumerate() {
        assert!(*wait >= Duration::from_millis(50 << number), "{waits:?}");
    }
    assert!(engine.exited_within(Duration::ZERO).is_none(), "the supervisor is not one of the dead");
}

#[test]
fn a_worker_is_replaced_although_its_file_is_gone() {
    let sidecar = sidecar();
    let built = std::path::Path::new(env!("CARGO_BIN_EXE_sluice-engine"));
    // A hard link, not a copy: a file that was just written is busy while any thread forks.
    let program = built.with_file_name(format!("sluice-engine-to-go-{}", std::process::id()));
    std::fs::hard_link(built, &program).unwrap();
    let _engine = Engine::start_as(&program, &sidecar.socket(), &[]);
    let link = sidecar.accept().unwrap();
    std::fs::remove_file(&program).unwrap();
    kill_process(Pid::from_raw(link.hello.pid as i32).unwrap(), Signal::KILL).unwrap();
    drop(link);
    assert!(sidecar.accept().is_ok(), "a new build over a running one must not keep its engines down");
}

#[test]
fn a_killed_supervisor_takes_its_worker_along() {
    let sidecar = sidecar();
    let engine = Engine::start(&sidecar.socket(), &[]);
    let link = sidecar.attach(&sidecar.resident());
    engine.signal(Signal::KILL);
    assert!(link.process.wait_exit(TEST_TIMEOUT).unwrap());
}

/// Returns an address on which no other process of the machine listens.
fn address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 80, high, low], 8004))
}

/// Whether a liveness probe is answered within `limit`.
fn is_live(address: SocketAddr, limit: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    stream.set_read_timeout(Some(limit)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).is_ok() && answer.starts_with("HTTP/1.1 200 OK\r\n")
}

#[test]
fn supervisor_answers_probes_independent_of_worker_unless_stopped() {
    let (sidecar, address) = (sidecar(), address());
    let engine = Engine::start(&sidecar.socket(), &["--live", &address.to_string()]);
    let link = sidecar.attach(&sidecar.resident());
    assert!(is_live(address, TEST_TIMEOUT));
    kill_process(Pid::from_raw(link.hello.pid as i32).unwrap(), Signal::STOP).unwrap();
    assert!(is_live(address, TEST_TIMEOUT), "its sidecar sees to the worker");
    engine.signal(Signal::STOP);
    assert!(!is_live(address, A_WHILE));
    engine.signal(Signal::CONT);
    assert!(is_live(address, TEST_TIMEOUT));
}

#[test]
fn help_and_version_list_required_items() {
    let say = |program: &str, argument| {
        let output = Command::new(program).arg(argument).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let engine = env!("CARGO_BIN_EXE_sluice-engine");
    let version = say(engine, "--version");
    assert!(version.starts_with("sluice-engine 0.1.0 (commit "), "{version}");
    assert!(version.ends_with(", link 8)\n"), "{version}");
    let generator = say(env!("CARGO_BIN_EXE_sluice-model-gen"), "--version");
    assert!(generator.starts_with("sluice-model-gen 0.1.0 (commit "), "{generator}");
    let help = say(engine, "--help");
    for word in ["--socket", "--threads", "--no-supervisor"] {
        assert!(help.contains(word), "{help}");
    }
}
