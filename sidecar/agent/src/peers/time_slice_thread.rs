//! The thread that waits for the time slice, so that the scheduler never does.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use sluice_common::back_off::BackOff;
use sluice_memory::gpu_ledger::{Epoch, ParticipantHandle, SliceOrder, SliceQueue};
use sluice_ports::peers::PeerPortEvent;

use super::takeovers::Takeovers;
use crate::directive::DirectiveStore;
use crate::metrics::Metrics;
use crate::scheduler_handle::{MessageSender, SchedulerMessage};

/// Longest wait before the thread checks whether it must end and which priority applies.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Delay after an error of the kernel or the ledger. It doubles after each further error.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// Longest delay.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Receivers of the thread's events.
#[derive(Debug)]
pub struct Channels {
    /// Inbox of the scheduler.
    pub inbox: MessageSender,
    /// Receives the duration of hand-overs.
    pub metrics: Arc<Metrics>,
    /// Receives takeovers and skips.
    pub takeovers: Arc<Takeovers>,
}

/// Position of a tenant in the wait queue.
#[derive(Debug)]
pub struct SliceConfig {
    /// Order of the wait queue.
    pub order: SliceOrder,
    /// Configured priority, used while no directive is in force.
    pub priority: i32,
    /// Directives, which may change the priority at any time.
    pub directives: Arc<DirectiveStore>,
}

impl SliceConfig {
    fn priority(&self) -> i32 {
        self.directives.active().map_or(self.priority, |in_force| in_force.directive.tenant.priority)
    }
}

/// Starts the thread. Each message requests one time slice. Dropping the sender ends the thread after its current wait.
///
/// # Errors
/// The thread cannot be started.
pub fn spawn(
    participant: Arc<ParticipantHandle>,
    standing: SliceConfig,
    ends: Channels,
) -> std::io::Result<Sender<()>> {
    let (sender, wishes) = channel();
    let work = move || run(&participant, &standing, &wishes, &ends);
    std::thread::Builder::new().name("turns".into()).spawn(work)?;
    Ok(sender)
}

fn run(participant: &ParticipantHandle, standing: &SliceConfig, wishes: &Receiver<()>, ends: &Channels) {
    let mut wished = false;
    while wished || wishes.recv().is_ok() {
        let Some(epoch) = acquire_slice(participant, standing, wishes, ends) else { return };
        let event = PeerPortEvent::SliceGranted { epoch: epoch.0 };
        ends.inbox.send(SchedulerMessage::Peer(Box::new(event)));
        if let Some(time) = participant.slice_queue().handover() {
            ends.metrics.record_handover(time);
        }
        if let Some(taken) = participant.slice_queue().takeover() {
            ends.takeovers.record_takeover(taken);
            ends.metrics.on_slice_taken_over();
        }
        wished = notify_when_contended(&participant.slice_queue(), epoch, wishes, ends);
    }
}

/// Waits until the time slice is granted. `None` if the sender was dropped. Each wait requests a ticket: an existing
/// ticket is kept with the current priority, and a lost one is replaced.
fn acquire_slice(
    participant: &ParticipantHandle,
    standing: &SliceConfig,
    wishes: &Receiver<()>,
    ends: &Channels,
) -> Option<Epoch> {
    let (line, mut back_off) = (participant.slice_queue(), BackOff::new(RETRY_MIN, RETRY_MAX));
    loop {
        let ticket = line.request(standing.priority());
        let taken = ticket.and_then(|()| line.acquire_within(standing.order, WAIT_TIMEOUT));
        for of in line.take_skipped() {
            ends.takeovers.record_skip(of);
            ends.metrics.on_slice_skipped();
        }
        match taken {
            Ok(Some(epoch)) => return Some(epoch),
            Ok(None) => back_off.reset(),
            Err(error) => {
                tracing::error!(%error, "could not wait for the time slice");
                std::thread::sleep(back_off.next_delay());
            }
        }
        // A second request before the first is granted is the same request.
        if wishes.try_recv() == Err(TryRecvError::Disconnected) {
            return None;
        }
    }
}

/// Waits until the time slice is released, or until the scheduler is notified that another tenant waits for it. Returns
/// true if the next time slice was requested.
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
                ends.inbox.send(SchedulerMessage::Peer(Box::new(event)));
                return false;
            }
            Ok(false) => {}
            Err(error) => {
                tracing::error!(%error, "could not read the time-slice queue");
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
