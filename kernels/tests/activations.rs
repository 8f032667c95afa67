//! The activation cost is exact, monotone and sufficient.

use sluice_kernels::forward::{ForwardError, StepShape};
use sluice_link::model::Dtype;

use crate::agreement::{checkpoint, tokens};
use crate::memory::{Memory, TestSequence};
use crate::specs::{DTYPES, llama, opt};

#[test]
fn exactly_the_stated_bytes_are_enough_and_one_less_is_refused() {
    for spec in DTYPES.into_iter().flat_map(|dtype| [llama(dtype), opt(dtype)]) {
        let mut memory = Memory::new(&spec, &checkpoint(&spec), 9);
        let layer_blocks: Vec<u32> = (0..9).collect();
        for (count, rows, threads, chunk) in [
            (1, 1, 1, 8),
            (1, 0, 2, 1),
            (33, 1, 2, 33),
            (33, 33, 3, 64),
            (33, 1, 2, 32),
            (33, 33, 1, 5),
            (33, 0, 3, 1),
        ] {
            let model = memory.model(threads).in_chunks_of(chunk);
            let tokens = tokens(count, 1, &spec);
            let part =
                TestSequence { start: 0, tokens: &tokens, layer_blocks: &layer_blocks, kv_blocks: 3, rows };
            let shape = StepShape { tokens: count as u32, sequences: 1, logit_rows: rows as u32 };
            let needed_bytes = model.activation_cost().bytes(shape);
            let refused = memory.run_within(&model, std::slice::from_ref(&part), needed_bytes - 1);
            let limit_bytes = needed_bytes - 1;
            assert_eq!(refused, Err(ForwardError::ActivationLimit { needed_bytes, limit_bytes }));
            let logits = memory.run_within(&model, &[part], needed_bytes).unwrap();
            assert!(logits.iter().flatten().all(|logit| logit.is_finite()), "poison reached the logits");
            assert_eq!(logits.len(), rows);
        }
    }
}

#[test]
fn the_cost_grows_with_every_part_of_the_shape() {
    let spec = llama(Dtype::F32);
    let memory = Memory::new(&spec, &checkpoint(&spec), 1);
    let cost = memory.model(1).in_chunks_of(16).activation_cost();
    assert!(cost.stream_per_token_bytes >= 4 * u64::from(spec.hidden + spec.head_dim));
    assert!(cost.chunk_per_token_bytes >= 4 * u64::from(spec.hidden + spec.intermediate));
    assert_eq!(cost.chunk_tokens, 16);
    assert!(
        cost.per_logit_row_bytes >= 8 * u64::from(spec.vocab),
        "logits and the scratch of their sampling"
    );
    let tokens = |tokens| cost.bytes(StepShape { tokens, sequences: 1, logit_rows: 0 });
    let grown: Vec<_> = (0..40).map(|count| tokens(count + 1) - tokens(count)).collect();
    let (stream, both) =
        (cost.stream_per_token_bytes, cost.stream_per_token_bytes + cost.chunk_per_token_bytes);
    assert!(grown[..16].iter().all(|more| *more == both), "{grown:?}");
    assert!(
        grown[16..].iter().all(|more| *more == stream),
        "beyond one chunk only the stream grows: {grown:?}"
    );
    assert!(memory.model(2).activation_cost().fixed_bytes > cost.fixed_bytes, "each thread has its scratch");
}
