//! Converts reasons for a denied loan between policy and wire.

use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_wire::grants::{GrantAnswer, MAX_TTL_MS, RefusalReason};

use super::{ms, ns};

/// Returns the answer of a lender that lends nothing.
pub fn to_answer(why: LoanDenied) -> GrantAnswer {
    match why {
        LoanDenied::Active => GrantAnswer::refused(RefusalReason::Active),
        LoanDenied::MinResidence { left_ns } => GrantAnswer::Refused {
            reason: RefusalReason::MinResidence,
            // The conversion rounds down, so add a millisecond.
            after_ms: Some(ms(left_ns).saturating_add(1).min(MAX_TTL_MS)),
        },
        LoanDenied::AtCap => GrantAnswer::refused(RefusalReason::AtCap),
        LoanDenied::AtFloor => GrantAnswer::refused(RefusalReason::AtFloor),
        LoanDenied::Nothing => GrantAnswer::refused(RefusalReason::Nothing),
        LoanDenied::Busy => GrantAnswer::refused(RefusalReason::Busy),
        LoanDenied::NotTraded => GrantAnswer::refused(RefusalReason::NotTraded),
    }
}

/// Returns why an answer to an ask denies the loan. `None` if it states no such reason: a lender that does not know the
/// borrower counts as one that did not answer.
pub fn from_answer(answer: &GrantAnswer) -> Option<LoanDenied> {
    let GrantAnswer::Refused { reason, after_ms } = answer else { return None };
    match reason {
        RefusalReason::Active => Some(LoanDenied::Active),
        // Without a time, the maximum applies. The directive's minimum residence bounds it.
        RefusalReason::MinResidence => {
            Some(LoanDenied::MinResidence { left_ns: after_ms.map_or(u64::MAX, ns) })
        }
        RefusalReason::AtCap => Some(LoanDenied::AtCap),
        RefusalReason::AtFloor => Some(LoanDenied::AtFloor),
        RefusalReason::Nothing | RefusalReason::UnknownGrant => Some(LoanDenied::Nothing),
        RefusalReason::Busy => Some(LoanDenied::Busy),
        RefusalReason::NotTraded => Some(LoanDenied::NotTraded),
        RefusalReason::UnknownPeer => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_reasons_round_trip() {
        let words = [LoanDenied::Active, LoanDenied::AtCap, LoanDenied::AtFloor, LoanDenied::Nothing];
        for why in words.into_iter().chain([LoanDenied::Busy, LoanDenied::NotTraded]) {
            assert_eq!(from_answer(&to_answer(why)), Some(why));
        }
    }

    #[test]
    fn min_residence_rounds_up_to_milliseconds() {
        for (left_ns, after_ms) in [(1, 1), (999_999, 1), (1_000_000, 2), (u64::MAX, MAX_TTL_MS)] {
            let answer = to_answer(LoanDenied::MinResidence { left_ns });
            let expected =
                GrantAnswer::Refused { reason: RefusalReason::MinResidence, after_ms: Some(after_ms) };
            assert_eq!(answer, expected);
            assert_eq!(
                from_answer(&answer),
                Some(LoanDenied::MinResidence { left_ns: after_ms * 1_000_000 })
            );
        }
        let older = GrantAnswer::refused(RefusalReason::MinResidence);
        assert_eq!(from_answer(&older), Some(LoanDenied::MinResidence { left_ns: u64::MAX }));
    }

    #[test]
    fn unknown_peer_answer_has_no_denial() {
        assert_eq!(from_answer(&GrantAnswer::refused(RefusalReason::UnknownPeer)), None);
        assert_eq!(from_answer(&GrantAnswer::Cancelled { nonce: 1 }), None);
    }
}
