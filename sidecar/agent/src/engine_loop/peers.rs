//! Connects the engine loop to the tenant's peers: opens its port at load and fills the peer part of the state.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sluice_policy::ids::Nanos;
use sluice_policy::loan_negotiator::NegotiationPolicy;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::{LoanInState, Nonce};
use sluice_policy::peers::wait_time::WaitKind;
use sluice_ports::peers::{NoPeers, PeerPort};
use sluice_scheduler::{Config, Membership, Scheduler};
use sluice_wire::state::{
    Activity, Direction, GrantState, SharingState as PlaceState, State, TimeSliceState,
};
use tokio::runtime::Handle;

use super::load::error::LoadError;
use super::share_control::ShareController;
use super::state_recorder::StateRecorder;
use crate::clock::{Clock, whole_ms};
use crate::directive::DirectiveStore;
use crate::metrics::Metrics;
use crate::peers::client::PeerClient;
use crate::peers::grant_client::GrantClient;
use crate::peers::membership::LedgerMembership;
use crate::peers::peer_port::SidecarPeerPort;
use crate::peers::pending_replies::PendingReplies;
use crate::peers::time_slice_thread::SliceConfig;
use crate::peers::{ledger_watch, ms, time_slice_thread};
use crate::scheduler_handle::MessageSender;

/// Access to peers for a tenant on a shared GPU.
#[derive(Clone, Debug)]
pub struct PeerContext {
    /// Directives, which name the peers and the rules between them.
    pub directives: Arc<DirectiveStore>,
    /// Client for calls to peers.
    pub client: Arc<PeerClient>,
    /// Runtime of the calls.
    pub runtime: Handle,
    /// Receives the times of time slices.
    pub metrics: Arc<Metrics>,
}

impl PeerContext {
    /// Opens the scheduler's port to peers. Starts the grant client, the ledger watch and the time-slice thread if
    /// needed.
    pub(super) fn open(
        &self,
        place: &LedgerMembership,
        replies: &Arc<PendingReplies>,
        (inbox, clock): (&MessageSender, Clock),
        terms: NegotiationPolicy,
    ) -> Result<Box<dyn PeerPort>, LoadError> {
        let (participant, replies) = (place.ledger.clone(), replies.clone());
        let (commands, written) = tokio::sync::mpsc::unbounded_channel();
        let client = GrantClient {
            ledger: participant.clone(),
            replies: replies.clone(),
            directives: self.directives.clone(),
            client: self.client.clone(),
            inbox: inbox.clone(),
            clock,
            terms,
            slice_order: place.slice_order(),
            state_cache: Arc::default(),
        };
        if place.is_trading() {
            self.runtime.spawn(ledger_watch::watch_ledger(client.clone()));
            self.runtime.spawn(client.run(written));
        }
        let spawn = |order| {
            let (metrics, takeovers) = (self.metrics.clone(), place.takeovers.clone());
            let ends = time_slice_thread::Channels { inbox: inbox.clone(), metrics, takeovers };
            let (priority, directives) = (place.config.priority, self.directives.clone());
            time_slice_thread::spawn(participant.clone(), SliceConfig { order, priority, directives }, ends)
        };
        let slice_requests = place.slice_order().map(spawn).transpose();
        let slice_requests =
            slice_requests.map_err(|source| LoadError::Io { path: "a thread".into(), source })?;
        Ok(Box::new(SidecarPeerPort { ledger: participant, replies, commands, slice_requests }))
    }
}

/// Returns the port to peers, or a port without peers.
pub(super) fn peer_port(
    context: Option<&PeerContext>,
    place: Option<(&LedgerMembership, &Arc<PendingReplies>)>,
    to_engine_loop: (&MessageSender, Clock),
    terms: NegotiationPolicy,
) -> Result<Box<dyn PeerPort>, LoadError> {
    match (place, context) {
        (Some((place, replies)), Some(context)) => context.open(place, replies, to_engine_loop, terms),
        _ => Ok(Box::new(NoPeers)),
    }
}

/// Returns the description that engines keep open until they exit: the one with the tenant's locks, if there are any.
pub(super) fn liveness_fd(place: Option<&LedgerMembership>) -> Result<OwnedFd, LoadError> {
    let io = |source| LoadError::Io { path: "/dev/null".into(), source };
    match place {
        Some(place) => place.ledger.liveness().try_clone_to_owned().map_err(io),
        None => std::fs::File::open("/dev/null").map(OwnedFd::from).map_err(io),
    }
}

/// Returns the loan terms where a directive sets none. `loan` overrides the time to live in tests.
pub(super) fn loan_terms(loan: Option<Duration>) -> NegotiationPolicy {
    let usual = NegotiationPolicy::default();
    let ttl_ns = loan.map_or(usual.ttl_ns, |loan| u64::try_from(loan.as_nanos()).unwrap_or(u64::MAX));
    NegotiationPolicy { ttl_ns, ..usual }
}

/// Returns the scheduler's limits with the tenant's membership added.
pub(super) fn with_membership(
    limits: Config,
    place: Option<&LedgerMembership>,
    terms: &NegotiationPolicy,
) -> Config {
    let Some(place) = place else { return limits };
    let terms = NegotiationPolicy { priority: place.config.priority, ..terms.clone() };
    let peers = place.is_trading().then(|| Membership { own_peer: place.peer(), terms });
    Config { sharing: place.sharing(), membership: peers, ..limits }
}

/// Sources of the peer part of a state.
pub(super) struct PeerStateView<'a> {
    pub core: &'a Scheduler,
    pub recorder: &'a StateRecorder,
    pub metrics: &'a Metrics,
    /// Controller of the tenant's share.
    pub share_control: &'a ShareController,
    /// Time on the scheduler's clock.
    pub now: Nanos,
}

impl PeerStateView<'_> {
    /// Adds the peer part to `state`.
    pub fn fill(&self, state: &mut State, place: &LedgerMembership) {
        state.peers = Some(self.peer_state(place));
        state.activity = Activity {
            inactive_since_unix_ms: self.recorder.inactive_since_unix_ms(),
            last_used_unix_ms: self.recorder.last_used_unix_ms(),
            next_use_in_ms: self.core.next_use_ns(self.now).map(|ns| ms(ns).max(u64::from(ns > 0))),
            resident_since_unix_ms: self.recorder.resident_since_unix_ms(),
            lent_layers: self.core.manager().status().absent_layers(),
        };
    }

    fn peer_state(&self, place: &LedgerMembership) -> PlaceState {
        let (core, manager, metrics) = (self.core, self.core.manager(), self.metrics);
        PlaceState {
            instance: place.ledger.instance(),
            share_bytes: self.bytes(manager.loans().share_chunks()),
            wanted_share_bytes: self.bytes(self.share_control.target_chunks()),
            floor_bytes: self.bytes(manager.loans().floor_chunks()),
            budget_bytes: self.bytes(manager.loans().budget_chunks()),
            // Without loans, nothing can be lent.
            lendable_bytes: core.negotiator().map_or(0, |_| self.bytes(manager.loans().lendable_chunks())),
            held_bytes: place.ledger.held_bytes(),
            in_transit_bytes: self.bytes(manager.loans().moving_chunks()),
            awaited_bytes: self.bytes(manager.loans().expected_chunks()),
            waits_for: place.ledger.damage().map(|error| error.to_string()).or_else(|| self.waiting_for()),
            lent_bytes: self.bytes(manager.loans().lent_chunks()),
            borrowed_bytes: self.bytes(manager.loans().borrowed_chunks()),
            grants: self.grant_states(place),
            time_slice: place.slice_order().map(|_| self.slice_state(place)),
            grant: metrics.wait_percentiles(WaitKind::Grant),
            revoke: metrics.wait_percentiles(WaitKind::Revoke),
            wake: metrics.wait_percentiles(WaitKind::Wake),
        }
    }

    fn bytes(&self, chunks: u32) -> u64 {
        u64::from(chunks) * self.core.manager().geometry().chunk_bytes
    }

    fn waiting_for(&self) -> Option<String> {
        let manager = self.core.manager();
        if let Some(chunks) = manager.loans().missing_floor_chunks() {
            let (missing, floor) = (self.bytes(chunks), self.bytes(manager.loans().floor_chunks()));
            return Some(format!("{missing} of the {floor} bytes of its floor, which peers hold"));
        }
        let missing = self.bytes(manager.loans().expected_chunks());
        if missing > 0 {
            return Some(format!("{missing} bytes of its share, which peers hold"));
        }
        let missing = self.bytes(self.share_control.missing_chunks());
        // A tenant that still loads has its floor and does not wait for this.
        (missing > 0 && manager.status().is_loaded())
            .then(|| format!("{missing} bytes of its share, which are in the shares of its peers"))
    }

    fn grant_states(&self, place: &LedgerMembership) -> Vec<GrantState> {
        let Some(book) = self.core.negotiator().map(|negotiator| negotiator.book()) else {
            return Vec::new();
        };
        let survey = place.ledger.survey().unwrap_or_default();
        let grant = |who: Peer, direction, nonce: Nonce, chunks: u32, expires: Nanos| {
            let named = survey.iter().find(|p| p.peer == who).map(|p| p.name.as_str());
            let (namespace, name) = named.and_then(|name| name.split_once('/')).unwrap_or_default();
            GrantState {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                direction,
                nonce: nonce.0,
                bytes: self.bytes(chunks),
                expires_in_ms: ms(expires.since(self.now)),
            }
        };
        let given = book.loans_out().iter();
        let given = given.map(|g| grant(g.peer, Direction::Lent, g.nonce, g.chunks, g.expires));
        let taken = book.loans_in().iter().filter_map(|taken| match taken.state {
            LoanInState::Held { chunks, expires, .. } if chunks > 0 => {
                Some(grant(taken.peer, Direction::Borrowed, taken.nonce, chunks, expires))
            }
            LoanInState::Held { .. } | LoanInState::Asked { .. } => None,
        });
        given.chain(taken).collect()
    }

    fn slice_state(&self, place: &LedgerMembership) -> TimeSliceState {
        let counters = self.core.snapshot().counters;
        let line = place.ledger.slice_queue();
        // If the queue cannot be read, no holder can be named.
        let holder = line.holder().ok().flatten();
        let overdue = holder.as_ref().map_or(Duration::ZERO, |holder| holder.overdue);
        self.metrics.set_slice_holder_overdue(overdue.as_secs_f64());
        place.takeovers.fill(TimeSliceState {
            holds: self.core.holds_slice(),
            epoch: line.held().map_or(0, |epoch| epoch.0),
            waiting: line.waiters().map_or(0, |waiters| u32::try_from(waiters).unwrap_or(u32::MAX)),
            held_ns_total: counters.slice_held_ns,
            slices_total: counters.slices,
            handover: self.metrics.handover_percentiles(),
            wait: self.metrics.wait_percentiles(WaitKind::TimeSlice),
            holder: holder.map(|holder| holder.name),
            holder_overdue_ms: whole_ms(overdue),
            lost_total: line.takeovers_total(),
            ..TimeSliceState::default()
        })
    }
}
