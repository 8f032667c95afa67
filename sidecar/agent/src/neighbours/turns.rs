//! The thread that waits for the turn, so that the scheduler never does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use sluice_memory::gpu_ledger::{Epoch, ParticipantHandle, SliceQueue, TurnOrder};
use sluice_ports::peers::PeerPortEvent;

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
pub fn spawn(seat: Arc<ParticipantHandle>, standing: Standing, ends: Ends) -> std::io::Result<Sender<()>> {
    let (sender, wishes) = channel();
    let work = move || wait_for_turns(&seat, &standing, &wishes, &ends);
    std::thread::Builder::new().name("turns".into()).spawn(work)?;
    Ok(sender)
}

fn wait_for_turns(seat: &ParticipantHandle, standing: &Standing, wishes: &Receiver<()>, ends: &Ends) {
    let mut wished = false;
    while wished || wishes.recv().is_ok() {
        let Some(epoch) = next_turn(seat, standing, wishes, ends) else { return };
        let event = PeerPortEvent::SliceGranted { epoch: epoch.0 };
        ends.inbox.send(Message::Neighbour(Box::new(event)));
        if let Some(time) = seat.slice_queue().handover() {
            ends.metrics.handed_over(time);
        }
        if let Some(taken) = seat.slice_queue().takeover() {
            ends.takeovers.note(taken);
            ends.metrics.turn_taken_over();
        }
        wished = tell_when_sought(&seat.slice_queue(), epoch, wishes, ends);
    }
}

/// Waits until the turn comes; none when nobody wants it any more. Each wait begins with a ticket: who has one keeps it,
/// under the priority of now, and who has lost it draws another.
fn next_turn(
    seat: &ParticipantHandle,
    standing: &Standing,
    wishes: &Receiver<()>,
    ends: &Ends,
) -> Option<Epoch> {
    let (line, mut pause) = (seat.slice_queue(), PAUSE);
    loop {
        let ticket = line.request(standing.priority());
        let taken = ticket.and_then(|()| line.acquire_within(standing.order, WAIT));
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
fn tell_when_sought(line: &SliceQueue<'_>, epoch: Epoch, wishes: &Receiver<()>, ends: &Ends) -> bool {
    while line.held() == Some(epoch) {
        match line.wait_for_waiter(WAIT) {
            Ok(true) => {
                let event = PeerPortEvent::SliceRequested { epoch: epoch.0 };
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
