//! Strangers at the socket between a sidecar and its engine, in a pod that serves.

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

/// Where the engine finds its sidecar.
const SOCKET: &str = "run/sluice/engine.sock";
/// The user that sidecars and engines are.
const USER: u32 = 65532;
/// Where [`stranger`] finds the socket, and which of the [`speeches`] is its own.
const SOCKET_VAR: &str = "SLUICE_TEST_SOCKET";
const SPEECH_VAR: &str = "SLUICE_TEST_SPEECH";
/// What it says when it has spoken.
const SPOKEN: &str = "@spoken";

/// What strangers say, the user that they are, and the words of the refusal in the log.
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
    /// They are processes of the pod, are refused in words that its log has, and no stream notices, while the engine lives and
    /// when it dies.
    pub async fn unknown_link_peers_are_refused(&self) {
        let pod = self.product.pod(CHAT);
        let sidecar = container(&pod, "sidecar").first().expect("it runs");
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let strangers = [0, 1, 2].map(|speech| start(sidecar, speech));
        kill(container(&pod, "engine").worker().expect("it stands still"));
        engine.go_on();
        streams.end_with(&self.golden).await;
        for (mut stranger, (_, _, words)) in strangers.into_iter().zip(malformed_messages()) {
            let told = async || {
                let log = self.product.kubectl(&["logs", &name(&pod), "-c", "sidecar"]);
                let refuses = |line: &str| line.contains("an engine was") && line.contains(words);
                log.lines().any(refuses).then_some(())
            };
            self.product.wait(&format!("a refusal that says `{words}`"), told).await;
            assert!(stranger.wait().unwrap().success(), "{words}: it was answered");
        }
    }
}

/// Starts a [`stranger`] among the processes of a pod, and waits until it has spoken.
fn start(sidecar: Pid, speech: usize) -> Child {
    let sidecar = sidecar.as_raw_nonzero();
    let mut command = Command::new("nsenter");
    command.args(["--pid", &format!("--target={sidecar}"), "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "failures::link::stranger", "--ignored", "--nocapture"]);
    command.env(SOCKET_VAR, format!("/proc/{sidecar}/root/{SOCKET}")).env(SPEECH_VAR, speech.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("nsenter");
    let mut said = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    assert!(said.any(|line| line == SPOKEN), "it speaks");
    // It ends as a test, with words.
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
    // Who is not let in may find the door closed.
    let _ = send(&socket, speech, SendFlags::NOSIGNAL);
    println!("\n{SPOKEN}");
    let answer = recv(&socket, &mut [0; 64], RecvFlags::empty()).map_or(0, |(count, _)| count);
    assert_eq!(answer, 0, "{words}");
}

/// Dials as that user: a thread of its own becomes it.
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
