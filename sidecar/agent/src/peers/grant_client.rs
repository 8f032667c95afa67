//! Sends the scheduler's commands as calls to peers' admin ports, and returns the answers as events.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use sluice_memory::gpu_ledger::{Participant, ParticipantHandle, SliceOrder};
use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::{NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;
use sluice_policy::peers::victim::{PeerState, PeerView as Seen};
use sluice_ports::peers::PeerPortEvent;
use sluice_wire::State;
use sluice_wire::directive::PeerInfo;
use sluice_wire::grants::{GrantAnswer, GrantRequest, RevokeReason};
use tokio::sync::mpsc::UnboundedReceiver;

use super::client::PeerClient;
use super::full_name::full_name;
use super::pending_replies::PendingReplies;
use super::state_cache::PeerStateCache;
use super::{loan_denied, ms, ns};
use crate::clock::Clock;
use crate::directive::DirectiveStore;
use crate::scheduler_handle::{MessageSender, SchedulerMessage};

/// Timeout of a state query in a survey. A later answer is not worth the delay.
const SURVEY_TIMEOUT: Duration = Duration::from_millis(15);
/// Timeout of any other call. The scheduler gives up an ask long before.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Executes the scheduler's commands to peers.
#[derive(Clone, Debug)]
pub struct GrantClient {
    /// This tenant's record in the ledger.
    pub ledger: Arc<ParticipantHandle>,
    /// This tenant's identity, and the replies that its peers wait for.
    pub replies: Arc<PendingReplies>,
    /// Directives, which name the peers.
    pub directives: Arc<DirectiveStore>,
    /// Client for calls to peers.
    pub client: Arc<PeerClient>,
    /// Receives the events.
    pub inbox: MessageSender,
    /// Clock of the scheduler.
    pub clock: Clock,
    /// Loan terms where a directive sets none.
    pub terms: NegotiationPolicy,
    /// Order of time slices, if the GPU is time-sliced.
    pub slice_order: Option<SliceOrder>,
    /// Last known states of peers.
    pub state_cache: Arc<PeerStateCache>,
}

impl GrantClient {
    /// Executes commands until all senders are dropped.
    pub async fn run(self, mut commands: UnboundedReceiver<PeerCommand>) {
        while let Some(command) = commands.recv().await {
            let client = self.clone();
            tokio::spawn(async move { client.send(command).await });
        }
    }

    /// Sends an event to the scheduler.
    pub fn notify(&self, news: PeerEvent) {
        self.inbox.send(SchedulerMessage::Peer(Box::new(PeerPortEvent::Peer(news))));
    }

    async fn send(&self, command: PeerCommand) {
        match command {
            PeerCommand::Survey => self.notify(PeerEvent::Survey(self.survey().await)),
            PeerCommand::Ask { peer, nonce, chunks, ttl_ns } => self.ask(peer, nonce, chunks, ttl_ns).await,
            PeerCommand::Withdraw { peer, nonce } => self.cancel_ask(peer, nonce).await,
            PeerCommand::Revoke { peer, nonce, chunks } => self.revoke(peer, nonce, chunks).await,
            PeerCommand::Renew { peer, nonce, ttl_ns } => self.renew(peer, nonce, ttl_ns).await,
            PeerCommand::TakeBack { peer, nonce } => self.reclaim_earmark(peer, nonce).await,
            PeerCommand::Claim { chunks } => self.claim_share(chunks).await,
            PeerCommand::Answer { .. }
            | PeerCommand::Refuse { .. }
            | PeerCommand::Return { .. }
            | PeerCommand::Prolong { .. }
            | PeerCommand::Owes { .. } => {
                unreachable!("answers are sent by PendingReplies")
            }
        }
    }

    async fn survey(&self) -> Vec<Seen> {
        let line = self
            .slice_order
            .map(|order| self.ledger.slice_queue().waiters_in_order(order).unwrap_or_default());
        let looks = self.live_peers().into_iter().map(|(participant, info)| {
            let line = line.as_deref();
            async move { self.query_state(&participant, &info, line).await }
        });
        join_all(looks).await
    }

    /// Queries the state of a live peer. If the peer answers late, its cached state counts. If that is too old, the
    /// peer has no state, and the directive's order applies.
    async fn query_state(&self, participant: &Participant, info: &PeerInfo, line: Option<&[Peer]>) -> Seen {
        let peer = participant.peer;
        let state = self.client.state(info, SURVEY_TIMEOUT).await;
        let live = match state.ok().and_then(|state| self.peer_state(&state)) {
            Some(live) => Some(self.state_cache.record(peer, live)),
            None => self.state_cache.get(peer),
        };
        let live = live.map(|live| with_queue_place(live, participant, line));
        Seen { peer, priority: info.priority, reachable: true, live }
    }

    fn peer_state(&self, state: &State) -> Option<PeerState> {
        let (place, activity) = (state.peers.as_ref()?, &state.activity);
        Some(PeerState {
            active: state.queue.running + state.queue.waiting > 0,
            last_used: self.scheduler_time(activity.last_used_unix_ms.unwrap_or(0)),
            resident_since: self.scheduler_time(activity.resident_since_unix_ms.unwrap_or(0)),
            lendable_chunks: self.replies.chunks(place.lendable_bytes),
            queue_position: None,
            next_use_ns: activity.next_use_in_ms.map(ns),
        })
    }

    /// Converts a wall-clock time to the scheduler's clock. Times before the clock's start become its start.
    fn scheduler_time(&self, unix_ms: u64) -> Nanos {
        let unix_now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ago = unix_now.saturating_sub(Duration::from_millis(unix_ms));
        let ago_ns = u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX);
        Nanos(self.clock.now().0.saturating_sub(ago_ns))
    }

    /// Returns the directive's peers that are live in the ledger, and tracks them.
    fn live_peers(&self) -> Vec<(Participant, PeerInfo)> {
        let Some(in_force) = self.directives.active() else { return Vec::new() };
        let living = self.ledger.survey().unwrap_or_default();
        let found = in_force.directive.peers.iter().filter_map(|info| {
            let name = full_name(&info.namespace, &info.name);
            let participant = living.iter().find(|p| p.is_live && p.name == name)?;
            Some((participant.clone(), info.clone()))
        });
        found.inspect(|(participant, _)| self.replies.track(participant.peer)).collect()
    }

    fn find_peer(&self, peer: Peer) -> Option<PeerInfo> {
        self.live_peers().into_iter().find(|(found, _)| found.peer == peer).map(|(_, info)| info)
    }

    async fn call(&self, peer: Peer, request: &GrantRequest) -> Option<GrantAnswer> {
        let info = self.find_peer(peer)?;
        let answer = self.client.grant(&info, request, self.replies.bytes(1), CALL_TIMEOUT).await;
        answer.inspect_err(|error| tracing::debug!(%error, peer = info.name, "a peer did not answer")).ok()
    }

    async fn ask(&self, peer: Peer, nonce: Nonce, chunks: u32, ttl_ns: u64) {
        let (borrower, bytes) = (self.replies.own_participant(), self.replies.bytes(chunks));
        let request = GrantRequest::Ask { borrower, nonce: nonce.0, bytes, ttl_ms: ms(ttl_ns) };
        match self.call(peer, &request).await {
            Some(GrantAnswer::Granted { bytes, ttl_ms, .. }) => {
                let chunks = self.replies.chunks(bytes);
                self.notify(PeerEvent::Granted { peer, nonce, chunks, ttl_ns: ns(ttl_ms) });
            }
            Some(answer) => {
                tracing::debug!(reason = ?answer, index = peer.index, chunks, "a peer refused a loan");
                self.notify(PeerEvent::Refused { peer, nonce, why: loan_denied::from_answer(&answer) });
            }
            None => {
                // The loan may have been granted.
                self.notify(PeerEvent::Refused { peer, nonce, why: None });
                self.cancel_ask(peer, nonce).await;
            }
        }
    }

    async fn cancel_ask(&self, peer: Peer, nonce: Nonce) {
        let request = GrantRequest::Cancel { borrower: self.replies.own_participant(), nonce: nonce.0 };
        // If the lender does not receive this, it takes the earmark back when its time to live ends.
        let _ = self.call(peer, &request).await;
    }

    async fn revoke(&self, peer: Peer, nonce: Nonce, chunks: u32) {
        let (lender, bytes) = (self.replies.own_participant(), self.replies.bytes(chunks));
        let request = GrantRequest::Revoke { lender, nonce: nonce.0, bytes, why: RevokeReason::LenderActive };
        match self.call(peer, &request).await {
            Some(GrantAnswer::Returned { bytes, .. }) => {
                let chunks = self.replies.chunks(bytes);
                self.notify(PeerEvent::Returned { peer, nonce, chunks });
            }
            // A loan that the borrower does not know was never accepted.
            Some(GrantAnswer::Refused { .. }) => self.reclaim_earmark(peer, nonce).await,
            // If the answer was lost, the ledger watch finds the earmark.
            Some(_) | None => {}
        }
    }

    /// Notifies every peer that this restarted tenant lacks `chunks` of its share. The nonce is the number of this
    /// instance, because the nonces of the earlier instance's loans are not known.
    async fn claim_share(&self, chunks: u32) {
        let (lender, bytes) = (self.replies.own_participant(), self.replies.bytes(chunks));
        let (nonce, why) = (lender.instance, RevokeReason::FloorNeeded);
        let request = GrantRequest::Revoke { lender, nonce, bytes, why };
        // The ledger shows the result.
        join_all(self.live_peers().into_iter().map(|(to, _)| self.call(to.peer, &request))).await;
    }

    async fn renew(&self, peer: Peer, nonce: Nonce, ttl_ns: u64) {
        let (borrower, ttl_ms) = (self.replies.own_participant(), ms(ttl_ns));
        let request = GrantRequest::Renew { borrower, nonces: vec![nonce.0], ttl_ms };
        if let Some(GrantAnswer::Renewed { nonces, ttl_ms }) = self.call(peer, &request).await
            && nonces.contains(&nonce.0)
        {
            self.notify(PeerEvent::Renewed { peer, nonce, ttl_ns: ns(ttl_ms) });
        }
    }

    /// Cancels an earmark that its borrower has not accepted, so that its bytes become free.
    async fn reclaim_earmark(&self, peer: Peer, nonce: Nonce) {
        let participant = self.ledger.clone();
        // The guard may have to be waited for, which would block a thread of this runtime. After a failure, the
        // scheduler sends the command again.
        match tokio::task::spawn_blocking(move || participant.cancel_earmark(nonce.0)).await {
            Ok(Ok(_)) => self.notify(PeerEvent::TookBack { nonce }),
            Ok(Err(error)) => tracing::debug!(
                %error, nonce = nonce.0, index = peer.index,
                "could not take back earmarked memory"
            ),
            // The runtime is shutting down.
            Err(_) => {}
        }
    }
}

/// Adds the holder of the time slice and the queue position from the ledger, if the GPU is time-sliced.
fn with_queue_place(live: PeerState, participant: &Participant, line: Option<&[Peer]>) -> PeerState {
    let Some(line) = line else { return live };
    let place = line.iter().position(|peer| *peer == participant.peer);
    let queue_place = place.and_then(|place| u32::try_from(place).ok());
    PeerState { active: participant.has_slice, queue_position: queue_place, ..live }
}
