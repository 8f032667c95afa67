//! The thread that waits for the turn, so that the scheduler never does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use sluice_memory::gpu_ledger::{Epoch, ParticipantHandle, SliceQueue, TurnOrder};
use sluice_ports::peers::PeerPortEvent;

use super::takeovers::Takeovers;
use crate::directive::DirectiveStore;
use crate::metrics::Metrics;
use crate::scheduler_handle::{Message, MessageSender};

/// How long one wait lasts before the thread looks whether anybody still listens, and which priority it has.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);
/// After an error of the kernel or the ledger; twice as long after each that follows.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// At most.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Where a turn that has come is told.
#[derive(Debug)]
pub struct Channels {
    /// To the scheduler.
    pub inbox: MessageSender,
    /// How long the hand-over took.
    pub metrics: Arc<Metrics>,
    /// Those that were taken from a holder past its deadline, and tenants that were skipped.
    pub takeovers: Arc<Takeovers>,
}

/// How a tenant stands in the line.
#[derive(Debug)]
pub struct SliceConfig {
    /// Who is next.
    pub order: TurnOrder,
    /// Of the configuration: where no directive says another.
    pub priority: i32,
    /// They may change it at any time.
    pub directives: Arc<DirectiveStore>,
}

impl SliceConfig {
    fn priority(&self) -> i32 {
        self.directives.active().map_or(self.priority, |in_force| in_force.directive.tenant.priority)
    }
}

/// Starts the thread. Each message is one wish for the turn; dropping the sender ends the thread after its wait.
///
/// # Errors
/// The machine has no room for a thread.
pub fn spawn(
    seat: Arc<ParticipantHandle>,
    standing: SliceConfig,
    ends: Channels,
) -> std::io::Result<Sender<()>> {
    let (sender, wishes) = channel();
    let work = move || run(&seat, &standing, &wishes, &ends);
    std::thread::Builder::new().name("turns".into()).spawn(work)?;
    Ok(sender)
}

fn run(seat: &ParticipantHandle, standing: &SliceConfig, wishes: &Receiver<()>, ends: &Channels) {
    let mut wished = false;
    while wished || wishes.recv().is_ok() {
        let Some(epoch) = acquire_slice(seat, standing, wishes, ends) else { return };
        let event = PeerPortEvent::SliceGranted { epoch: epoch.0 };
        ends.inbox.send(Message::Peer(Box::new(event)));
        if let Some(time) = seat.slice_queue().handover() {
            ends.metrics.record_handover(time);
        }
        if let Some(taken) = seat.slice_queue().takeover() {
            ends.takeovers.record_takeover(taken);
            ends.metrics.on_turn_taken_over();
        }
        wished = notify_when_contended(&seat.slice_queue(), epoch, wishes, ends);
    }
}

/// Waits until the turn comes; none when nobody wants it any more. Each wait begins with a ticket: who has one keeps it,
/// under the priority of now, and who has lost it draws another.
fn acquire_slice(
    seat: &ParticipantHandle,
    standing: &SliceConfig,
    wishes: &Receiver<()>,
    ends: &Channels,
) -> Option<Epoch> {
    let (line, mut pause) = (seat.slice_queue(), RETRY_MIN);
    loop {
        let ticket = line.request(standing.priority());
        let taken = ticket.and_then(|()| line.acquire_within(standing.order, WAIT_TIMEOUT));
        for of in line.take_skipped() {
            ends.takeovers.record_skip(of);
            ends.metrics.on_turn_skipped();
        }
        match taken {
            Ok(Some(epoch)) => return Some(epoch),
            Ok(None) => pause = RETRY_MIN,
            Err(error) => {
                tracing::error!(%error, "the turn cannot be waited for");
                std::thread::sleep(pause);
                pause = (2 * pause).min(RETRY_MAX);
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
fn notify_when_contended(
    line: &SliceQueue<'_>,
    epoch: Epoch,
    wishes: &Receiver<()>,
    ends: &Channels,
) -> bool {
    while line.held() == Some(epoch) {
        match line.wait_for_waiter(WAIT_TIMEOUT) {
            Ok(true) => {
                let event = PeerPortEvent::SliceRequested { epoch: epoch.0 };
                ends.inbox.send(Message::Peer(Box::new(event)));
                return false;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "who waits for the turn cannot be seen");
                std::thread::sleep(RETRY_MIN);
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
