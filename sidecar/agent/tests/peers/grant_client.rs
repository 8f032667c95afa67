//! Tests of the survey of peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use sluice_agent::peers::grant_client::GrantClient;
use sluice_agent::scheduler_handle::SchedulerMessage;
use sluice_memory::gpu_ledger::SliceOrder;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::victim::PeerView;
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::State;
use sluice_wire::state::SharingState as Place;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;

use super::ledger_watch::grant_client;
use super::pending_replies::{CHUNK, participants};
use crate::admin::harness::directive;
use crate::gateway::client::TIMEOUT;

/// Responds with its state while `open` is set, and afterwards does not respond.
async fn serve_state(state: State, open: Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let body = serde_json::to_string(&state).expect("a state is JSON");
    let text =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    tokio::spawn(async move {
        let mut silent = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if !open.load(Ordering::Relaxed) {
                silent.push(socket);
                continue;
            }
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut request).await.expect("a request") > 0, "a whole request");
            }
            // Fails if the client has disconnected.
            let _ = socket.write_all(text.as_bytes()).await;
        }
    });
    address
}

/// Returns the next survey sent to the scheduler.
fn peer_views(messages: &Receiver<SchedulerMessage>) -> Vec<PeerView> {
    let begun = Instant::now();
    loop {
        let left = TIMEOUT.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left).expect("a survey is reported");
        if let SchedulerMessage::Peer(event) = message
            && let PeerPortEvent::Peer(PeerEvent::Survey(found)) = *event
        {
            return found;
        }
    }
}

fn state(name: &str, lendable_chunks: u64) -> State {
    let mut state = State::default();
    (state.tenant.namespace, state.tenant.name) = ("default".into(), name.into());
    let place = Place { lendable_bytes: lendable_chunks * CHUNK, ..Place::default() };
    state.peers = Some(place);
    state
}

/// A running grant client.
struct Borrower {
    commands: UnboundedSender<PeerCommand>,
    messages: Option<Receiver<SchedulerMessage>>,
}

impl Borrower {
    fn new((client, messages): (GrantClient, Receiver<SchedulerMessage>)) -> Borrower {
        let (commands, written) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(client.run(written));
        Borrower { commands, messages: Some(messages) }
    }

    /// Runs a survey and returns its result.
    async fn survey(&mut self) -> Vec<PeerView> {
        self.commands.send(PeerCommand::Survey).expect("the office works");
        let messages = self.messages.take().expect("one survey at a time");
        let waiting = tokio::task::spawn_blocking(move || (peer_views(&messages), messages));
        let (found, messages) = waiting.await.expect("a survey is reported");
        self.messages = Some(messages);
        found
    }

    /// Returns the first survey in which all peers respond.
    async fn survey_until_complete(&mut self) -> Vec<PeerView> {
        let begun = Instant::now();
        loop {
            let found = self.survey().await;
            if found.iter().all(|seen| seen.live.is_some()) {
                return found;
            }
            assert!(begun.elapsed() < TIMEOUT, "{found:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_peer_is_seen_in_last_known_state() {
    let (folder, [me, slow]) = participants(["story", "slow"]);
    let open = Arc::new(AtomicBool::new(false));
    let mut state = state("slow", 7);
    state.activity.next_use_in_ms = Some(1500);
    let address = serve_state(state, open.clone()).await;
    let (client, messages) = grant_client(&folder, &me);
    client.directives.put(directive(1, 1, &[("slow", address)]).to_string().as_bytes()).unwrap();
    let mut asker = Borrower::new((client, messages));
    let unknown = PeerView { peer: slow.peer(), reachable: true, ..PeerView::default() };
    assert_eq!(asker.survey().await, [unknown], "it lives, so it can be asked");
    open.store(true, Ordering::Relaxed);
    let survey = asker.survey_until_complete().await;
    let live = survey[0].live.unwrap();
    assert_eq!((live.lendable_chunks, live.next_use_ns), (7, Some(1_500_000_000)));
    open.store(false, Ordering::Relaxed);
    assert_eq!(asker.survey().await, survey);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_position_counts_earlier_peers() {
    let (folder, [me, first, second]) = participants(["story", "first", "second"]);
    for participant in [&first, &second] {
        participant.slice_queue().request(0).unwrap();
    }
    let open = Arc::new(AtomicBool::new(true));
    let addresses = [
        serve_state(state("first", 1), open.clone()).await,
        serve_state(state("second", 1), open.clone()).await,
    ];
    let (mut client, messages) = grant_client(&folder, &me);
    client.slice_order = Some(SliceOrder::RoundRobin);
    let named = [("second", addresses[1]), ("first", addresses[0])];
    client.directives.put(directive(1, 1, &named).to_string().as_bytes()).unwrap();
    let seen = Borrower::new((client, messages)).survey_until_complete().await;
    let places: Vec<_> =
        seen.iter().map(|seen| (seen.peer, seen.live.and_then(|live| live.queue_position))).collect();
    assert_eq!(places, [(second.peer(), Some(1)), (first.peer(), Some(0))]);
}
