//! Any order of operations, of three participants that begin new lives at any time, against plain arithmetic.

use proptest::prelude::*;
use sluice_memory::neighbourhood::{LedgerError, Peer, Seat, TRANSFERS};

use super::stage::{CAPACITY, Stage};

/// What one of three participants does, or which of the open earmarks it is about.
#[derive(Debug, Clone)]
enum Deed {
    Reserve(usize, u64),
    Release(usize, u64),
    /// From, to, held bytes, spare bytes.
    Earmark(usize, usize, u64, u64),
    Accept(usize),
    Void(usize),
    Clear(usize),
    Restart(usize),
}

fn deed() -> impl Strategy<Value = Deed> {
    let (who, bytes, spare) = (0..3usize, 1..500u64, prop_oneof![Just(0), 1..200u64]);
    prop_oneof![
        (who.clone(), bytes.clone()).prop_map(|(a, n)| Deed::Reserve(a, n)),
        (who.clone(), bytes.clone()).prop_map(|(a, n)| Deed::Release(a, n)),
        (who.clone(), who.clone(), bytes, spare).prop_map(|(a, b, n, s)| Deed::Earmark(a, b, n, s)),
        (0..8usize).prop_map(Deed::Accept),
        (0..8usize).prop_map(Deed::Void),
        who.clone().prop_map(Deed::Clear),
        who.prop_map(Deed::Restart),
    ]
}

/// An earmark that nobody has accepted or made void: lender, borrower, bytes, nonce; lives by instance.
struct Open {
    from: Peer,
    to: Peer,
    bytes: u64,
    nonce: u64,
}

struct Model {
    stage: Stage,
    seats: Vec<Option<Seat>>,
    held: [u64; 3],
    open: Vec<Open>,
    nonces: u64,
}

impl Model {
    fn new() -> Model {
        let stage = Stage::new();
        let seats = (0..3).map(|at| Some(stage.open().join(&at.to_string(), 0, 0).unwrap())).collect();
        Model { stage, seats, held: [0; 3], open: vec![], nonces: 0 }
    }

    fn seat(&self, at: usize) -> &Seat {
        self.seats[at].as_ref().unwrap()
    }

    fn of(&self, peer: Peer) -> Option<usize> {
        (0..3).find(|at| self.seat(*at).peer() == peer)
    }

    fn counted(&self) -> u64 {
        let waiting = self.open.iter().filter(|one| self.of(one.from).is_some() && self.of(one.to).is_some());
        self.held.iter().sum::<u64>() + waiting.map(|one| one.bytes).sum::<u64>()
    }

    fn act(&mut self, deed: &Deed) {
        match *deed {
            Deed::Reserve(a, n) => {
                let fits = self.counted() + n <= CAPACITY;
                assert_eq!(self.seat(a).reserve(n).is_ok(), fits);
                self.held[a] += if fits { n } else { 0 };
            }
            Deed::Release(a, n) => {
                let n = n.min(self.held[a]);
                self.seat(a).release(n);
                self.held[a] -= n;
            }
            Deed::Earmark(a, b, n, spare) => self.earmark((a, b), n, spare),
            Deed::Accept(which) if which < self.open.len() => self.accept(which),
            Deed::Void(which) if which < self.open.len() => self.void(which),
            Deed::Accept(_) | Deed::Void(_) => {}
            Deed::Clear(a) => self.clear(a),
            Deed::Restart(a) => {
                self.stage.end(self.seats[a].take().unwrap());
                self.seats[a] = Some(self.stage.open().join(&a.to_string(), 0, 0).unwrap());
                self.held[a] = 0;
            }
        }
        assert_eq!(self.stage.open().audit().unwrap().counted_bytes, self.counted());
    }

    fn earmark(&mut self, (a, b): (usize, usize), bytes: u64, spare: u64) {
        self.nonces += 1;
        let (from, to, nonce) = (self.seat(a).peer(), self.seat(b).peer(), self.nonces);
        let possible = a != b && bytes <= self.held[a] && self.counted() + spare <= CAPACITY;
        let result = self.seat(a).earmark(&to, bytes, spare, nonce);
        // Those that nobody has cleared fill the record at last.
        if result == Err(LedgerError::TooMany { limit: TRANSFERS }) {
            return;
        }
        assert_eq!(result.is_ok(), possible);
        if possible {
            self.held[a] -= bytes;
            self.open.push(Open { from, to, bytes: bytes + spare, nonce });
        }
    }

    fn accept(&mut self, which: usize) {
        let Open { from, to, bytes, nonce } = self.open[which];
        let Some(borrower) = self.of(to) else { return };
        let result = self.seat(borrower).accept(&from, nonce, bytes);
        if self.of(from).is_some() {
            assert_eq!(result, Ok(()));
            self.held[borrower] += bytes;
            self.open.remove(which);
        } else {
            assert_eq!(result, Err(LedgerError::Gone { peer: from }));
        }
    }

    fn void(&mut self, which: usize) {
        let Open { from, bytes, nonce, .. } = self.open[which];
        let Some(lender) = self.of(from) else { return };
        assert_eq!(self.seat(lender).void(nonce), Ok(bytes));
        self.open.remove(which);
    }

    /// What is open for the dead leaves the record of the living.
    fn clear(&mut self, a: usize) {
        self.seat(a).clear().unwrap();
        let (mine, others) = (self.seat(a).peer(), [0, 1, 2].map(|at| self.seat(at).peer()));
        self.open.retain(|one| one.from != mine || others.contains(&one.to));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ledger_counts_what_plain_arithmetic_counts(deeds in prop::collection::vec(deed(), 1..80)) {
        let mut model = Model::new();
        for deed in &deeds {
            model.act(deed);
        }
    }
}
