//! Tests of the thread that waits for the time slice.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use sluice_agent::directive::DirectiveStore;
use sluice_agent::metrics::Metrics;
use sluice_agent::peers::time_slice_thread::{Channels, SliceConfig, spawn};
use sluice_agent::scheduler_handle::{MessageSender, SchedulerMessage};
use sluice_memory::gpu_ledger::{ParticipantHandle, SliceOrder};
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::config::SloConfig;

use super::pending_replies::participants;
use crate::admin::harness::directive;
use crate::gateway::client::TIMEOUT;

const ORDER: SliceOrder = SliceOrder::Priority { aging_slices: 64 };

fn directives(folder: &Path) -> Arc<DirectiveStore> {
    Arc::new(DirectiveStore::open(folder.join("directive"), Box::new(|_| Ok(()))))
}

/// Starts a tenant that waits for its time slice with the priority of its configuration.
fn start_slice_thread(
    participant: &Arc<ParticipantHandle>,
    priority: i32,
    directives: &Arc<DirectiveStore>,
) -> Receiver<SchedulerMessage> {
    let (inbox, messages) = MessageSender::new();
    let ends = Channels {
        inbox,
        metrics: Arc::new(Metrics::new("tiny", &SloConfig::default())),
        takeovers: Arc::default(),
    };
    let standing = SliceConfig { order: ORDER, priority, directives: directives.clone() };
    let wishes = spawn(participant.clone(), standing, ends).expect("a thread");
    wishes.send(()).expect("it listens");
    // Leaked until the test's process exits, because dropping the sender withdraws the request.
    std::mem::forget(wishes);
    messages
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

fn assert_slice_received(messages: &Receiver<SchedulerMessage>) {
    let message = messages.recv_timeout(TIMEOUT).expect("it gets its slice");
    let SchedulerMessage::Peer(event) = message else { panic!("a message of a peer") };
    assert!(matches!(*event, PeerPortEvent::SliceGranted { .. }));
}

#[test]
fn directive_updates_priority_of_waiting_tenant() {
    let (folder, [holder, first, second]) = participants(["holder", "first", "second"]);
    holder.slice_queue().request(0).unwrap();
    assert!(holder.slice_queue().try_acquire(ORDER).unwrap().is_some());
    let none = directives(&folder.path().join("none"));
    let changing = directives(folder.path());
    let _first = start_slice_thread(&first, 0, &none);
    wait_until("it draws a ticket", || holder.slice_queue().waiters() == Ok(1));
    let messages = start_slice_thread(&second, 0, &changing);
    let line = || holder.slice_queue().waiters_in_order(ORDER).unwrap();
    wait_until("both wait", || line() == [first.peer(), second.peer()]);
    let text = directive(1, 1, &[]).to_string();
    changing.put(text.as_bytes()).unwrap();
    wait_until("its priority is 1", || line() == [second.peer(), first.peer()]);
    holder.slice_queue().release().unwrap();
    assert_slice_received(&messages);
}

#[test]
fn lost_ticket_is_replaced() {
    let (folder, [holder, other]) = participants(["holder", "other"]);
    holder.slice_queue().request(0).unwrap();
    assert!(holder.slice_queue().try_acquire(ORDER).unwrap().is_some());
    let messages = start_slice_thread(&other, 0, &directives(folder.path()));
    wait_until("it draws a ticket", || holder.slice_queue().waiters() == Ok(1));
    other.slice_queue().cancel().unwrap();
    holder.slice_queue().release().unwrap();
    assert_slice_received(&messages);
}
