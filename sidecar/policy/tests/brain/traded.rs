//! Two tenants that lend each other memory and take turns: no token changes, and no byte is promised twice.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluice_policy::action::Earmark;
use sluice_policy::brain::{Brain, Claim, Traded};
use sluice_policy::geometry::Geometry;
use sluice_policy::neighbours::Peer;
use sluice_policy::neighbours::grants::Nonce;
use sluice_policy::params::{Bounds, Params, PolicyName};
use sluice_policy::reason::Reason;

use super::cases::{guaranteed_chunks, tenant};
use super::device::{Faults, Rng};
use super::random::{MODEL_TOKENS, load, trading};
use super::world::World;

fn peer(index: usize) -> Peer {
    Peer { index: index as u32, instance: 1 }
}

/// Both tenants, and what is between them.
struct Pair {
    worlds: [World; 2],
    shares: [u32; 2],
    /// Lender and chunks of each loan, by nonce.
    loans: BTreeMap<u64, (usize, u32)>,
    /// Promised, for whom: (nonce, chunks, the loan that it repays).
    earmarks: Vec<(usize, u64, u32, Option<u64>)>,
    /// Repayments under way: their nonce and the loan's.
    repaying: BTreeMap<u64, u64>,
    nonce: u64,
    lent: u32,
    rng: Rng,
}

impl Pair {
    fn new(slabs: &[u64], extra_kv: u32, seed: u64, faults: u32) -> Pair {
        Pair::with(slabs, extra_kv, seed, faults, |_| {})
    }

    fn with(slabs: &[u64], extra_kv: u32, seed: u64, faults: u32, change: impl Fn(&mut Params)) -> Pair {
        let policy = trading(seed);
        let (mut params, _) = tenant(policy, slabs, 0, MODEL_TOKENS);
        let kv = guaranteed_chunks(&params) + extra_kv;
        let (_, geometry) = tenant(policy, slabs, kv, MODEL_TOKENS);
        let share = geometry.capacity_chunks;
        change(&mut params);
        let world = |seed| {
            let params = Params { share_chunks: share, ..params.clone() };
            let mut geometry = geometry.clone();
            geometry.capacity_chunks = 2 * share;
            World::new(params, geometry, seed, Faults { permille: faults, left: 6, ..Faults::default() })
        };
        Pair {
            worlds: [world(seed), world(seed ^ 1)],
            shares: [share; 2],
            loans: BTreeMap::new(),
            earmarks: Vec::new(),
            repaying: BTreeMap::new(),
            nonce: 0,
            lent: 0,
            rng: Rng(seed ^ 0x7a11),
        }
    }

    fn earmark(&mut self, to: usize) -> Earmark {
        self.nonce += 1;
        Earmark { peer: peer(to), nonce: Nonce(self.nonce) }
    }

    /// The turn goes to one of them; its loans are revoked before its layers come back.
    fn turn(&mut self, holder: usize) {
        for (at, world) in self.worlds.iter_mut().enumerate() {
            world.active = at == holder;
            world.brain.set_active(at == holder);
        }
        self.revoke(holder);
    }

    fn revoke(&mut self, lender: usize) {
        let own = self.loans.iter().filter(|(_, (by, _))| *by == lender);
        let due: Vec<_> = own.map(|(loan, (_, chunks))| (*loan, *chunks)).collect();
        for (loan, chunks) in due {
            if !self.on_its_way(loan) {
                let earmark = self.earmark(lender);
                self.repaying.insert(earmark.nonce.0, loan);
                self.worlds[1 - lender].brain.give(earmark, chunks, Claim::Debt);
            }
        }
        let open = self.loans.values().any(|(by, _)| *by == lender);
        self.worlds[lender].brain.set_patient(open);
    }

    /// The loan is not with its borrower yet, or not any more.
    fn on_its_way(&self, loan: u64) -> bool {
        let promised =
            self.earmarks.iter().any(|(_, nonce, _, repays)| *nonce == loan || *repays == Some(loan));
        promised || self.repaying.values().any(|l| *l == loan)
    }

    /// The one whose turn it is asks for more.
    fn ask(&mut self, borrower: usize) {
        let lender = 1 - borrower;
        let most = self.worlds[lender].brain.lendable_chunks();
        if self.loans.len() < 3 && most > 0 && self.worlds[lender].brain.loaded() {
            let chunks = 1 + self.rng.below(u64::from(most)) as u32;
            let earmark = self.earmark(borrower);
            self.worlds[lender].brain.give(earmark, chunks, Claim::Loan);
        }
    }

    fn tick(&mut self) {
        let at = self.rng.below(2) as usize;
        self.worlds[at].tick();
        self.collect();
        if !self.earmarks.is_empty() && self.rng.permille(300) {
            let (to, nonce, chunks, repays) = self.earmarks[0];
            let claim = if repays.is_some() { Claim::Debt } else { Claim::Loan };
            let earmark = Earmark { peer: peer(1 - to), nonce: Nonce(nonce) };
            if !self.worlds[to].brain.blocked() {
                self.worlds[to].tell(|brain, out| brain.accept(earmark, chunks, claim, out));
            }
        }
        self.audit();
    }

    fn collect(&mut self) {
        for at in 0..2 {
            for traded in self.worlds[at].brain.take_traded() {
                self.ended(at, traded);
            }
        }
    }

    fn ended(&mut self, at: usize, traded: Traded) {
        match traded {
            Traded::Given { earmark, chunks, .. } => {
                let nonce = earmark.nonce.0;
                let repays = self.repaying.remove(&nonce);
                if repays.is_none() {
                    self.loans.insert(nonce, (at, chunks));
                    self.lent += chunks;
                }
                self.earmarks.push((1 - at, nonce, chunks, repays));
            }
            Traded::Taken { earmark, .. } => {
                let found = self.earmarks.iter().position(|(_, nonce, ..)| *nonce == earmark.nonce.0);
                let (to, _, _, repays) = self.earmarks.remove(found.expect("what is taken was promised"));
                assert_eq!(to, at, "an earmark is taken by the one it is for");
                if let Some(loan) = repays {
                    self.loans.remove(&loan);
                    let open = self.loans.values().any(|(by, _)| *by == at);
                    self.worlds[at].brain.set_patient(open);
                }
            }
            Traded::Refused { earmark, .. } => {
                // A debt whose release failed is asked for again.
                if self.repaying.remove(&earmark.nonce.0).is_some() {
                    self.revoke(1 - at);
                }
            }
            Traded::NotTaken { .. } => {}
            Traded::Unmade { .. } => panic!("this device has memory for what it takes"),
        }
    }

    /// Capacity: what exists and what is promised, by the device and by the budgets.
    fn audit(&self) {
        let promised: u32 = self.earmarks.iter().map(|(_, _, chunks, _)| chunks).sum();
        let exists: usize = self.worlds.iter().map(|world| world.device.chunks.len()).sum();
        let total: u32 = self.shares.iter().sum();
        assert!(exists <= total as usize, "never more chunks than the GPU has");
        let quiet = self.worlds.iter().all(|world| !world.brain.blocked());
        if quiet {
            assert!(exists + promised as usize <= total as usize, "no byte is promised twice");
            let budgets: u32 = self.worlds.iter().map(|world| world.brain.budget_chunks()).sum();
            assert_eq!(budgets + promised, total, "budgets and promises sum to the capacity");
        }
    }

    fn busy(&self, at: usize) -> bool {
        !self.worlds[at].waiting.is_empty() || !self.worlds[at].running.is_empty()
    }

    /// Runs until both have served everything.
    fn run(&mut self) {
        for round in 0..300_000_u64 {
            if !self.busy(0) && !self.busy(1) {
                return;
            }
            let holder = usize::from(self.worlds[1].active);
            let turns = round % 400 == 0 || (!self.busy(holder) && round % 20 == 0);
            if turns && !self.worlds[holder].in_step() {
                self.turn(1 - holder);
            } else if self.rng.permille(20) && self.worlds[holder].active {
                self.ask(holder);
            }
            self.tick();
        }
        let states = self.worlds.each_ref().map(|w| {
            let b = &w.brain;
            let flags = (w.active, b.blocked(), b.owes(), b.stuck(), b.dormant(), w.in_step());
            (
                w.waiting.len(),
                w.running.len(),
                flags,
                b.budget_chunks(),
                b.floor_chunks(),
                b.ledger().counts().collect::<Vec<_>>(),
            )
        });
        panic!(
            "no progress: {states:?} loans {:?} repaying {:?} earmarks {:?}",
            self.loans, self.repaying, self.earmarks
        );
    }

    /// Everything goes home, also what was promised while there was work and is given only now.
    fn settle(&mut self) {
        for round in 0..8 {
            [0, 1].into_iter().for_each(|at| self.settle_one(at));
            if round > 0 && self.loans.is_empty() && self.earmarks.is_empty() {
                return;
            }
        }
    }

    fn settle_one(&mut self, at: usize) {
        self.turn(at);
        self.tick_until(|pair| {
            pair.revoke(at);
            let home = pair.worlds[at].brain.absent_layers() == 0 && pair.worlds[at].device.idle();
            home && pair.loans.values().all(|(by, _)| *by != at) && pair.earmarks.is_empty()
        });
    }

    fn tick_until(&mut self, over: impl Fn(&mut Pair) -> bool) {
        for _ in 0..100_000 {
            if over(self) {
                return;
            }
            self.tick();
        }
        panic!("it does not come to rest");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tokens_do_not_change_and_everything_goes_home(
        slabs in prop_oneof![(3usize..8).prop_map(|n| vec![4; n]), proptest::collection::vec(1u64..6, 4..8)],
        extra_kv in 0u32..20,
        seed in any::<u64>(),
        kills in 0u32..10,
        faults in 0u32..40,
    ) {
        let mut pair = Pair::new(&slabs, extra_kv, seed, faults);
        let mut rng = Rng(seed);
        let mut expected = Vec::new();
        for world in &mut pair.worlds {
            prop_assume!(world.load());
            world.kill_permille = kills;
            expected.push(load(world, &mut rng, 14));
        }
        pair.turn(0);
        pair.run();
        pair.settle();
        for (world, expected) in pair.worlds.iter().zip(expected) {
            prop_assert_eq!(&world.finished, &expected, "the tokens of the tenant alone");
        }
        prop_assert!(pair.loans.is_empty() && pair.earmarks.is_empty(), "every loan is back");
        for (world, share) in pair.worlds.iter().zip(pair.shares) {
            prop_assert_eq!(world.brain.budget_chunks(), share, "everybody has its share");
        }
    }
}

#[test]
fn an_idle_tenant_lends_its_last_layers_and_wakes_with_all_of_them() {
    let mut pair = Pair::new(&[4; 8], 4, 7, 0);
    let mut rng = Rng(7);
    pair.worlds.iter_mut().for_each(|world| assert!(world.load()));
    pair.turn(0);
    load(&mut pair.worlds[0], &mut rng, 10);
    let most = pair.worlds[1].brain.lendable_chunks();
    let floor = pair.worlds[1].brain.floor_chunks();
    assert!(most > 8, "weights of an idle tenant can be lent");
    let earmark = pair.earmark(0);
    pair.worlds[1].brain.give(earmark, most, Claim::Loan);
    (0..2_000).for_each(|_| pair.tick());
    assert!(pair.worlds[1].brain.dormant(), "layers are away");
    let absent = pair.worlds[1].brain.absent_layers();
    let residency = pair.worlds[1].brain.residency();
    let away = residency.iter().rev().take(usize::from(absent)).all(|layer| !layer.present);
    assert!(away && residency[..8 - usize::from(absent)].iter().all(|layer| layer.present), "the last ones");
    assert!(pair.worlds[1].brain.budget_chunks() >= floor, "never below the floor");
    assert_eq!(pair.worlds[0].brain.budget_chunks(), pair.shares[0] + most, "the borrower has it all");
    pair.turn(1);
    (0..5_000).for_each(|_| pair.tick());
    assert_eq!(pair.worlds[1].brain.absent_layers(), 0);
    assert!(pair.worlds[1].brain.layout().moving.is_empty(), "all layers resident again");
    assert!(
        pair.worlds[1].brain.counted(Reason::Wake) > 0 && pair.worlds[0].brain.counted(Reason::Repay) > 0
    );
}

/// A tenant that has lent all that it can, which is not repaid: it has work, after something has changed, and serves.
fn served_without(slabs: &[u64], before: impl Fn(&mut Brain), after: impl Fn(&mut Brain)) -> Brain {
    let mut pair = Pair::new(slabs, 4, 9, 0);
    let mut rng = Rng(9);
    before(&mut pair.worlds[1].brain);
    pair.worlds.iter_mut().for_each(|world| assert!(world.load()));
    pair.turn(0);
    let most = pair.worlds[1].brain.lendable_chunks();
    let earmark = pair.earmark(0);
    pair.worlds[1].brain.give(earmark, most, Claim::Loan);
    (0..2_000).for_each(|_| pair.tick());
    let expected = load(&mut pair.worlds[1], &mut rng, 6);
    // The borrower is silent: the turn comes, nothing is repaid, and patience is over.
    let lender = &mut pair.worlds[1];
    after(&mut lender.brain);
    lender.active = true;
    lender.brain.set_active(true);
    assert!(lender.brain.patient(), "its loans are waited for at first");
    lender.brain.set_patient(false);
    lender.run();
    assert_eq!(lender.finished, expected);
    assert!(lender.brain.layout().alpha() > 0, "it serves in what its floor leaves");
    assert_eq!(lender.brain.budget_chunks(), pair.shares[1] - most, "and takes nothing that is not its own");
    let [_, lender] = pair.worlds;
    lender.brain
}

fn has(policy: PolicyName) -> impl Fn(&mut Brain) {
    move |brain| brain.set_policy(policy).expect("it fits under either")
}

fn may_remap(remap_cap_permille: u32) -> impl Fn(&mut Brain) {
    move |brain| {
        let bounds = Bounds { remap_cap_permille, ..brain.bounds() };
        brain.set_bounds(bounds).expect("it fits with either");
    }
}

fn as_it_is(_: &mut Brain) {}

#[test]
fn a_lender_whose_loans_do_not_come_back_serves_with_moving_layers() {
    served_without(&[4; 8], as_it_is, as_it_is);
}

/// Its floor counts on the least activation space: what it has beyond that makes room for layers.
#[test]
fn a_lender_whose_activations_are_idle_comes_back_into_their_space() {
    let brain = served_without(&[4; 8], has(PolicyName::Unified), as_it_is);
    assert!(brain.budget_chunks() < brain.floor_chunks() + 4, "less than a layer above its floor is left");
}

/// What it lent it lent by another floor than the one that is in force when it comes back.
#[test]
fn a_lender_whose_policy_or_cap_has_changed_comes_back_without_what_it_lent() {
    for policy in [PolicyName::Oneiros, PolicyName::Recompute, PolicyName::Ellm, PolicyName::Pie] {
        served_without(&[4; 8], has(PolicyName::Unified), has(policy));
    }
    for permille in [0, 300] {
        served_without(&[4; 8], as_it_is, may_remap(permille));
        served_without(&[4; 8], has(PolicyName::Unified), may_remap(permille));
    }
}

/// The layouts whose copies hide best are not those that take least.
#[test]
fn a_lender_of_unequal_layers_comes_back_into_the_layout_that_its_floor_counts_on() {
    served_without(&[4, 1, 4, 1, 4, 1, 4, 4], may_remap(500), as_it_is);
}

/// A tenant whose requests hold all KV lends what it can and comes back without it: how many layers give up their memory, and
/// how many requests lost theirs.
fn back_without(policy: PolicyName, slab_ns: u64) -> (u16, u32) {
    back_without_under(policy, slab_ns, |_| {})
}

fn back_without_under(policy: PolicyName, slab_ns: u64, change: impl Fn(&mut Params)) -> (u16, u32) {
    let mut pair = Pair::with(&[4; 8], 12, 9, 0, change);
    let world = &mut pair.worlds[1];
    world.brain.set_policy(policy).expect("it fits under either");
    world.device.fill_ns_per_byte = slab_ns / 253;
    assert!(world.load());
    world.active = true;
    (0..4).for_each(|id| world.submit(id, id, vec![id as u32; 30], 30));
    while world.running.len() < 4 || world.steps < 4 || world.in_step() {
        world.tick();
    }
    pair.turn(0);
    // Seven layers of four chunks could go, and idle KV.
    let two_layers = pair.worlds[1].brain.lendable_chunks() - 20;
    let earmark = pair.earmark(0);
    let world = &mut pair.worlds[1];
    world.brain.give(earmark, two_layers, Claim::Loan);
    (0..2_000).for_each(|_| world.tick());
    assert_eq!(world.brain.absent_layers(), 2);
    let before = world.preemptions + world.pauses;
    world.active = true;
    world.brain.set_active(true);
    world.brain.set_patient(false);
    while !world.brain.is_whole() {
        world.tick();
    }
    let found = (world.brain.layout().alpha(), world.preemptions + world.pauses - before);
    world.run();
    assert_eq!(world.finished.len(), 4);
    found
}

#[test]
fn layers_that_hide_move_before_requests_lose_their_memory_and_others_do_not() {
    let (moved, lost) = back_without(PolicyName::Oneiros, 253);
    assert!(moved > 0 && lost == 0, "copies that hide: {moved} layers, {lost} requests");
    let (moved, lost) = back_without(PolicyName::Oneiros, 40_000_000);
    assert!(lost > 0, "copies of five steps: {moved} layers, {lost} requests");
}

/// Copies of two and a half layers' compute stall four of eight layers by a fifth, and a request is a quarter of the batch.
#[test]
fn unified_takes_a_stall_where_requests_would_lose_more() {
    let moved = |policy| back_without(policy, 2_500_000).0;
    let (strict, weighed) = (moved(PolicyName::Oneiros), moved(PolicyName::Unified));
    assert!(weighed > strict, "{weighed} layers against {strict}");
}

/// A client that reads a token in twenty-five steps misses three in the window of 64, which is less than a fifth of what
/// four requests make in it.
#[test]
fn with_an_objective_a_request_that_waits_loses_what_its_client_reads_meanwhile() {
    let moved = |policy, by_loss| {
        let change = |params: &mut Params| {
            (params.slo.tbt_ns, params.remedies_by_loss) = (200_000_000, by_loss);
        };
        back_without_under(policy, 2_500_000, change).0
    };
    let strict = moved(PolicyName::Oneiros, true);
    assert_eq!(moved(PolicyName::Unified, true), strict);
    assert!(moved(PolicyName::Unified, false) > strict, "it would lose all that it would have made");
}

/// A loaded tenant with two chunks of its neighbour, whose KV is never calm for long enough to give any back.
fn borrower() -> World {
    let (params, _) = tenant(PolicyName::Oneiros, &[4; 8], 0, MODEL_TOKENS);
    let (_, geometry) = tenant(PolicyName::Oneiros, &[4; 8], guaranteed_chunks(&params), MODEL_TOKENS);
    let share_chunks = geometry.capacity_chunks;
    let params = Params { share_chunks, revert_patience_steps: u32::MAX, ..params };
    let geometry = Geometry { capacity_chunks: 2 * share_chunks, ..geometry };
    let mut world = World::new(params, geometry, 5, Faults::default());
    assert!(world.load());
    let earmark = Earmark { peer: peer(1), nonce: Nonce(1) };
    world.tell(|brain, out| brain.accept(earmark, 2, Claim::Loan, out));
    world.drain();
    assert_eq!(world.brain.borrowed_chunks(), 2);
    world
}

/// Whoever found no engine for long gave back at once what it had borrowed for its first step, and borrowed it again, for ever.
#[test]
fn a_loan_is_spare_when_no_request_waits_for_a_while_and_not_before() {
    let mut brain = borrower().brain;
    let mut spare = |busy| {
        brain.set_busy(busy);
        brain.take_spare_loan()
    };
    let idle: Vec<_> = (0..8).map(|_| spare(false)).collect();
    assert_eq!(idle, [0, 0, 0, 0, 0, 0, 0, 2], "nobody has asked for it for a while");
    assert!((0..100).all(|_| spare(true) == 0), "what waits holds no KV yet, and will");
    let idle: Vec<_> = (0..8).map(|_| spare(false)).collect();
    assert_eq!(idle, [0, 0, 0, 0, 0, 0, 0, 2], "the while begins anew");
}
