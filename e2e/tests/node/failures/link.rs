//! Unknown processes at the socket between a sidecar and its engine, in a serving pod.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::{Pid, Uid};
use rustix::thread::set_thread_uid;

use super::{CHAT, Rows};
use crate::installed::pod::name;
use crate::installed::processes::{container, kill};

/// Path of the socket in the pod.
const SOCKET: &str = "run/sluice/engine.sock";
/// User id of sidecars and engines.
const USER: u32 = 65532;
/// Environment of [`stranger`]: path of the socket, and which of the [`speeches`] it sends.
const SOCKET_VAR: &str = "SLUICE_TEST_SOCKET";
const SPEECH_VAR: &str = "SLUICE_TEST_SPEECH";
/// Line that it prints after it has sent its message.
const SPOKEN: &str = "@spoken";

/// Messages of unknown processes, their user ids, and the text of the refusal in the log.
fn malformed_messages() -> [(Vec<u8>, u32, &'static str); 3] {
    let words = b"GET / HTTP/1.1\r\nhost: engine\r\n\r\n".to_vec();
    let of_another_version = [&b"SLNK"[..], &[231, 3, 1, 0, 0, 0, 1, 0], &[0; 4]].concat();
    [
        (words.clone(), 0, "peer runs as user 0"),
        (words, USER, "magic"),
        (of_another_version, USER, "link version 999"),
    ]
}

impl Rows<'_> {
    /// The processes are in the pod. The log has the text of each refusal, and no stream is affected, both while
    /// the engine runs and when it crashes.
    pub async fn unknown_link_peers_are_refused(&self) {
        let pod = self.product.pod(CHAT);
        let sidecar = container(&pod, "sidecar").first().expect("it runs");
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let strangers = [0, 1, 2].map(|speech| start(sidecar, speech));
        kill(container(&pod, "engine").worker().expect("it stands still"));
        engine.go_on();
        streams.end_with(&self.golden).await;
        for (mut stranger, (_, _, words)) in strangers.into_iter().zip(malformed_messages()) {
            let is_refused = async || {
                let log = self.product.kubectl(&["logs", &name(&pod), "-c", "sidecar"]);
                let refuses = |line: &str| line.contains("an engine") && line.contains(words);
                log.lines().any(refuses).then_some(())
            };
            self.product.wait(&format!("a refusal that says `{words}`"), is_refused).await;
            assert!(stranger.wait().unwrap().success(), "{words}: it was answered");
        }
    }
}

/// Starts a [`stranger`] in the PID namespace of a pod, and waits until it has sent its message.
fn start(sidecar: Pid, speech: usize) -> Child {
    let sidecar = sidecar.as_raw_nonzero();
    let mut command = Command::new("nsenter");
    command.args(["--pid", &format!("--target={sidecar}"), "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "failures::link::stranger", "--ignored", "--nocapture"]);
    command.env(SOCKET_VAR, format!("/proc/{sidecar}/root/{SOCKET}")).env(SPEECH_VAR, speech.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("nsenter");
    let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(said.any(|line| line == SPOKEN), "it speaks");
    // The process ends as a test and prints its result.
    std::thread::spawn(move || said.for_each(drop));
    child
}

#[test]
#[ignore = "a process of the test of failures, which starts it in a pod"]
fn stranger() {
    let Some(path) = std::env::var_os(SOCKET_VAR) else {
        println!("skipped: only another test starts this one");
        return;
    };
    let index: usize = std::env::var(SPEECH_VAR).unwrap().parse().unwrap();
    let (speech, user, words) = &malformed_messages()[index];
    let socket = dial(&open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap(), *user);
    // The socket of a refused process may be closed.
    let _ = send(&socket, speech, SendFlags::NOSIGNAL);
    println!("\n{SPOKEN}");
    let answer = recv(&socket, &mut [0; 64], RecvFlags::empty()).map_or(0, |(count, _)| count);
    assert_eq!(answer, 0, "{words}");
}

/// Connects as that user, on a thread that changes its user id.
fn dial(socket: &OwnedFd, user: u32) -> OwnedFd {
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
    let dials = move || {
        set_thread_uid(Uid::from_raw(user)).unwrap();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &address).map(|()| socket)
    };
    std::thread::spawn(dials).join().unwrap().unwrap()
}
