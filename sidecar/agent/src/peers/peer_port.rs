//! The neighbourhood as the scheduler's port: letters go to the office, turns to their thread, answers to whoever asked.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::PeerCommand;
use sluice_ports::peers::{PeerPort, SliceCommand};
use tokio::sync::mpsc::UnboundedSender;

use super::pending_replies::PendingReplies;

/// The scheduler's end of everything that concerns neighbours. What comes in goes through the room's inbox.
#[derive(Debug)]
pub struct SidecarPeerPort {
    /// The record in the ledger.
    pub ledger: Arc<ParticipantHandle>,
    /// Those who wait for an answer.
    pub replies: Arc<PendingReplies>,
    /// Where letters are sent.
    pub commands: UnboundedSender<PeerCommand>,
    /// Wishes for the turn; none where no turns are taken.
    pub slice_requests: Option<Sender<()>>,
}

impl PeerPort for SidecarPeerPort {
    fn send(&mut self, _now: Nanos, letter: PeerCommand) {
        match letter {
            PeerCommand::Answer { peer, nonce, chunks, ttl_ns } => {
                if !self.replies.reply_granted(peer, nonce, chunks, ttl_ns) {
                    self.forward(PeerCommand::TakeBack { peer, nonce });
                }
            }
            PeerCommand::Refuse { peer, nonce, why } => self.replies.reply_refused(peer, nonce, why),
            PeerCommand::Return { peer, nonce, chunks } => self.replies.reply_returned(peer, nonce, chunks),
            PeerCommand::Owes { peer, nonce, chunks, within_ns } => {
                self.replies.reply_debt(peer, nonce, chunks, within_ns);
            }
            PeerCommand::Prolong { peer, nonce, ttl_ns } => self.replies.reply_renewal(peer, nonce, ttl_ns),
            letter => self.forward(letter),
        }
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        match (call, &self.slice_requests) {
            (SliceCommand::Request, Some(turns)) => {
                // A thread that has gone has said why; the tenant then waits, as for a turn that does not come.
                let _ = turns.send(());
            }
            (SliceCommand::Release, _) => match self.ledger.slice_queue().release() {
                Ok(()) => {}
                Err(LedgerError::SliceTakenOver) => {
                    tracing::error!("a neighbour took the turn, since this tenant was past its deadline");
                }
                Err(error) => tracing::error!(%error, "the turn could not be given up"),
            },
            (SliceCommand::Request, None) => {}
        }
    }
}

impl SidecarPeerPort {
    fn forward(&self, letter: PeerCommand) {
        // The office ends after the scheduler.
        let _ = self.commands.send(letter);
    }
}
