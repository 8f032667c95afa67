//! Tests the negotiator against a stand-in of the tenant's loans: no memory manager.

use alloc::vec;
use alloc::vec::Vec;

use super::{LoanControl, LoanNegotiator, LoanState, NegotiationPolicy, PeerCommand, PeerEvent};
use crate::action::{Action, Earmark};
use crate::ids::Nanos;
use crate::loans::audit::LoanAudit;
use crate::loans::{TransferKind, TransferResult};
use crate::peers::Peer;
use crate::peers::loan_denied::LoanDenied;
use crate::peers::loans::{LoanBook, Nonce};
use crate::peers::victim::NextUseEstimate;
use crate::reason::Reason;

const ME: Peer = Peer { index: 0, instance: 1 };
const PEER: Peer = Peer { index: 1, instance: 1 };
const NOW: Nanos = Nanos(1_000_000_000);

/// Loans of a tenant with a share of 40 chunks and a floor of 30, which writes down what it is called with.
struct FakeLoans {
    state: LoanState,
    lendable: Result<u32, LoanDenied>,
    borrow_request: Option<u32>,
    unused: u32,
    results: Vec<TransferResult>,
    queued: Vec<(Earmark, u32, TransferKind)>,
    counted: Vec<Reason>,
    accepted: Vec<(Earmark, u32, TransferKind)>,
    recovered: u32,
    awaits_loans: bool,
}

impl FakeLoans {
    fn new() -> FakeLoans {
        FakeLoans {
            state: LoanState {
                share: 40,
                floor: 30,
                expected: 0,
                over_lent: 0,
                is_active: false,
                is_whole: false,
                wants_layers: false,
                is_blocked: false,
                next_use: NextUseEstimate::default(),
            },
            lendable: Ok(10),
            borrow_request: None,
            unused: 0,
            results: Vec::new(),
            queued: Vec::new(),
            counted: Vec::new(),
            accepted: Vec::new(),
            recovered: 0,
            awaits_loans: false,
        }
    }
}

impl LoanControl for FakeLoans {
    fn state(&self) -> LoanState {
        self.state
    }

    fn borrow_request(&self) -> Option<u32> {
        self.borrow_request
    }

    fn useful_loan_size(&self, max: u32) -> u32 {
        max
    }

    fn lendable(&self) -> Result<u32, LoanDenied> {
        self.lendable
    }

    fn debt_chunks(&self, earmark: Earmark) -> u32 {
        let same = |one: &&(Earmark, u32, TransferKind)| one.0 == earmark && one.2 == TransferKind::Return;
        self.queued.iter().filter(same).map(|one| one.1).sum()
    }

    fn is_lending(&self, _: Nonce) -> bool {
        false
    }

    fn count(&mut self, reason: Reason) {
        self.counted.push(reason);
    }

    fn on_borrow_denied(&mut self) {
        self.borrow_request = None;
    }

    fn set_awaits_loans(&mut self, waits: bool) {
        self.awaits_loans = waits;
    }

    fn queue_transfer(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind) {
        self.queued.push((earmark, chunks, kind));
    }

    fn cancel_loan(&mut self, earmark: Earmark) -> bool {
        let before = self.queued.len();
        self.queued.retain(|one| one.0 != earmark);
        self.queued.len() < before
    }

    fn accept(&mut self, earmark: Earmark, chunks: u32, kind: TransferKind, _: &mut Vec<Action>) {
        self.accepted.push((earmark, chunks, kind));
    }

    fn take_transfer_results(&mut self) -> Vec<TransferResult> {
        core::mem::take(&mut self.results)
    }

    fn recover_share(&mut self, chunks: u32) {
        self.recovered += chunks;
    }

    fn unused_loan(&mut self) -> u32 {
        core::mem::take(&mut self.unused)
    }
}

fn negotiator() -> LoanNegotiator {
    LoanNegotiator::new(LoanBook::new(ME, 40, 30), NegotiationPolicy::default())
}

fn earmark(nonce: u64) -> Earmark {
    Earmark { peer: PEER, nonce: Nonce(nonce) }
}

/// A peer asks for `chunks`.
fn ask(negotiator: &mut LoanNegotiator, loans: &mut FakeLoans, nonce: u64, chunks: u32) -> Vec<PeerCommand> {
    let event = PeerEvent::Asked { peer: PEER, nonce: Nonce(nonce), chunks, ttl_ns: 1000 };
    negotiator.on_event(NOW, event, loans);
    negotiator.take_commands()
}

fn refused(nonce: u64, why: LoanDenied) -> Vec<PeerCommand> {
    vec![PeerCommand::Refuse { peer: PEER, nonce: Nonce(nonce), why }]
}

#[test]
fn a_loan_is_queued_and_answered_when_it_is_earmarked() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    assert_eq!(ask(&mut negotiator, &mut loans, 1, 12), []);
    assert_eq!(loans.queued, [(earmark(1), 10, TransferKind::Lend)], "at most what can be lent");
    loans.results =
        vec![TransferResult::Granted { earmark: earmark(1), chunks: 10, kind: TransferKind::Lend }];
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    let commands = negotiator.take_commands();
    assert!(matches!(commands[..], [PeerCommand::Answer { peer: PEER, nonce: Nonce(1), chunks: 10, .. }]));
}

#[test]
fn each_refusal_names_its_own_reason() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    assert_eq!(ask(&mut negotiator, &mut loans, 1, 0), refused(1, LoanDenied::Nothing), "of zero chunks");
    loans.lendable = Ok(11);
    assert_eq!(ask(&mut negotiator, &mut loans, 2, 11), refused(2, LoanDenied::AtFloor), "below the floor");
    assert_eq!(ask(&mut negotiator, &mut loans, 3, 5), []);
    assert_eq!(ask(&mut negotiator, &mut loans, 3, 5), refused(3, LoanDenied::Busy), "answered before");
    loans.lendable = Err(LoanDenied::AtCap);
    assert_eq!(ask(&mut negotiator, &mut loans, 4, 5), refused(4, LoanDenied::AtCap), "as the tenant says");
    let reasons = [Reason::RefusedNothing, Reason::RefusedAtFloor, Reason::RefusedBusy, Reason::RefusedAtCap];
    assert_eq!(loans.counted, reasons);
    assert_eq!(loans.queued.len(), 1);
}

#[test]
fn a_restored_lender_keeps_its_layers_for_a_while() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    loans.state.is_whole = true;
    let left_ns = NegotiationPolicy::default().min_residence_ns;
    assert_eq!(ask(&mut negotiator, &mut loans, 1, 5), refused(1, LoanDenied::MinResidence { left_ns }));
}

#[test]
fn a_withdrawn_loan_is_cancelled_or_taken_back() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    for nonce in [1, 2] {
        ask(&mut negotiator, &mut loans, nonce, 2);
    }
    loans.queued.remove(0);
    for nonce in [1, 2].map(Nonce) {
        negotiator.on_event(NOW, PeerEvent::Withdrawn { peer: PEER, nonce }, &mut loans);
    }
    assert_eq!(negotiator.take_commands(), [PeerCommand::TakeBack { peer: PEER, nonce: Nonce(1) }]);
    assert_eq!((loans.queued.len(), negotiator.book().lent_out()), (0, 2));
}

#[test]
fn a_lender_that_lacks_layers_revokes_and_waits_within_the_bound() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    ask(&mut negotiator, &mut loans, 1, 5);
    loans.state.wants_layers = true;
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    let commands = negotiator.take_commands();
    assert!(matches!(commands[..], [PeerCommand::Revoke { nonce: Nonce(1), chunks: 5, .. }]));
    assert!(loans.awaits_loans && negotiator.revoking());
    let bound_ns = NegotiationPolicy::default().revoke_bound_ns;
    negotiator.boundary(NOW.plus(bound_ns), &mut loans, &mut Vec::new());
    assert!(!loans.awaits_loans, "the borrower is late");
}

#[test]
fn a_returned_loan_is_accepted_once_nothing_is_pending() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    ask(&mut negotiator, &mut loans, 1, 5);
    loans.state.is_blocked = true;
    negotiator.on_event(NOW, PeerEvent::Returned { peer: PEER, nonce: Nonce(1), chunks: 5 }, &mut loans);
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    assert_eq!(loans.accepted, []);
    loans.state.is_blocked = false;
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    assert_eq!(loans.accepted, [(earmark(1), 5, TransferKind::Return)]);
    loans.results = vec![TransferResult::Accepted { earmark: earmark(1), chunks: 5 }];
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    assert_eq!(negotiator.book().lent_out(), 0);
}

#[test]
fn an_exited_borrower_gives_its_chunks_back_to_the_share() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    ask(&mut negotiator, &mut loans, 1, 5);
    // The first loan is made, the second one still waits.
    loans.queued.clear();
    ask(&mut negotiator, &mut loans, 2, 3);
    negotiator.on_event(NOW, PeerEvent::Died(PEER), &mut loans);
    assert_eq!((loans.recovered, negotiator.book().lent_out()), (5, 0));
    assert_eq!(loans.queued, []);
}

#[test]
fn a_refused_search_ends_the_demand() {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    loans.borrow_request = Some(4);
    negotiator.boundary(NOW, &mut loans, &mut Vec::new());
    assert_eq!(negotiator.take_commands(), [PeerCommand::Survey]);
    negotiator.on_event(NOW, PeerEvent::Survey(Vec::new()), &mut loans);
    assert_eq!((loans.borrow_request, negotiator.take_commands()), (None, vec![]));
}

/// The audit of a lender of `lent` chunks.
fn lender(lent: u32) -> LoanAudit {
    LoanAudit { lent, borrowed: 0, outgoing: Vec::new(), unread: Vec::new() }
}

/// A negotiator whose book has one loan of five chunks, given to a peer.
fn with_loan() -> LoanNegotiator {
    let (mut negotiator, mut loans) = (negotiator(), FakeLoans::new());
    ask(&mut negotiator, &mut loans, 1, 5);
    negotiator
}

#[test]
fn book_and_balance_agree_at_every_stage_of_a_loan() {
    let negotiator = with_loan();
    let (earmark, chunks, kind) = (earmark(1), 5, TransferKind::Lend);
    let promised = LoanAudit { outgoing: vec![(earmark, chunks, kind)], ..lender(0) };
    negotiator.check(&promised);
    let unread = |lent, result| LoanAudit { unread: vec![result], ..lender(lent) };
    negotiator.check(&unread(0, TransferResult::Refused { earmark, chunks, kind }));
    negotiator.check(&unread(5, TransferResult::Granted { earmark, chunks, kind }));
    negotiator.check(&lender(5));
}

#[test]
#[should_panic(expected = "loans given, as executed and in the book")]
fn check_detects_a_loan_that_only_the_book_has() {
    with_loan().check(&lender(0));
}

#[test]
#[should_panic(expected = "loans taken, as executed and in the book")]
fn check_detects_borrowed_chunks_without_a_loan() {
    negotiator().check(&LoanAudit { borrowed: 3, ..lender(0) });
}
