//! What tenants say to each other, and what they see of each other.

use sluice_policy::loan_negotiator::{PeerCommand, PeerEvent};
use sluice_policy::peers::Peer;
use sluice_policy::peers::victim::PeerView;
use sluice_ports::neighbourhood::NeighbourEvent;
use sluice_scheduler::Event;

use super::line::Told;
use super::mail::Post;
use super::{Gpu, LOOK_NS, Sharing};

impl Gpu {
    fn at(&self, peer: Peer) -> Option<usize> {
        self.seats.iter().position(|seat| seat.life.as_ref().is_some_and(|life| life.me == peer))
    }

    pub(super) fn send(&mut self, from: Peer, letter: PeerCommand) {
        if let PeerCommand::Claim { chunks } = letter {
            let others = self.living().into_iter().filter(|peer| *peer != from);
            return others.for_each(|to| self.mail.claim(self.now, from, to, chunks));
        }
        self.mail.send(self.now, from, letter);
    }

    /// The turn goes to whoever is next, and its holder hears that somebody waits.
    pub(super) fn settle_line(&mut self) {
        for told in self.line.settle() {
            let (to, event) = match told {
                Told::Turn(to, epoch) => (to, NeighbourEvent::Turn { epoch }),
                Told::Sought(to, epoch) => (to, NeighbourEvent::Sought { epoch }),
            };
            self.mail.near(self.now, to, Post::Event(event));
        }
    }

    pub(super) fn deliver(&mut self, to: Peer, post: Post) {
        let Some(at) = self.at(to) else { return };
        let event = match post {
            Post::Request { from, news } if self.at(from).is_some() => {
                self.meet(at, [from]);
                NeighbourEvent::News(news)
            }
            Post::Request { .. } => return,
            Post::Event(event) => event,
            Post::Survey => {
                let seen = self.survey(at);
                self.meet(at, seen.iter().map(|seen| seen.peer));
                NeighbourEvent::News(PeerEvent::Survey(seen))
            }
            Post::TakeBack(nonce) => {
                if !self.ledger.borrow_mut().take_back(to.instance, nonce) {
                    return;
                }
                NeighbourEvent::News(PeerEvent::TookBack { nonce })
            }
        };
        self.push(at, Event::Neighbour(event));
    }

    /// Their deaths are noticed, also if they come before the next look at the ledger.
    fn meet(&mut self, at: usize, peers: impl IntoIterator<Item = Peer>) {
        let Some(life) = &mut self.seats[at].life else { return };
        life.known.extend(peers);
    }

    fn survey(&self, asker: usize) -> Vec<PeerView> {
        let turns = matches!(self.setup.sharing, Sharing::Temporal { .. });
        let others = self.seats.iter().enumerate().filter(|(at, _)| *at != asker);
        let seen = others.filter_map(|(_, seat)| {
            let life = seat.life.as_ref()?;
            let active = if turns { self.line.has(life.me) } else { seat.open() > 0 };
            let live = life.live(self.now, active, self.line.place(life.me));
            let priority = seat.setup.terms.priority;
            Some(PeerView { peer: life.me, priority, reachable: true, live: Some(live) })
        });
        seen.collect()
    }

    /// A look at the ledger now and then: who has died, what came back without a word.
    pub(super) fn look_around(&mut self, at: usize) {
        let now = self.now;
        let Some(life) =
            self.seats[at].life.as_mut().filter(|life| life.looks_at.max(life.stopped_until) <= now)
        else {
            return;
        };
        life.looks_at = now.plus(LOOK_NS);
        let me = life.me;
        let living = self.living();
        let Some(life) = &mut self.seats[at].life else { return };
        let known = std::mem::replace(&mut life.known, living.clone());
        let died = known.difference(&living).map(|dead| PeerEvent::Died(*dead));
        let name = |life: u64| living.iter().find(|peer| peer.instance == life).copied();
        let waiting: Vec<_> =
            self.ledger.borrow().waiting().filter(|promise| promise.to == me.instance).collect();
        let returned = waiting.into_iter().filter_map(|promise| {
            let peer = name(promise.from)?;
            Some(PeerEvent::Returned { peer, nonce: promise.nonce, chunks: promise.chunks })
        });
        let news: Vec<_> = died.chain(returned).collect();
        news.into_iter().for_each(|news| self.push(at, Event::Neighbour(NeighbourEvent::News(news))));
        self.ledger.borrow_mut().clear(me.instance);
    }
}
