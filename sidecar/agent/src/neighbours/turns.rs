//! The thread that waits for the turn, so that the scheduler never does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sluice_memory::neighbourhood::{Seat, TurnOrder};
use sluice_ports::neighbourhood::NeighbourEvent;

use crate::metrics::Metrics;
use crate::service::{Inbox, Message};

/// How long one wait lasts before the thread looks whether anybody still listens.
const WAIT: Duration = Duration::from_millis(500);
/// After an error of the kernel.
const PAUSE: Duration = Duration::from_millis(50);

/// Where a turn that has come is told.
#[derive(Debug)]
pub struct Ends {
    /// To the scheduler.
    pub inbox: Inbox,
    /// How long the hand-over took.
    pub metrics: Arc<Metrics>,
}

/// Starts the thread. Each message is one wish for the turn; dropping the sender ends the thread after its wait.
///
/// # Errors
/// The machine has no room for a thread.
pub fn spawn(seat: Arc<Seat>, order: TurnOrder, priority: i32, ends: Ends) -> std::io::Result<Sender<()>> {
    let (sender, wishes) = channel();
    let work = move || wait_for_turns(&seat, order, priority, &wishes, &ends);
    std::thread::Builder::new().name("turns".into()).spawn(work)?;
    Ok(sender)
}

fn wait_for_turns(seat: &Seat, order: TurnOrder, priority: i32, wishes: &Receiver<()>, ends: &Ends) {
    while wishes.recv().is_ok() {
        let line = seat.turn();
        if let Err(error) = line.request(priority) {
            tracing::error!(%error, "the turn cannot be asked for");
            std::thread::sleep(PAUSE);
        }
        loop {
            match line.take_within(order, WAIT) {
                Ok(Some(epoch)) => {
                    let event = NeighbourEvent::Turn { epoch: epoch.0 };
                    ends.inbox.send(Message::Neighbour(Box::new(event)));
                    if let Some(time) = line.handover() {
                        ends.metrics.handed_over(time);
                    }
                    break;
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "the turn cannot be waited for");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }
}
