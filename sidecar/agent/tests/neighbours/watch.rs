//! What a look at the ledger tells the scheduler.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use sluice_agent::directive::Directives;
use sluice_agent::neighbours::client::{Client, Credential};
use sluice_agent::neighbours::desk::Desk;
use sluice_agent::neighbours::office::Office;
use sluice_agent::neighbours::watch::watch;
use sluice_agent::service::{Inbox, Message};
use sluice_memory::neighbourhood::Seat;
use sluice_policy::neighbours::Peer;
use sluice_policy::trader::{News, Terms};
use sluice_ports::neighbourhood::NeighbourEvent;
use tempfile::TempDir;

use super::desk::{CHUNK, join, seats};
use crate::gateway::client::PATIENCE;

pub fn office(folder: &TempDir, seat: &Arc<Seat>) -> (Office, Receiver<Message>) {
    let (inbox, messages) = Inbox::new();
    let office = Office {
        seat: seat.clone(),
        desk: Arc::new(Desk::new(seat.clone(), "default", "story", CHUNK)),
        directives: Arc::new(Directives::open(folder.path().join("directive"), Box::new(|_| Ok(())))),
        client: Arc::new(Client::new(Credential::Nothing)),
        inbox,
        origin: Instant::now(),
        terms: Terms::default(),
        order: None,
        heard: Arc::default(),
    };
    (office, messages)
}

/// Returns when the death of `peer` is told.
fn death_of(peer: Peer, messages: &Receiver<Message>) {
    let begun = Instant::now();
    loop {
        let left = PATIENCE.saturating_sub(begun.elapsed());
        let message = messages.recv_timeout(left).expect("its death is told");
        if matches!(message, Message::Neighbour(event) if *event == NeighbourEvent::News(News::Died(peer))) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_neighbour_that_no_look_has_seen_is_told() {
    let (folder, [seat]) = seats(["story"]);
    let (office, messages) = office(&folder, &seat);
    let desk = office.desk.clone();
    let watching = tokio::spawn(watch(office));
    // It comes, says something and goes between two looks.
    let brief = join(&folder, "code");
    let peer = brief.peer();
    drop(brief);
    desk.meet(peer);
    tokio::task::spawn_blocking(move || death_of(peer, &messages)).await.unwrap();
    // Told once, and then forgotten.
    let begun = Instant::now();
    while desk.met().contains(&peer) {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    watching.abort();
}
