//! The tenants of one GPU, its ledger, and their messages.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use sluice_common::random::Rng;
use sluice_policy::geometry::Geometry;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_policy::loan_negotiator::{LoanNegotiator, NegotiationPolicy, PeerCommand, PeerEvent};
use sluice_policy::memory_manager::{MemoryManager, SleepState, fits};
use sluice_policy::params::{Bounds, Params};
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::{LoanBook, Nonce};
use sluice_policy::peers::victim::{PeerState, PeerView};

use super::super::cases::{guaranteed_chunks, tenant};
use super::super::device::Faults;
use super::super::quota::{Ledger, Quota};
use super::super::random::{MODEL_TOKENS, load, trading};
use super::super::world::{Request, World};
use super::balance;
use super::network::{Message, Network};

pub const MS: u64 = 1_000_000;
/// Maximum time for a borrower to return a loan.
pub const BOUND_NS: u64 = 60 * MS;
/// Ticks without a new token that count as a deadlock. Of 3000 simulated GPUs none paused for more than 14 412, while
/// one that often sleeps, and loses its KV, takes more than 200 000 in total.
const STALL_TICKS: u32 = 100_000;
/// Interval at which a tenant reads the ledger.
const POLL_NS: u64 = 25 * MS;

#[derive(Clone, Debug)]
pub struct Case {
    pub tenants: usize,
    pub slabs: Vec<u64>,
    pub extra_kv: u32,
    /// Whether one tenant runs at a time; otherwise every tenant with work runs.
    pub time_slices: bool,
    pub seed: u64,
    /// Lost and duplicated messages, permille.
    pub loss: u32,
    pub duplicates: u32,
    /// Failing actions, permille.
    pub faults: u32,
    /// How often an instance accepts bytes for which no chunk can be created.
    pub unmade: u32,
    /// Engine losses per 1000 layers.
    pub kills: u32,
    /// Number of tenants that exit.
    pub exits: u32,
    /// Probability that a tenant falls asleep or wakes at a boundary, permille.
    pub sleeps: u32,
    pub host_kv_bytes: u64,
    /// Number of valid earmarks per instance that cannot be accepted.
    pub untaken: u32,
    /// Number of earmarks that are not written, which the checks must detect.
    pub loses_earmarks: u32,
    /// Number of revocations that are lost.
    pub loses_revocations: u32,
    /// The tenant to which all messages are lost.
    pub ignores_messages: Option<usize>,
    /// Duration of a loan, milliseconds.
    pub ttl_ms: u64,
    /// Whether exits go unnoticed.
    pub blind: bool,
    /// Additional floor of a later instance, chunks: its previous instance had lent them, as sleeping tenants do.
    pub later_floor: u32,
    /// Probability that shares are assigned anew during a tick with work, per ten thousand.
    pub share_changes: u32,
}

impl Case {
    fn faults(&self) -> Faults {
        Faults {
            permille: self.faults,
            left: 6,
            unmade: self.unmade,
            untaken: self.untaken,
            ..Faults::default()
        }
    }
}

/// One instance of a tenant.
#[derive(Debug)]
struct Tenant {
    me: Peer,
    world: World,
    /// The instances that ran at the last look.
    known: BTreeSet<Peer>,
    next_read_at: Nanos,
    /// Faults that start once it is loaded.
    faults: Option<Faults>,
}

/// A tenant, and its state across instances.
#[derive(Debug)]
pub struct TenantSlot {
    tenant: Option<Tenant>,
    /// Requests that its clients submit again to the next instance.
    waiting: VecDeque<Request>,
    finished: BTreeMap<RequestId, Vec<u32>>,
    pub expected: BTreeMap<RequestId, Vec<u32>>,
}

impl TenantSlot {
    pub fn finished(&self) -> &BTreeMap<RequestId, Vec<u32>> {
        self.tenant.as_ref().map_or(&self.finished, |tenant| &tenant.world.finished)
    }

    fn busy(&self) -> bool {
        self.tenant.as_ref().map_or(!self.waiting.is_empty(), |tenant| tenant.world.busy())
    }

    /// Returns the number of tokens of all requests, prompts included.
    fn tokens(&self) -> usize {
        let world = self.tenant.as_ref().map(|tenant| &tenant.world);
        let open = world.into_iter().flat_map(|world| world.running.iter().chain(&world.waiting));
        let open = open.chain(&self.waiting).map(|request| request.tokens.len());
        open.chain(self.finished().values().map(Vec::len)).sum()
    }
}

impl Tenant {
    fn negotiator(&self) -> &LoanNegotiator {
        self.world.negotiator.as_ref().expect("each tenant trades here")
    }

    fn are_loans_returned(&self, share: u32) -> bool {
        let book = self.negotiator().book();
        let asleep = self.world.manager.status().sleep_state() == SleepState::Asleep;
        let even = book.loans_out().is_empty() && book.loans_in().is_empty();
        even && self.world.manager.status().is_loaded()
            && self.world.device.memory.chunks.len() as u32 == (if asleep { 0 } else { share })
            && balance(&self.world.manager) == (0, 0)
            && self.world.manager.loans().budget_chunks() == share
            && self.world.idle()
    }
}

pub struct SimGpu {
    pub slots: Vec<TenantSlot>,
    /// Number of loans observed.
    pub loans: u32,
    /// Messages of new instances that lacked their floor.
    pub claims: u32,
    /// Longest time from the first revocation of a loan to its return.
    pub slowest_ns: u64,
    /// Peers asked while an earlier loan was overdue: its borrower had been notified more than the bound ago.
    pub asked_while_late: u32,
    /// Time at which the borrower of each loan was first notified.
    revoked: BTreeMap<Nonce, Nanos>,
    pub(super) case: Case,
    pub(super) params: Params,
    pub(super) geometry: Geometry,
    pub(super) share: u32,
    ledger: Rc<RefCell<Ledger>>,
    network: Network,
    now: Nanos,
    instances: u64,
    holder: usize,
    exits: u32,
    pub(super) rng: Rng,
    /// The assigned share and cap of each slot.
    pub(super) assigned: Vec<Bounds>,
    /// Number of shares that fell while their memory was in use.
    pub released: u32,
}

impl SimGpu {
    pub fn new(case: &Case) -> SimGpu {
        let policy = trading(case.seed);
        let (params, _) = tenant(policy, &case.slabs, 0, MODEL_TOKENS);
        let kv = guaranteed_chunks(&params) + case.extra_kv;
        let (_, mut geometry) = tenant(policy, &case.slabs, kv, MODEL_TOKENS);
        let share = geometry.capacity_chunks;
        geometry.capacity_chunks = share * case.tenants as u32;
        let params = Params { share_chunks: share, host_kv_bytes: case.host_kv_bytes, ..params };
        let ledger = Rc::new(RefCell::new(Ledger::new(geometry.capacity_chunks)));
        let bounds = Bounds { share_chunks: share, remap_cap_permille: params.remap_cap_permille };
        let mut gpu = SimGpu {
            slots: Vec::new(),
            loans: 0,
            claims: 0,
            slowest_ns: 0,
            asked_while_late: 0,
            revoked: BTreeMap::new(),
            case: case.clone(),
            params,
            geometry,
            share,
            ledger,
            network: Network::new(case.seed ^ 0x3a11, case.loss, case.duplicates),
            now: Nanos(0),
            instances: 0,
            holder: 0,
            exits: case.exits,
            rng: Rng::new(case.seed ^ 0x7044),
            assigned: vec![bounds; case.tenants],
            released: 0,
        };
        (0..case.tenants).for_each(|_| gpu.settling_tenant());
        gpu.ledger.borrow_mut().loses = case.loses_earmarks;
        gpu
    }

    /// Adds a new tenant with work.
    fn settling_tenant(&mut self) {
        let slot = TenantSlot {
            tenant: None,
            waiting: VecDeque::new(),
            finished: BTreeMap::new(),
            expected: BTreeMap::new(),
        };
        self.slots.push(slot);
        let at = self.slots.len() - 1;
        self.start_instance(at);
        // Some have little work, so that others can borrow.
        let requests = if at.is_multiple_of(2) { 16 } else { 2 };
        let world = &mut self.slots[at].tenant.as_mut().expect("it has just begun").world;
        self.slots[at].expected = load(world, &mut self.rng, requests);
    }

    fn start_instance(&mut self, at: usize) {
        self.instances += 1;
        let me = Peer { index: at as u32, instance: self.instances };
        self.ledger.borrow_mut().join(me.instance);
        let Bounds { share_chunks, remap_cap_permille } = self.assigned[at];
        let mut params = Params { share_chunks, remap_cap_permille, ..self.params.clone() };
        if self.instances > self.case.tenants as u64 {
            params.guaranteed_kv_bytes += u64::from(self.case.later_floor) * self.geometry.chunk_bytes;
        }
        if fits(&params, &self.geometry).is_err() {
            params.remap_cap_permille = self.params.remap_cap_permille;
        }
        let mut world = World::new(params, self.geometry.clone(), self.rng.next_u64(), Faults::default());
        world.device.quota = Some(Quota { ledger: self.ledger.clone(), me });
        world.kill_permille = self.case.kills;
        world.late_permille = 300;
        world.sleep_permille = self.case.sleeps;
        world.manager.loans_mut().set_can_borrow(true);
        let book =
            LoanBook::new(me, world.manager.loans().share_chunks(), world.manager.loans().floor_chunks());
        world.negotiator = Some(LoanNegotiator::new(book, self.negotiation_policy(me)));
        world.now = self.now;
        world.begin();
        let faults = Some(self.case.faults());
        let slot = &mut self.slots[at];
        world.waiting = std::mem::take(&mut slot.waiting);
        world.finished = std::mem::take(&mut slot.finished);
        slot.tenant = Some(Tenant { me, world, known: BTreeSet::new(), next_read_at: self.now, faults });
    }

    fn negotiation_policy(&self, me: Peer) -> NegotiationPolicy {
        NegotiationPolicy {
            priority: me.index as i32 % 2,
            min_residence_ns: 5 * MS,
            revoke_bound_ns: BOUND_NS,
            ask_patience_ns: 8 * MS,
            ttl_ns: self.case.ttl_ms * MS,
            retry_ns: 20 * MS,
            ..NegotiationPolicy::default()
        }
    }

    fn running_tenants(&self) -> BTreeSet<Peer> {
        self.slots.iter().filter_map(|slot| Some(slot.tenant.as_ref()?.me)).collect()
    }

    fn at(&self, peer: Peer) -> Option<usize> {
        self.slots.iter().position(|slot| slot.tenant.as_ref().is_some_and(|tenant| tenant.me == peer))
    }

    /// Runs until all tenants have served all requests.
    pub fn run(&mut self) {
        let (mut known, mut stalled_ticks) = (0, 0);
        while stalled_ticks < STALL_TICKS {
            if !self.slots.iter().any(TenantSlot::busy) {
                return;
            }
            self.tick(MS);
            if self.case.share_changes > 0 && self.rng.below(10_000) < u64::from(self.case.share_changes) {
                self.assign_shares();
            }
            let tokens = self.slots.iter().map(TenantSlot::tokens).sum();
            stalled_ticks =
                if std::mem::replace(&mut known, tokens) < tokens { 0 } else { stalled_ticks + 1 };
            if self.exits > 0 && self.rng.chance(if self.trades() { 5 } else { 1 }) {
                self.exits -= 1;
                let at = self.rng.below(self.slots.len() as u64) as usize;
                self.stop_instance(at);
            }
        }
        panic!("a tenant waits for ever: {}", self.state());
    }

    fn trades(&self) -> bool {
        self.slots.iter().flat_map(|slot| &slot.tenant).any(|t| t.negotiator().book().lent_out() > 0)
    }

    /// Runs until the condition holds.
    pub fn until(&mut self, so: impl Fn(&SimGpu) -> bool) {
        for _ in 0..200_000 {
            if so(self) {
                return;
            }
            self.tick(MS);
        }
        panic!("it never comes: {}", self.state());
    }

    /// Returns the chunks of this tenant that its peers hold.
    pub fn lent_by(&self, at: usize) -> u32 {
        let tenants = self.slots.iter().filter_map(|slot| slot.tenant.as_ref());
        tenants.map(|tenant| tenant.negotiator().book().loans_in_from(at as u32)).sum()
    }

    /// Returns how often accepted bytes will still yield no chunk, over all instances.
    pub fn unbacked_chunks(&self) -> u32 {
        let tenants = self.slots.iter().filter_map(|slot| slot.tenant.as_ref());
        tenants.map(|tenant| tenant.world.device.faults.unmade).sum()
    }

    /// Returns the memory manager of a running tenant.
    pub fn manager(&self, at: usize) -> Option<&MemoryManager> {
        self.slots[at].tenant.as_ref().map(|tenant| &tenant.world.manager)
    }

    /// Without work, all loans are returned.
    pub fn settle(&mut self) {
        let bounds = Bounds { share_chunks: self.share, remap_cap_permille: self.params.remap_cap_permille };
        self.assigned.fill(bounds);
        for _ in 0..20_000 {
            let returned = |slot: &TenantSlot| {
                slot.tenant.as_ref().is_some_and(|tenant| tenant.are_loans_returned(self.share))
            };
            if self.slots.iter().all(returned) && self.ledger.borrow().promised() == 0 {
                return;
            }
            self.tick(8 * MS);
        }
        panic!("not everything goes home: {}", self.state());
    }

    fn state(&self) -> String {
        let tenants = self.slots.iter().map(|slot| {
            slot.tenant.as_ref().map(|Tenant { me, world, .. }| {
                let manager = &world.manager;
                let flags = (
                    world.active,
                    manager.status().is_blocked(),
                    manager.loans().has_debt(),
                    manager.loans().debt_lacks_room(),
                    manager.status().lacks_weights(),
                );
                let work = (
                    world.waiting.len(),
                    world.running.len(),
                    world.in_step(),
                    manager.loans().borrow_request(),
                );
                (
                    *me,
                    flags,
                    work,
                    balance(manager),
                    manager.figures().ledger().counts().collect::<Vec<_>>(),
                    &world.negotiator,
                )
            })
        });
        let tenants: Vec<_> = tenants.map(|tenant| format!("{tenant:?}\n")).collect();
        format!("now {:?}\n{}{:?}", self.now, tenants.concat(), self.ledger.borrow())
    }

    fn tick(&mut self, most_ns: u64) {
        self.now = self.now.plus(self.rng.below(most_ns));
        self.pass_slice();
        let at = self.rng.below(self.slots.len() as u64) as usize;
        if self.slots[at].tenant.is_some() {
            self.apply_assignment(at);
            self.with(at, World::tick);
            self.read_ledger(at);
        } else if self.rng.chance(100) && self.has_room(at) {
            self.start_instance(at);
        }
        while let Some((to, message)) = self.network.next(self.now) {
            self.deliver(to, message);
        }
        self.record_returned_loans();
    }

    /// Passes the time slice: with slices one tenant runs at a time, otherwise every tenant with work.
    fn pass_slice(&mut self) {
        let (running, busy) = {
            let holder = &self.slots[self.holder];
            (holder.tenant.as_ref().is_some_and(|tenant| tenant.world.in_step()), holder.busy())
        };
        if !running && self.rng.chance(if busy { 10 } else { 100 }) {
            self.holder = (self.holder + 1) % self.slots.len();
        }
    }

    /// Runs an event at a tenant, sends its messages and checks everything.
    pub(super) fn with<T>(&mut self, at: usize, event: impl FnOnce(&mut World) -> T) -> T {
        let Tenant { me, world, faults, .. } = self.slots[at].tenant.as_mut().expect("it lives");
        world.now = self.now;
        world.active = if self.case.time_slices { self.holder == at } else { world.busy() };
        let result = event(world);
        if world.manager.status().is_loaded()
            && let Some(faults) = faults.take()
        {
            world.device.faults = faults;
        }
        let (me, commands) = (*me, std::mem::take(&mut world.commands));
        commands.into_iter().for_each(|command| self.send(me, command));
        self.audit(at);
        result
    }

    fn send(&mut self, from: Peer, command: PeerCommand) {
        if let PeerCommand::Claim { chunks } = command {
            self.claims += 1;
            let others = self.running_tenants().into_iter().filter(|peer| *peer != from);
            return others.for_each(|to| self.network.claim(self.now, from, to, chunks));
        }
        if !self.is_lost(from, &command) {
            self.network.send(self.now, from, command);
        }
    }

    /// Records revocations, and loses as many as the case requires.
    fn is_lost(&mut self, from: Peer, command: &PeerCommand) -> bool {
        match command {
            PeerCommand::Revoke { peer, nonce, .. } => {
                self.revoked.entry(*nonce).or_insert(self.now);
                let lost = self.case.loses_revocations > 0;
                self.case.loses_revocations -= u32::from(lost);
                lost || self.case.ignores_messages == Some(peer.index as usize)
            }
            PeerCommand::Ask { .. } => {
                let asker = self.at(from).and_then(|at| self.slots[at].tenant.as_ref());
                let mut given = asker.into_iter().flat_map(|asker| asker.negotiator().book().loans_out());
                let late = |nonce: &Nonce| {
                    self.revoked.get(nonce).is_some_and(|since| self.now.since(*since) >= BOUND_NS)
                };
                self.asked_while_late += u32::from(given.any(|given| late(&given.nonce)));
                false
            }
            _ => false,
        }
    }

    /// Records how long the returned loans took.
    fn record_returned_loans(&mut self) {
        let tenants = self.slots.iter().filter_map(|slot| slot.tenant.as_ref());
        let given = tenants.flat_map(|tenant| tenant.negotiator().book().loans_out());
        let out: BTreeSet<_> = given.map(|given| given.nonce).collect();
        let (now, slowest_ns) = (self.now, &mut self.slowest_ns);
        self.revoked.retain(|nonce, since| {
            let returned = !out.contains(nonce);
            *slowest_ns = (*slowest_ns).max(if returned { now.since(*since) } else { 0 });
            !returned
        });
    }

    fn deliver(&mut self, to: Peer, message: Message) {
        let Some(at) = self.at(to) else { return };
        match message {
            Message::Request { from, event } if self.at(from).is_some() => {
                self.with(at, |world| world.receive(event))
            }
            Message::Request { .. } => {}
            Message::Event(event) => self.with(at, |world| world.receive(event)),
            Message::Survey => {
                let peers = self.survey(at);
                self.network.inside(self.now, to, Message::Event(PeerEvent::Survey(peers)));
            }
            Message::TakeBack(nonce) => {
                let taken = self.ledger.borrow_mut().take_back(to.instance, nonce);
                if taken {
                    self.network.inside(self.now, to, Message::Event(PeerEvent::TookBack { nonce }));
                }
            }
        }
    }

    fn survey(&self, asker: usize) -> Vec<PeerView> {
        let others = self.slots.iter().enumerate().filter(|(at, _)| *at != asker);
        others.filter_map(|(_, slot)| slot.tenant.as_ref()).map(|t| self.seen(t)).collect()
    }

    fn seen(&self, Tenant { me, world, .. }: &Tenant) -> PeerView {
        let live = PeerState {
            active: world.active,
            lendable_chunks: world.manager.loans().lendable_chunks(),
            ..PeerState::default()
        };
        PeerView {
            peer: *me,
            priority: self.negotiation_policy(*me).priority,
            reachable: true,
            live: Some(live),
        }
    }

    /// Reads the ledger at intervals: exited peers, and returns without a message.
    fn read_ledger(&mut self, at: usize) {
        let running = self.running_tenants();
        let Tenant { me, known, next_read_at, .. } = self.slots[at].tenant.as_mut().expect("it lives");
        if self.now < *next_read_at {
            return;
        }
        *next_read_at = self.now.plus(POLL_NS);
        let me = *me;
        let exited: Vec<_> =
            std::mem::replace(known, running.clone()).difference(&running).copied().collect();
        for peer in exited.iter().filter(|_| !self.case.blind) {
            self.network.inside(self.now, me, Message::Event(PeerEvent::Died(*peer)));
        }
        let name = |instance: u64| running.iter().find(|peer| peer.instance == instance).copied();
        let waiting: Vec<_> =
            self.ledger.borrow().waiting().filter(|(_, to, ..)| *to == me.instance).collect();
        for (lender, _, nonce, chunks) in waiting {
            let peer = name(lender).expect("who promises lives");
            self.network.inside(self.now, me, Message::Event(PeerEvent::Returned { peer, nonce, chunks }));
        }
        self.ledger.borrow_mut().clear(me.instance);
    }

    pub fn stop_instance(&mut self, at: usize) {
        let Some(Tenant { me, world, .. }) = self.slots[at].tenant.take() else { return };
        self.ledger.borrow_mut().exit(me.instance);
        let slot = &mut self.slots[at];
        slot.finished = world.finished;
        let open = world.running.into_iter().chain(world.waiting);
        slot.waiting = open.map(|request| Request { computed: 0, kept: false, ..request }).collect();
    }

    /// Checks the capacity against the devices, and the books against the memory managers.
    fn audit(&mut self, at: usize) {
        let tenants = || self.slots.iter().filter_map(|slot| slot.tenant.as_ref());
        let exists: usize = tenants().map(|tenant| tenant.world.device.memory.chunks.len()).sum();
        let ledger = self.ledger.borrow();
        let total = self.share as usize * self.slots.len();
        let shares: u32 = tenants().map(|tenant| tenant.world.manager.loans().share_chunks()).sum();
        assert!(shares as usize <= total, "no more is dealt out than there is");
        assert!(exists + ledger.promised() as usize <= total, "no byte is promised twice");
        for Tenant { me, world, .. } in tenants() {
            assert_eq!(
                ledger.held(me.instance) as usize,
                world.device.memory.chunks.len(),
                "what exists is counted"
            );
        }
        let tenant = self.slots[at].tenant.as_ref().expect("it lives");
        let (manager, book) = (&tenant.world.manager, tenant.negotiator().book());
        self.loans += u32::from(book.borrowed() > 0);
        assert!(book.lent_out() + book.borrowed() <= self.share * self.slots.len() as u32);
        if manager.is_idle() && tenant.world.sent_events {
            assert_eq!(
                balance(manager),
                (book.borrowed(), book.lent_out()),
                "the memory manager and the book agree"
            );
            assert_eq!(
                manager.loans().budget_chunks(),
                book.budget(),
                "the memory manager and the book agree"
            );
        }
    }
}
