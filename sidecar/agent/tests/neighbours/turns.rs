//! The thread that waits for the turn.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use sluice_agent::directive::Directives;
use sluice_agent::metrics::Metrics;
use sluice_agent::neighbours::turns::{Ends, Standing, spawn};
use sluice_agent::service::{Inbox, Message};
use sluice_memory::gpu_ledger::{ParticipantHandle, TurnOrder};
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::config::SloConfig;

use super::desk::seats;
use crate::admin::world::directive;
use crate::gateway::client::PATIENCE;

const ORDER: TurnOrder = TurnOrder::Priority { aging_turns: 64 };

fn directives(folder: &Path) -> Arc<Directives> {
    Arc::new(Directives::open(folder.join("directive"), Box::new(|_| Ok(()))))
}

/// A tenant that waits for its turn with the priority of its configuration.
fn waits(seat: &Arc<ParticipantHandle>, priority: i32, directives: &Arc<Directives>) -> Receiver<Message> {
    let (inbox, messages) = Inbox::new();
    let ends = Ends {
        inbox,
        metrics: Arc::new(Metrics::new("tiny", &SloConfig::default())),
        takeovers: Arc::default(),
    };
    let standing = Standing { order: ORDER, priority, directives: directives.clone() };
    let wishes = spawn(seat.clone(), standing, ends).expect("a thread");
    wishes.send(()).expect("it listens");
    // It ends with the test's process: a wish that was dropped is none.
    std::mem::forget(wishes);
    messages
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn has_turn(messages: &Receiver<Message>) {
    let message = messages.recv_timeout(PATIENCE).expect("its turn comes");
    let told =
        matches!(message, Message::Neighbour(event) if matches!(*event, PeerPortEvent::SliceGranted { .. }));
    assert!(told);
}

#[test]
fn a_directive_changes_the_priority_of_who_waits_already() {
    let (folder, [holder, first, second]) = seats(["holder", "first", "second"]);
    holder.slice_queue().request(0).unwrap();
    assert!(holder.slice_queue().try_acquire(ORDER).unwrap().is_some());
    let none = directives(&folder.path().join("none"));
    let changing = directives(folder.path());
    let _first = waits(&first, 0, &none);
    until("it draws a ticket", || holder.slice_queue().waiters() == Ok(1));
    let told = waits(&second, 0, &changing);
    let line = || holder.slice_queue().waiters_in_order(ORDER).unwrap();
    until("both wait", || line() == [first.peer(), second.peer()]);
    let text = directive(1, 1, &[]).to_string();
    changing.put(text.as_bytes()).unwrap();
    until("its priority is 1", || line() == [second.peer(), first.peer()]);
    holder.slice_queue().release().unwrap();
    has_turn(&told);
}

#[test]
fn who_has_lost_its_ticket_draws_another() {
    let (folder, [holder, other]) = seats(["holder", "other"]);
    holder.slice_queue().request(0).unwrap();
    assert!(holder.slice_queue().try_acquire(ORDER).unwrap().is_some());
    let messages = waits(&other, 0, &directives(folder.path()));
    until("it draws a ticket", || holder.slice_queue().waiters() == Ok(1));
    other.slice_queue().cancel().unwrap();
    holder.slice_queue().release().unwrap();
    has_turn(&messages);
}
