//! Random operations of three participants that may restart at any time, compared with plain arithmetic.

use proptest::prelude::*;
use sluice_memory::gpu_ledger::{LedgerError, ParticipantHandle, Peer, TRANSFERS};

use super::env::{CAPACITY, LedgerEnv};

/// An operation. The numbers select a participant, or one of the pending earmarks.
#[derive(Debug, Clone)]
enum Operation {
    Reserve(usize, u64),
    Release(usize, u64),
    /// Lender, borrower, held bytes, spare bytes.
    Earmark(usize, usize, u64, u64),
    Accept(usize),
    Void(usize),
    Clear(usize),
    Restart(usize),
}

fn operation() -> impl Strategy<Value = Operation> {
    let (who, bytes, spare) = (0..3usize, 1..500u64, prop_oneof![Just(0), 1..200u64]);
    prop_oneof![
        (who.clone(), bytes.clone()).prop_map(|(a, n)| Operation::Reserve(a, n)),
        (who.clone(), bytes.clone()).prop_map(|(a, n)| Operation::Release(a, n)),
        (who.clone(), who.clone(), bytes, spare).prop_map(|(a, b, n, s)| Operation::Earmark(a, b, n, s)),
        (0..8usize).prop_map(Operation::Accept),
        (0..8usize).prop_map(Operation::Void),
        who.clone().prop_map(Operation::Clear),
        who.prop_map(Operation::Restart),
    ]
}

/// An earmark that is neither accepted nor cancelled. Participants are identified by instance.
struct PendingEarmark {
    from: Peer,
    to: Peer,
    bytes: u64,
    nonce: u64,
}

struct Model {
    env: LedgerEnv,
    participants: Vec<Option<ParticipantHandle>>,
    held: [u64; 3],
    pending: Vec<PendingEarmark>,
    nonces: u64,
}

impl Model {
    fn new() -> Model {
        let env = LedgerEnv::new();
        let participants = (0..3).map(|at| Some(env.open().join(&at.to_string(), 0, 0).unwrap())).collect();
        Model { env, participants, held: [0; 3], pending: vec![], nonces: 0 }
    }

    fn participant(&self, at: usize) -> &ParticipantHandle {
        self.participants[at].as_ref().unwrap()
    }

    fn index_of(&self, peer: Peer) -> Option<usize> {
        (0..3).find(|at| self.participant(*at).peer() == peer)
    }

    fn counted(&self) -> u64 {
        let waiting = self
            .pending
            .iter()
            .filter(|one| self.index_of(one.from).is_some() && self.index_of(one.to).is_some());
        self.held.iter().sum::<u64>() + waiting.map(|one| one.bytes).sum::<u64>()
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Reserve(a, n) => {
                let fits = self.counted() + n <= CAPACITY;
                assert_eq!(self.participant(a).reserve(n).is_ok(), fits);
                self.held[a] += if fits { n } else { 0 };
            }
            Operation::Release(a, n) => {
                let n = n.min(self.held[a]);
                self.participant(a).release(n);
                self.held[a] -= n;
            }
            Operation::Earmark(a, b, n, spare) => self.earmark((a, b), n, spare),
            Operation::Accept(which) if which < self.pending.len() => self.accept(which),
            Operation::Void(which) if which < self.pending.len() => self.void(which),
            Operation::Accept(_) | Operation::Void(_) => {}
            Operation::Clear(a) => self.clear(a),
            Operation::Restart(a) => {
                self.env.end(self.participants[a].take().unwrap());
                self.participants[a] = Some(self.env.open().join(&a.to_string(), 0, 0).unwrap());
                self.held[a] = 0;
            }
        }
        assert_eq!(self.env.open().audit().unwrap().counted_bytes, self.counted());
    }

    fn earmark(&mut self, (a, b): (usize, usize), bytes: u64, spare: u64) {
        self.nonces += 1;
        let (from, to, nonce) = (self.participant(a).peer(), self.participant(b).peer(), self.nonces);
        let possible = a != b && bytes <= self.held[a] && self.counted() + spare <= CAPACITY;
        let result = self.participant(a).earmark(&to, bytes, spare, nonce);
        // Earmarks that are not cleared eventually fill the record.
        if result == Err(LedgerError::TooManyTransfers { limit: TRANSFERS }) {
            return;
        }
        assert_eq!(result.is_ok(), possible);
        if possible {
            self.held[a] -= bytes;
            self.pending.push(PendingEarmark { from, to, bytes: bytes + spare, nonce });
        }
    }

    fn accept(&mut self, which: usize) {
        let PendingEarmark { from, to, bytes, nonce } = self.pending[which];
        let Some(borrower) = self.index_of(to) else { return };
        let result = self.participant(borrower).accept(&from, nonce, bytes);
        if self.index_of(from).is_some() {
            assert_eq!(result, Ok(()));
            self.held[borrower] += bytes;
            self.pending.remove(which);
        } else {
            assert_eq!(result, Err(LedgerError::PeerDead { peer: from }));
        }
    }

    fn void(&mut self, which: usize) {
        let PendingEarmark { from, bytes, nonce, .. } = self.pending[which];
        let Some(lender) = self.index_of(from) else { return };
        assert_eq!(self.participant(lender).cancel_earmark(nonce), Ok(bytes));
        self.pending.remove(which);
    }

    /// Drops pending earmarks for exited borrowers, which the lender clears from its record.
    fn clear(&mut self, a: usize) {
        self.participant(a).clear_settled().unwrap();
        let (mine, others) = (self.participant(a).peer(), [0, 1, 2].map(|at| self.participant(at).peer()));
        self.pending.retain(|one| one.from != mine || others.contains(&one.to));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn ledger_counts_match_model(operations in prop::collection::vec(operation(), 1..80)) {
        let mut model = Model::new();
        for operation in &operations {
            model.apply(operation);
        }
    }
}
