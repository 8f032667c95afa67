//! Messages between tenants, and what tenants observe of each other.

use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::PeerView;
use sluice_ports::peers::PeerPortEvent;
use sluice_scheduler::Event;

use super::network::PeerMessage;
use super::slice_queue::SliceEvent;
use super::{Gpu, GpuSharing, SURVEY_INTERVAL_NS};

impl Gpu {
    fn index_of(&self, peer: Peer) -> Option<usize> {
        self.tenants
            .iter()
            .position(|tenant| tenant.instance.as_ref().is_some_and(|instance| instance.me == peer))
    }

    pub(super) fn send(&mut self, from: Peer, message: PeerCommand) {
        if let PeerCommand::Claim { chunks } = message {
            let others = self.live_peers().into_iter().filter(|peer| *peer != from);
            return others.for_each(|to| self.network.send_claim(self.now, from, to, chunks));
        }
        self.network.send(self.now, from, message);
    }

    /// Grants the next time slice, and notifies its holder if another tenant waits.
    pub(super) fn grant_next_slice(&mut self) {
        for slice_event in self.slice_queue.grant_next() {
            let (to, event) = match slice_event {
                SliceEvent::Granted(to, epoch) => (to, PeerPortEvent::SliceGranted { epoch }),
                SliceEvent::Contended(to, epoch) => (to, PeerPortEvent::SliceRequested { epoch }),
            };
            self.network.send_local(self.now, to, PeerMessage::Event(event));
        }
    }

    pub(super) fn deliver(&mut self, to: Peer, post: PeerMessage) {
        let Some(at) = self.index_of(to) else { return };
        let event = match post {
            PeerMessage::Request { from, event } if self.index_of(from).is_some() => {
                self.add_known_peers(at, [from]);
                PeerPortEvent::Peer(event)
            }
            PeerMessage::Request { .. } => return,
            PeerMessage::Event(event) => event,
            PeerMessage::Survey => {
                let seen = self.survey(at);
                self.add_known_peers(at, seen.iter().map(|seen| seen.peer));
                PeerPortEvent::Peer(PeerEvent::Survey(seen))
            }
            PeerMessage::TakeBack(nonce) => {
                if !self.ledger.borrow_mut().take_back(to.instance, nonce) {
                    return;
                }
                PeerPortEvent::Peer(PeerEvent::TookBack { nonce })
            }
        };
        self.push(at, Event::Peer(event));
    }

    /// Records peers, so that an exit before the next poll of the ledger is noticed.
    fn add_known_peers(&mut self, at: usize, peers: impl IntoIterator<Item = Peer>) {
        let Some(instance) = &mut self.tenants[at].instance else { return };
        instance.known_peers.extend(peers);
    }

    fn survey(&self, asker: usize) -> Vec<PeerView> {
        let is_temporal = matches!(self.setup.sharing, GpuSharing::Temporal { .. });
        let others = self.tenants.iter().enumerate().filter(|(at, _)| *at != asker);
        let seen = others.filter_map(|(_, tenant)| {
            let instance = tenant.instance.as_ref()?;
            let active =
                if is_temporal { self.slice_queue.is_holder(instance.me) } else { tenant.open() > 0 };
            let live = instance.peer_state(self.now, active, self.slice_queue.position(instance.me));
            let priority = tenant.setup.terms.priority;
            Some(PeerView { peer: instance.me, priority, reachable: true, live: Some(live) })
        });
        seen.collect()
    }

    /// Polls the ledger when it is due: reports peers that exited, and chunks returned without a message.
    pub(super) fn poll_ledger(&mut self, at: usize) {
        let now = self.now;
        let Some(instance) = self.tenants[at]
            .instance
            .as_mut()
            .filter(|instance| instance.next_survey_at.max(instance.stopped_until) <= now)
        else {
            return;
        };
        instance.next_survey_at = now.plus(SURVEY_INTERVAL_NS);
        let me = instance.me;
        let living = self.live_peers();
        let Some(instance) = &mut self.tenants[at].instance else { return };
        let known = std::mem::replace(&mut instance.known_peers, living.clone());
        let died = known.difference(&living).map(|dead| PeerEvent::Died(*dead));
        let name = |instance: u64| living.iter().find(|peer| peer.instance == instance).copied();
        let waiting: Vec<_> =
            self.ledger.borrow().pending_transfers().filter(|promise| promise.to == me.instance).collect();
        let returned = waiting.into_iter().filter_map(|promise| {
            let peer = name(promise.from)?;
            Some(PeerEvent::Returned { peer, nonce: promise.nonce, chunks: promise.chunks })
        });
        let events: Vec<_> = died.chain(returned).collect();
        events.into_iter().for_each(|event| self.push(at, Event::Peer(PeerPortEvent::Peer(event))));
        self.ledger.borrow_mut().clear(me.instance);
    }
}
