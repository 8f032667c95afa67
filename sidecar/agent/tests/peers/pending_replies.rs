//! Tests that requests of peers become scheduler events, and scheduler messages become replies.

use std::sync::Arc;

use sluice_agent::peers::pending_replies::PendingReplies;
use sluice_memory::gpu_ledger::{GpuLedger, LedgerIdentity, ParticipantHandle, current_boot_id};
use sluice_policy::loan_negotiator::PeerEvent;
use sluice_policy::peers::Peer;
use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_policy::peers::loans::Nonce;
use sluice_wire::grants::{GrantAnswer, GrantRequest, Participant, RefusalReason, RevokeReason};
use tempfile::TempDir;
use tokio::sync::oneshot::{Receiver, channel};

pub const CHUNK: u64 = 4096;

/// Joins `names` to one GPU, in namespace `default`.
pub fn participants<const N: usize>(names: [&str; N]) -> (TempDir, [Arc<ParticipantHandle>; N]) {
    let folder = TempDir::new().expect("a folder");
    let participants = names.map(|name| Arc::new(join(&folder, name)));
    (folder, participants)
}

/// Joins a new instance of `name`.
pub fn join(folder: &TempDir, name: &str) -> ParticipantHandle {
    let ledger = GpuLedger::open(folder.path(), &identity()).expect("a ledger");
    ledger.join(&format!("default/{name}"), 0, 30 * CHUNK).expect("a place")
}

/// Returns the GPU's identity.
pub fn identity() -> LedgerIdentity {
    let boot_id = current_boot_id().expect("the boot id");
    LedgerIdentity { boot_id, claim_id: "c".into(), capacity_bytes: 100 * CHUNK, chunk_bytes: CHUNK }
}

/// Returns the form in which messages name it.
pub fn participant(name: &str, Peer { index, instance }: Peer) -> Participant {
    Participant { namespace: "default".into(), name: name.into(), index, instance }
}

fn asked(replies: &PendingReplies, request: GrantRequest) -> (Vec<PeerEvent>, Receiver<GrantAnswer>) {
    let (answer, reply) = channel();
    (replies.on_request(request, answer), reply)
}

#[test]
fn renewal_answers_all_grants_from_loan_book() {
    let (_folder, [lender, borrower]) = participants(["story", "code"]);
    let replies = PendingReplies::new(lender, "default", "story", CHUNK);
    let peer = borrower.peer();
    let renew = |nonces: &[u64]| GrantRequest::Renew {
        borrower: participant("code", peer),
        nonces: nonces.to_vec(),
        ttl_ms: 900,
    };
    let (news, mut reply) = asked(&replies, renew(&[3, 4]));
    let expected =
        [3, 4].map(|nonce| PeerEvent::Prolonged { peer, nonce: Nonce(nonce), ttl_ns: 900_000_000 });
    assert_eq!(news, expected);
    replies.reply_renewal(peer, Nonce(4), 700_000_000);
    assert!(reply.try_recv().is_err(), "there is no message about the other one");
    replies.reply_renewal(peer, Nonce(3), 0);
    assert_eq!(reply.try_recv(), Ok(GrantAnswer::Renewed { nonces: vec![4], ttl_ms: 700 }));

    let (_, mut reply) = asked(&replies, renew(&[5]));
    replies.reply_renewal(peer, Nonce(5), 0);
    let refused = GrantAnswer::refused(RefusalReason::UnknownGrant);
    assert_eq!(reply.try_recv(), Ok(refused), "a loan that is not in the book does not live on");
}

#[test]
fn restarted_instance_reclaims_share() {
    let (_folder, [holder, newcomer]) = participants(["story", "code"]);
    let replies = PendingReplies::new(holder, "default", "story", CHUNK);
    let (peer, nonce) = (newcomer.peer(), newcomer.instance());
    let revoke =
        |nonce, why| GrantRequest::Revoke { lender: participant("code", peer), nonce, bytes: 8 * CHUNK, why };
    let (news, mut reply) = asked(&replies, revoke(nonce, RevokeReason::FloorNeeded));
    assert_eq!(news, [PeerEvent::Claimed { peer, nonce: Nonce(nonce), chunks: 8 }]);
    replies.reply_debt(peer, Nonce(nonce), 5, 200_000_000);
    assert_eq!(reply.try_recv(), Ok(GrantAnswer::Returning { nonce, bytes: 5 * CHUNK, within_ms: 200 }));
    let (_, mut reply) = asked(&replies, revoke(nonce, RevokeReason::FloorNeeded));
    replies.reply_debt(peer, Nonce(nonce), 0, 200_000_000);
    assert_eq!(reply.try_recv(), Ok(GrantAnswer::refused(RefusalReason::UnknownGrant)));
    let (news, _) = asked(&replies, revoke(77, RevokeReason::LenderActive));
    assert_eq!(news, [PeerEvent::Revoked { peer, nonce: Nonce(77), chunks: 8 }]);
}

#[test]
fn request_in_own_name_is_refused() {
    let (_folder, [lender, _borrower]) = participants(["story", "code"]);
    let own = participant("story", lender.peer());
    let replies = PendingReplies::new(lender, "default", "story", CHUNK);
    let requests = [
        GrantRequest::Ask { borrower: own.clone(), nonce: 1, bytes: CHUNK, ttl_ms: 900 },
        GrantRequest::Revoke { lender: own, nonce: 1, bytes: CHUNK, why: RevokeReason::LenderActive },
    ];
    for request in requests {
        let (news, mut reply) = asked(&replies, request);
        assert_eq!(news, [], "the scheduler hears nothing of it");
        assert_eq!(reply.try_recv(), Ok(GrantAnswer::refused(RefusalReason::UnknownPeer)));
    }
}

#[test]
fn denied_request_reports_reason_and_backoff() {
    let (_folder, [lender, borrower]) = participants(["story", "code"]);
    let replies = PendingReplies::new(lender, "default", "story", CHUNK);
    let (peer, borrower) = (borrower.peer(), participant("code", borrower.peer()));
    let residence = LoanDenied::MinResidence { left_ns: 20_500_000 };
    let after = |after_ms| GrantAnswer::Refused { reason: RefusalReason::MinResidence, after_ms };
    let floor = GrantAnswer::refused(RefusalReason::AtFloor);
    for (nonce, why, answer) in [(1, LoanDenied::AtFloor, floor), (2, residence, after(Some(21)))] {
        let ask = GrantRequest::Ask { borrower: borrower.clone(), nonce, bytes: CHUNK, ttl_ms: 900 };
        let (_, mut reply) = asked(&replies, ask);
        replies.reply_refused(peer, Nonce(nonce), why);
        assert_eq!(reply.try_recv(), Ok(answer));
    }
    assert_eq!(replies.pending_count(), 0);
}

#[test]
fn abandoned_request_is_dropped() {
    let (_folder, [lender, borrower]) = participants(["story", "code"]);
    let replies = PendingReplies::new(lender, "default", "story", CHUNK);
    let (peer, who) = (borrower.peer(), participant("code", borrower.peer()));
    let ask = |nonce| GrantRequest::Ask { borrower: who.clone(), nonce, bytes: CHUNK, ttl_ms: 900 };
    let (_, _reply) = asked(&replies, ask(1));
    let (news, _) = asked(&replies, GrantRequest::Cancel { borrower: who.clone(), nonce: 1 });
    assert_eq!(news, [PeerEvent::Withdrawn { peer, nonce: Nonce(1) }]);
    assert_eq!(replies.pending_count(), 0, "it was withdrawn");
    assert!(!replies.reply_granted(peer, Nonce(1), 1, 1), "what was promised since then is taken back");
    for nonce in 2..10 {
        let (_, reply) = asked(&replies, ask(nonce));
        drop(reply);
    }
    assert_eq!(replies.pending_count(), 1, "the asker has gone");
}
