//! The scheduler's port to peers: forwards commands to the grant client, slice requests to their thread, and answers to
//! the callers.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle};
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::PeerCommand;
use sluice_ports::peers::{PeerPort, SliceCommand};
use tokio::sync::mpsc::UnboundedSender;

use super::pending_replies::PendingReplies;

/// The scheduler's sending side to peers. Incoming events arrive through the engine loop's inbox.
#[derive(Debug)]
pub struct SidecarPeerPort {
    /// This tenant's record in the ledger.
    pub ledger: Arc<ParticipantHandle>,
    /// Calls that wait for an answer.
    pub replies: Arc<PendingReplies>,
    /// Sender of commands to the grant client.
    pub commands: UnboundedSender<PeerCommand>,
    /// Sender of requests for the time slice. `None` if the GPU is not time-sliced.
    pub slice_requests: Option<Sender<()>>,
}

impl PeerPort for SidecarPeerPort {
    fn send(&mut self, _now: Nanos, command: PeerCommand) {
        match command {
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
            command => self.forward(command),
        }
    }

    fn send_slice_command(&mut self, _now: Nanos, call: SliceCommand) {
        match (call, &self.slice_requests) {
            (SliceCommand::Request, Some(slice_requests)) => {
                // A thread that has ended has logged why. The tenant then waits as if no time slice were granted.
                let _ = slice_requests.send(());
            }
            (SliceCommand::Release, _) => match self.ledger.slice_queue().release() {
                Ok(()) => {}
                Err(LedgerError::SliceTakenOver) => {
                    tracing::error!(
                        "a peer took over the time slice, because this tenant was past its deadline"
                    );
                }
                Err(error) => tracing::error!(%error, "could not release the time slice"),
            },
            (SliceCommand::Request, None) => {}
        }
    }
}

impl SidecarPeerPort {
    fn forward(&self, command: PeerCommand) {
        // The grant client outlives the scheduler.
        let _ = self.commands.send(command);
    }
}
