//! Why a neighbour lends nothing: the policy's word as the wire's, and back.

use sluice_policy::peers::loan_denied::LoanDenied;
use sluice_wire::grants::{GrantAnswer, MAX_TTL_MS, RefusalReason};

use super::{ms, ns};

/// The answer of a lender that gives nothing.
pub fn to_answer(why: LoanDenied) -> GrantAnswer {
    match why {
        LoanDenied::Active => GrantAnswer::refused(RefusalReason::Active),
        LoanDenied::MinResidence { left_ns } => GrantAnswer::Refused {
            reason: RefusalReason::MinResidence,
            // A rest of less than a millisecond is none on the wire.
            after_ms: Some(ms(left_ns).saturating_add(1).min(MAX_TTL_MS)),
        },
        LoanDenied::AtCap => GrantAnswer::refused(RefusalReason::AtCap),
        LoanDenied::AtFloor => GrantAnswer::refused(RefusalReason::AtFloor),
        LoanDenied::Nothing => GrantAnswer::refused(RefusalReason::Nothing),
        LoanDenied::Busy => GrantAnswer::refused(RefusalReason::Busy),
        LoanDenied::NotTraded => GrantAnswer::refused(RefusalReason::NotTraded),
    }
}

/// What an answer to an ask says of why nothing is lent; none for one that says nothing of that: whoever takes the asker for
/// a stranger answers as if it were silent.
pub fn from_answer(answer: &GrantAnswer) -> Option<LoanDenied> {
    let GrantAnswer::Refused { reason, after_ms } = answer else { return None };
    match reason {
        RefusalReason::Active => Some(LoanDenied::Active),
        // Whoever does not say for how long means all of the directive's time, which bounds it.
        RefusalReason::MinResidence => {
            Some(LoanDenied::MinResidence { left_ns: after_ms.map_or(u64::MAX, ns) })
        }
        RefusalReason::AtCap => Some(LoanDenied::AtCap),
        RefusalReason::AtFloor => Some(LoanDenied::AtFloor),
        RefusalReason::Nothing | RefusalReason::UnknownGrant => Some(LoanDenied::Nothing),
        RefusalReason::Busy => Some(LoanDenied::Busy),
        RefusalReason::NotTraded => Some(LoanDenied::NotTraded),
        RefusalReason::UnknownNeighbour => None,
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
        for (left_ns, told_ms) in [(1, 1), (999_999, 1), (1_000_000, 2), (u64::MAX, MAX_TTL_MS)] {
            let told = to_answer(LoanDenied::MinResidence { left_ns });
            let expected =
                GrantAnswer::Refused { reason: RefusalReason::MinResidence, after_ms: Some(told_ms) };
            assert_eq!(told, expected);
            assert_eq!(from_answer(&told), Some(LoanDenied::MinResidence { left_ns: told_ms * 1_000_000 }));
        }
        let older = GrantAnswer::refused(RefusalReason::MinResidence);
        assert_eq!(from_answer(&older), Some(LoanDenied::MinResidence { left_ns: u64::MAX }));
    }

    #[test]
    fn unknown_peer_answer_has_no_denial() {
        assert_eq!(from_answer(&GrantAnswer::refused(RefusalReason::UnknownNeighbour)), None);
        assert_eq!(from_answer(&GrantAnswer::Cancelled { nonce: 1 }), None);
    }
}
