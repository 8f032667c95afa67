//! Two tenants of one GPU with their loans, earmarks and time slices; the test keeps the books.

use std::collections::BTreeMap;

use sluice_common::random::Rng;
use sluice_policy::action::Earmark;
use sluice_policy::loan_negotiator::LoanControl;
use sluice_policy::memory_manager::{Demand, TransferKind, TransferResult};
use sluice_policy::params::Params;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loans::Nonce;

use super::super::cases::{guaranteed_chunks, tenant};
use super::super::device::Faults;
use super::super::random::{MODEL_TOKENS, trading};
use super::super::world::World;

pub fn peer(index: usize) -> Peer {
    Peer { index: index as u32, instance: 1 }
}

/// The two tenants and their loans.
pub struct Pair {
    pub worlds: [World; 2],
    pub shares: [u32; 2],
    /// Lender and chunks of each loan, by nonce.
    pub loans: BTreeMap<u64, (usize, u32)>,
    /// Earmarks: recipient, nonce, chunks, and the loan that it repays.
    pub earmarks: Vec<(usize, u64, u32, Option<u64>)>,
    /// Repayments in progress: their nonce and the loan's.
    pub repaying: BTreeMap<u64, u64>,
    nonce: u64,
    pub lent: u32,
    pub rng: Rng,
}

impl Pair {
    pub fn new(slabs: &[u64], extra_kv: u32, seed: u64, faults: u32) -> Pair {
        Pair::with(slabs, extra_kv, seed, faults, |_| {})
    }

    pub fn with(slabs: &[u64], extra_kv: u32, seed: u64, faults: u32, change: impl Fn(&mut Params)) -> Pair {
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
            rng: Rng::new(seed ^ 0x7a11),
        }
    }

    pub fn earmark(&mut self, to: usize) -> Earmark {
        self.nonce += 1;
        Earmark { peer: peer(to), nonce: Nonce(self.nonce) }
    }

    /// Grants the time slice to one tenant; its loans are revoked before its layers are restored.
    pub fn grant_slice(&mut self, holder: usize) {
        for (at, world) in self.worlds.iter_mut().enumerate() {
            world.active = at == holder;
            world.manager.set_demand(Demand { has_requests: false, is_active: world.active });
        }
        self.revoke(holder);
    }

    pub fn revoke(&mut self, lender: usize) {
        let own = self.loans.iter().filter(|(_, (by, _))| *by == lender);
        let due: Vec<_> = own.map(|(loan, (_, chunks))| (*loan, *chunks)).collect();
        for (loan, chunks) in due {
            if !self.is_in_transit(loan) {
                let earmark = self.earmark(lender);
                self.repaying.insert(earmark.nonce.0, loan);
                self.worlds[1 - lender].manager.loans_mut().queue_transfer(
                    earmark,
                    chunks,
                    TransferKind::Return,
                );
            }
        }
        let open = self.loans.values().any(|(by, _)| *by == lender);
        self.worlds[lender].manager.loans_mut().set_awaits_loans(open);
    }

    /// Whether the loan is in transfer to or from its borrower.
    fn is_in_transit(&self, loan: u64) -> bool {
        let promised =
            self.earmarks.iter().any(|(_, nonce, _, repays)| *nonce == loan || *repays == Some(loan));
        promised || self.repaying.values().any(|l| *l == loan)
    }

    /// The holder of the time slice asks for more memory.
    pub fn ask(&mut self, borrower: usize) {
        let lender = 1 - borrower;
        let max = self.worlds[lender].manager.loans().lendable_chunks();
        if self.loans.len() < 3 && max > 0 && self.worlds[lender].manager.status().is_loaded() {
            let chunks = 1 + self.rng.below(u64::from(max)) as u32;
            let earmark = self.earmark(borrower);
            self.worlds[lender].manager.loans_mut().queue_transfer(earmark, chunks, TransferKind::Lend);
        }
    }

    pub fn tick(&mut self) {
        let at = self.rng.below(2) as usize;
        self.worlds[at].tick();
        self.collect();
        if !self.earmarks.is_empty() && self.rng.chance(300) {
            let (to, nonce, chunks, repays) = self.earmarks[0];
            let kind = if repays.is_some() { TransferKind::Return } else { TransferKind::Lend };
            let earmark = Earmark { peer: peer(1 - to), nonce: Nonce(nonce) };
            if !self.worlds[to].manager.status().is_blocked() {
                self.worlds[to]
                    .send_event(|manager, out| manager.loans_mut().accept(earmark, chunks, kind, out));
            }
        }
        self.audit();
    }

    fn collect(&mut self) {
        for at in 0..2 {
            for traded in self.worlds[at].manager.loans_mut().take_transfer_results() {
                self.ended(at, traded);
            }
        }
    }

    fn ended(&mut self, at: usize, traded: TransferResult) {
        match traded {
            TransferResult::Granted { earmark, chunks, .. } => {
                let nonce = earmark.nonce.0;
                let repays = self.repaying.remove(&nonce);
                if repays.is_none() {
                    self.loans.insert(nonce, (at, chunks));
                    self.lent += chunks;
                }
                self.earmarks.push((1 - at, nonce, chunks, repays));
            }
            TransferResult::Accepted { earmark, .. } => {
                let found = self.earmarks.iter().position(|(_, nonce, ..)| *nonce == earmark.nonce.0);
                let (to, _, _, repays) = self.earmarks.remove(found.expect("what is taken was promised"));
                assert_eq!(to, at, "an earmark is taken by the one it is for");
                if let Some(loan) = repays {
                    self.loans.remove(&loan);
                    let open = self.loans.values().any(|(by, _)| *by == at);
                    self.worlds[at].manager.loans_mut().set_awaits_loans(open);
                }
            }
            TransferResult::Refused { earmark, .. } => {
                // A repayment whose release failed is requested again.
                if self.repaying.remove(&earmark.nonce.0).is_some() {
                    self.revoke(1 - at);
                }
            }
            TransferResult::NotAccepted { .. } => {}
            TransferResult::NotBacked { .. } => panic!("this device has memory for what it takes"),
        }
    }

    /// Checks the capacity: existing and earmarked chunks, by the devices and by the budgets.
    fn audit(&self) {
        let promised: u32 = self.earmarks.iter().map(|(_, _, chunks, _)| chunks).sum();
        let exists: usize = self.worlds.iter().map(|world| world.device.memory.chunks.len()).sum();
        let total: u32 = self.shares.iter().sum();
        assert!(exists <= total as usize, "never more chunks than the GPU has");
        let unblocked = self.worlds.iter().all(|world| !world.manager.status().is_blocked());
        if unblocked {
            assert!(exists + promised as usize <= total as usize, "no byte is promised twice");
            let budgets: u32 = self.worlds.iter().map(|world| world.manager.loans().budget_chunks()).sum();
            assert_eq!(budgets + promised, total, "budgets and promises sum to the capacity");
        }
    }

    pub fn busy(&self, at: usize) -> bool {
        !self.worlds[at].waiting.is_empty() || !self.worlds[at].running.is_empty()
    }

    /// Runs until both have served all requests.
    pub fn run(&mut self) {
        for round in 0..300_000_u64 {
            if !self.busy(0) && !self.busy(1) {
                return;
            }
            let holder = usize::from(self.worlds[1].active);
            let switches = round % 400 == 0 || (!self.busy(holder) && round % 20 == 0);
            if switches && !self.worlds[holder].in_step() {
                self.grant_slice(1 - holder);
            } else if self.rng.chance(20) && self.worlds[holder].active {
                self.ask(holder);
            }
            self.tick();
        }
        let states = self.worlds.each_ref().map(|w| {
            let b = &w.manager;
            let flags = (
                w.active,
                b.status().is_blocked(),
                b.loans().has_debt(),
                b.loans().debt_lacks_room(),
                b.status().lacks_weights(),
                w.in_step(),
            );
            (
                w.waiting.len(),
                w.running.len(),
                flags,
                b.loans().budget_chunks(),
                b.loans().floor_chunks(),
                b.figures().ledger().counts().collect::<Vec<_>>(),
            )
        });
        panic!(
            "no progress: {states:?} loans {:?} repaying {:?} earmarks {:?}",
            self.loans, self.repaying, self.earmarks
        );
    }

    /// Returns all loans, including earmarks that were promised earlier.
    pub fn settle(&mut self) {
        for round in 0..8 {
            [0, 1].into_iter().for_each(|at| self.settle_one(at));
            if round > 0 && self.loans.is_empty() && self.earmarks.is_empty() {
                return;
            }
        }
    }

    fn settle_one(&mut self, at: usize) {
        self.grant_slice(at);
        self.tick_until(|pair| {
            pair.revoke(at);
            let restored =
                pair.worlds[at].manager.status().absent_layers() == 0 && pair.worlds[at].device.idle();
            restored && pair.loans.values().all(|(by, _)| *by != at) && pair.earmarks.is_empty()
        });
    }

    pub fn tick_until(&mut self, over: impl Fn(&mut Pair) -> bool) {
        for _ in 0..100_000 {
            if over(self) {
                return;
            }
            self.tick();
        }
        panic!("it does not come to rest");
    }
}
