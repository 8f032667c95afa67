//! Tests that a peer which is stopped while it holds the ledger's guard delays nothing that this tenant's clients see.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::json;
use sluice_agent::peers::ledger_watch::watch_ledger;
use sluice_memory::gpu_ledger::{GpuLedger, LedgerFaults};
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::loans::Nonce;
use sluice_wire::grants::GrantRequest;

use super::ledger_watch::grant_client;
use super::pending_replies::{CHUNK, identity, join, participant};
use crate::gateway::client::TIMEOUT;
use crate::gateway::harness::{Harness, HarnessConfig};

/// Folder of the ledger that [`peer`] joins.
const FOLDER_VAR: &str = "SLUICE_TEST_LEDGER";
/// Line that the peer prints when it holds the guard.
const WITHIN: &str = "@within";
/// Number of tasks that would block a runtime with the sidecar's number of threads.
const COMMANDS: u64 = 4;
const TOKENS: usize = 100;

#[test]
#[ignore = "a process of the other tests, which start it"]
fn peer() {
    let Some(folder) = std::env::var_os(FOLDER_VAR).map(PathBuf::from) else {
        println!("skipped: only other tests start this one");
        return;
    };
    let armed = Arc::new(AtomicBool::new(false));
    let stops = armed.clone();
    let tap = move || {
        if stops.load(Ordering::SeqCst) {
            println!("\n{WITHIN}");
            std::thread::sleep(Duration::MAX);
        }
    };
    let faults = LedgerFaults { before_write: Some(Arc::new(tap)), ..LedgerFaults::default() };
    let ledger = GpuLedger::open_with(&folder, &identity(), faults).unwrap();
    let participant = ledger.join("default/code", 0, 30 * CHUNK).unwrap();
    armed.store(true, Ordering::SeqCst);
    participant.reserve(CHUNK).unwrap();
}

/// A stopped process that holds the guard. Killed on drop.
struct FrozenPeer(Child);

impl FrozenPeer {
    fn start(folder: &std::path::Path) -> FrozenPeer {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "peers::frozen_peer::peer", "--ignored", "--nocapture"]);
        let mut child = command.env(FOLDER_VAR, folder).stdout(Stdio::piped()).spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
        assert!(lines.into_iter().any(|line| line == WITHIN), "it comes to the guard");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).expect("it can be stopped");
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT).expect("it stops");
        FrozenPeer(child)
    }

    /// Kills the peer at the end of the test or after a timeout, so that a test which waits for it fails instead of
    /// hanging. The thread returns true if the timeout passed.
    fn thaw_later(mut self) -> (Sender<()>, std::thread::JoinHandle<bool>) {
        let (ended, end) = channel();
        let thread = std::thread::spawn(move || {
            let late = end.recv_timeout(TIMEOUT).is_err();
            self.0.kill().expect("it can be killed");
            self.0.wait().expect("it ends");
            late
        });
        (ended, thread)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_peer_does_not_block_tokens_or_peers() {
    let folder = tempfile::TempDir::new().unwrap();
    let story = Arc::new(join(&folder, "story"));
    let (grants, messages) = grant_client(&folder, &story);
    let path = folder.path().to_owned();
    let frozen = tokio::task::spawn_blocking(move || FrozenPeer::start(&path)).await.unwrap();
    let survey = story.survey().unwrap();
    let code = survey.iter().find(|one| one.name == "default/code").expect("it has joined").peer;
    let (ended, thaw) = frozen.thaw_later();

    let watching = tokio::spawn(watch_ledger(grants.clone()));
    let (commands, written) = tokio::sync::mpsc::unbounded_channel();
    let working = tokio::spawn(grants.clone().run(written));
    for nonce in 1..=COMMANDS {
        commands.send(PeerCommand::TakeBack { peer: code, nonce: Nonce(nonce) }).unwrap();
        commands.send(PeerCommand::Survey).unwrap();
    }
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"prompt": "p", "stream": true, "max_tokens": TOKENS});
    let mut client = world.start_post("/v1/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    taken.token(u32::from(b'a'));
    assert_eq!(client.head().await.status, 200);
    client.next_event().await;
    for _ in 1..TOKENS {
        taken.token(u32::from(b'a'));
        client.next_event().await;
        // The scheduler's thread looks up which tenant asks.
        let (answer, _reply) = tokio::sync::oneshot::channel();
        let borrower = participant("code", code);
        let ask = GrantRequest::Ask { borrower, nonce: 1, bytes: CHUNK, ttl_ms: 900 };
        assert!(
            matches!(grants.replies.on_request(ask, answer)[..], [PeerEvent::Asked { .. }]),
            "it is known"
        );
    }
    drop((commands, messages));
    ended.send(()).unwrap();
    let late = tokio::task::spawn_blocking(|| thaw.join().unwrap()).await.unwrap();
    assert!(!late, "the stream stood still until the peer was resumed");
    watching.abort();
    working.abort();
}
