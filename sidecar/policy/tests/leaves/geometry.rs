//! Tests activation bytes by shape, and the inverse.

use proptest::prelude::*;
use sluice_policy::geometry::{ActivationCost, StepShape};

fn cost() -> impl Strategy<Value = ActivationCost> {
    (0..10_000u64, 1..500u64, 0..5_000u64, 1..100u32, 0..50u64, 0..900u64).prop_map(|of| ActivationCost {
        fixed_bytes: of.0,
        stream_per_token_bytes: of.1,
        chunk_per_token_bytes: of.2,
        chunk_tokens: of.3,
        per_sequence_bytes: of.4,
        per_logit_row_bytes: of.5,
    })
}

proptest! {
    #[test]
    fn max_tokens_fit_exactly(
        cost in cost(),
        bytes in 0..2_000_000u64,
        sequences in 0..9u32,
        logit_rows in 0..9u32,
    ) {
        let of = |tokens| cost.bytes(StepShape { tokens, sequences, logit_rows });
        let max = cost.max_tokens(bytes, StepShape { tokens: 77, sequences, logit_rows });
        prop_assert!(of(max) <= bytes || max == 0);
        prop_assert!(of(max + 1) > bytes);
    }

    #[test]
    fn more_of_anything_never_costs_less(cost in cost(), tokens in 0..300u32, more in 0..300u32) {
        let of = |tokens, sequences| cost.bytes(StepShape { tokens, sequences, logit_rows: 1 });
        prop_assert!(of(tokens, 1) <= of(tokens + more, 1));
        prop_assert!(of(tokens, 1) <= of(tokens, 1 + more));
    }
}

#[test]
fn extreme_numbers_do_not_overflow() {
    let cost = ActivationCost {
        fixed_bytes: u64::MAX,
        stream_per_token_bytes: u64::MAX,
        chunk_per_token_bytes: u64::MAX,
        chunk_tokens: u32::MAX,
        per_sequence_bytes: u64::MAX,
        per_logit_row_bytes: u64::MAX,
    };
    let shape = StepShape { tokens: u32::MAX, sequences: u32::MAX, logit_rows: u32::MAX };
    assert_eq!(cost.bytes(shape), u64::MAX);
    assert_eq!(cost.max_tokens(1 << 40, shape), 0);
    assert_eq!(ActivationCost::default().max_tokens(0, shape), u32::MAX, "an engine without any activations");
}
