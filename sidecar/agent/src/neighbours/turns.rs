//! The thread that waits for the turn, so that the scheduler never does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use sluice_memory::neighbourhood::{Epoch, Seat, TurnLine, TurnOrder};
use sluice_ports::neighbourhood::NeighbourEvent;

use super::takeovers::Takeovers;
use crate::directive::Directives;
use crate::metrics::Metrics;
use crate::service::{Inbox, Message};

/// How long one wait lasts before the thread looks whether anybody still listens, and which priority it has.
const WAIT: Duration = Duration::from_millis(500);
/// After an error of the kernel or the ledger; twice as long after each that follows.
const PAUSE: Duration = Duration::from_millis(50);
/// At most.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Where a turn that has come is told.
#[derive(Debug)]
pub struct Ends {
    /// To the scheduler.
    pub inbox: Inbox,
    /// How long the hand-over took.
    pub metrics: Arc<Metrics>,
    /// Those that were taken from a holder past its deadline, and tenants that were skipped.
    pub takeovers: Arc<Takeovers>,
}

/// How a tenant stands in the line.
#[derive(Debug)]
pub struct Standing {
    /// Who is next.
    pub order: TurnOrder,
    /// Of the configuration: where no directive says another.
    pub priority: i32,
    /// They may change it at any time.
    pub directives: Arc<Directives>,
}

impl Standing {
    fn priority(&self) -> i32 {
        self.directives.in_force().map_or(self.priority, |in_force| in_force.directive.tenant.priority)
    }
}

/// Starts the thread. Each message is one wish for the turn; dropping the sender ends the thread after its wait.
///
/// # Errors
/// The machine has no room for a thread.
pub fn spawn(seat: Arc<Seat>, standing: Standing, ends: Ends) -> std::io::Result<Sender<()>> {
    let (sender, wishes) = channel();
    let work = move || wait_for_turns(&seat, &standing, &wishes, &ends);
    std::thread::Builder::new().name("turns".into()).spawn(work)?;
    Ok(sender)
}

fn wait_for_turns(seat: &Seat, standing: &Standing, wishes: &Receiver<()>, ends: &Ends) {
    let mut wished = false;
    while wished || wishes.recv().is_ok() {
        let Some(epoch) = next_turn(seat, standing, wishes, ends) else { return };
        let event = NeighbourEvent::Turn { epoch: epoch.0 };
        ends.inbox.send(Message::Neighbour(Box::new(event)));
        if let Some(time) = seat.turn().handover() {
            ends.metrics.handed_over(time);
        }
        if let Some(taken) = seat.turn().taken_over() {
            ends.takeovers.note(taken);
            ends.metrics.turn_taken_over();
        }
        wished = tell_when_sought(&seat.turn(), epoch, wishes, ends);
    }
}

/// Waits until the turn comes; none when nobody wants it any more. Each wait begins with a ticket: who has one keeps it,
/// under the priority of now, and who has lost it draws another.
fn next_turn(seat: &Seat, standing: &Standing, wishes: &Receiver<()>, ends: &Ends) -> Option<Epoch> {
    let (line, mut pause) = (seat.turn(), PAUSE);
    loop {
        let ticket = line.request(standing.priority());
        let taken = ticket.and_then(|()| line.take_within(standing.order, WAIT));
        for of in line.take_skipped() {
            ends.takeovers.record_skip(of);
            ends.metrics.turn_skipped();
        }
        match taken {
            Ok(Some(epoch)) => return Some(epoch),
            Ok(None) => pause = PAUSE,
            Err(error) => {
                tracing::error!(%error, "the turn cannot be waited for");
                std::thread::sleep(pause);
                pause = (2 * pause).min(PAUSE_MAX);
            }
        }
        // A second wish before the first is fulfilled is the same wish.
        if wishes.try_recv() == Err(TryRecvError::Disconnected) {
            return None;
        }
    }
}

/// Returns when the turn is given up, or after the scheduler was told that somebody waits for it. True when the next turn was
/// wished for meanwhile.
fn tell_when_sought(line: &TurnLine<'_>, epoch: Epoch, wishes: &Receiver<()>, ends: &Ends) -> bool {
    while line.held() == Some(epoch) {
        match line.sought_within(WAIT) {
            Ok(true) => {
                let event = NeighbourEvent::Sought { epoch: epoch.0 };
                ends.inbox.send(Message::Neighbour(Box::new(event)));
                return false;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "who waits for the turn cannot be seen");
                std::thread::sleep(PAUSE);
            }
        }
        match wishes.try_recv() {
            Ok(()) => return true,
            Err(TryRecvError::Disconnected) => return false,
            Err(TryRecvError::Empty) => {}
        }
    }
    false
}
