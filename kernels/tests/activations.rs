//! The stated activation bytes are exact, monotone and enough.

use sluice_kernels::forward::{ForwardError, StepShape};
use sluice_link::model::Dtype;

use crate::agreement::{checkpoint, tokens};
use crate::memory::{Memory, Part};
use crate::specs::{DTYPES, llama, opt};

#[test]
fn exactly_the_stated_bytes_are_enough_and_one_less_is_refused() {
    for spec in DTYPES.into_iter().flat_map(|dtype| [llama(dtype), opt(dtype)]) {
        let mut memory = Memory::new(&spec, &checkpoint(&spec), 9);
        let blocks: Vec<u32> = (0..9).collect();
        for (count, rows, threads) in [(1, 1, 1), (1, 0, 2), (33, 1, 2), (33, 33, 3)] {
            let model = memory.model(threads);
            let tokens = tokens(count, 1, &spec);
            let part = Part { start: 0, tokens: &tokens, blocks: &blocks, columns: 3, rows };
            let shape = StepShape { tokens: count, sequences: 1, logit_rows: rows };
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
    let cost = memory.model(1).activation_cost();
    assert!(cost.per_token_bytes >= 4 * u64::from(2 * spec.hidden + spec.intermediate));
    assert!(
        cost.per_logit_row_bytes >= 8 * u64::from(spec.vocab),
        "logits and the scratch of their sampling"
    );
    assert!(memory.model(2).activation_cost().fixed_bytes > cost.fixed_bytes, "each thread has its scratch");
}
