//! What a survey finds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use sluice_agent::neighbours::office::Office;
use sluice_agent::service::Message;
use sluice_memory::gpu_ledger::TurnOrder;
use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::victim::PeerView;
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::State;
use sluice_wire::state::Neighbourhood as Place;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;

use super::desk::{CHUNK, seats};
use super::watch::office;
use crate::admin::world::directive;
use crate::gateway::client::PATIENCE;

/// Tells its state as long as it is open, and then answers nobody.
async fn tells(state: State, open: Arc<AtomicBool>) -> SocketAddr {
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
            // Whoever asked may have waited long enough.
            let _ = socket.write_all(text.as_bytes()).await;
        }
    });
    address
}

/// The next survey that is told.
fn found(messages: &Receiver<Message>) -> Vec<PeerView> {
    let begun = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left).expect("a survey is told");
        if let Message::Neighbour(event) = message
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
    state.neighbourhood = Some(place);
    state
}

/// An office at work.
struct Asker {
    letters: UnboundedSender<PeerCommand>,
    messages: Option<Receiver<Message>>,
}

impl Asker {
    fn new((office, messages): (Office, Receiver<Message>)) -> Asker {
        let (letters, written) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(office.work(written));
        Asker { letters, messages: Some(messages) }
    }

    /// What the next survey finds.
    async fn survey(&mut self) -> Vec<PeerView> {
        self.letters.send(PeerCommand::Survey).expect("the office works");
        let messages = self.messages.take().expect("one survey at a time");
        let waiting = tokio::task::spawn_blocking(move || (found(&messages), messages));
        let (found, messages) = waiting.await.expect("a survey is told");
        self.messages = Some(messages);
        found
    }

    /// The first survey in which all tell.
    async fn all_tell(&mut self) -> Vec<PeerView> {
        let begun = Instant::now();
        loop {
            let found = self.survey().await;
            if found.iter().all(|seen| seen.live.is_some()) {
                return found;
            }
            assert!(begun.elapsed() < PATIENCE, "{found:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_that_is_slow_to_tell_is_seen_as_it_told_last() {
    let (folder, [me, slow]) = seats(["story", "slow"]);
    let open = Arc::new(AtomicBool::new(false));
    let mut state = state("slow", 7);
    state.activity.next_use_in_ms = Some(1500);
    let address = tells(state, open.clone()).await;
    let (office, messages) = office(&folder, &me);
    office.directives.put(directive(1, 1, &[("slow", address)]).to_string().as_bytes()).unwrap();
    let mut asker = Asker::new((office, messages));
    let unknown = PeerView { peer: slow.peer(), reachable: true, ..PeerView::default() };
    assert_eq!(asker.survey().await, [unknown], "it lives, so it can be asked");
    open.store(true, Ordering::Relaxed);
    let told = asker.all_tell().await;
    let live = told[0].live.unwrap();
    assert_eq!((live.lendable_chunks, live.next_use_ns), (7, Some(1_500_000_000)));
    open.store(false, Ordering::Relaxed);
    assert_eq!(asker.survey().await, told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_neighbours_place_in_the_line_is_how_many_are_before_it() {
    let (folder, [me, first, second]) = seats(["story", "first", "second"]);
    for seat in [&first, &second] {
        seat.slice_queue().request(0).unwrap();
    }
    let open = Arc::new(AtomicBool::new(true));
    let addresses =
        [tells(state("first", 1), open.clone()).await, tells(state("second", 1), open.clone()).await];
    let (mut office, messages) = office(&folder, &me);
    office.order = Some(TurnOrder::RoundRobin);
    let named = [("second", addresses[1]), ("first", addresses[0])];
    office.directives.put(directive(1, 1, &named).to_string().as_bytes()).unwrap();
    let seen = Asker::new((office, messages)).all_tell().await;
    let places: Vec<_> =
        seen.iter().map(|seen| (seen.peer, seen.live.and_then(|live| live.queue_position))).collect();
    assert_eq!(places, [(second.peer(), Some(1)), (first.peer(), Some(0))]);
}
