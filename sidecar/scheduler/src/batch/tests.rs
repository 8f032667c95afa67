//! Tests that no sequence starves, for any request mix and step size.

use proptest::prelude::*;
use sluice_policy::ids::Nanos;

use super::Batch;
use crate::event::Request;
use crate::sequence::Sequence;
use crate::step_request::StepRequest;

fn sequence(id: u64, prompt_tokens: usize) -> Sequence {
    let request = Request { max_tokens: u32::MAX / 2, ..Request::of_test(id, prompt_tokens) };
    Sequence::new(request, Nanos(0))
}

/// Applies a step to the sequences in its batch.
fn serve(running: &mut [Sequence], batch: &Batch, step: u64) {
    for sequence in running {
        let Some(part) = batch.scheduled_tokens(sequence.id()) else { continue };
        sequence.last_step = step;
        sequence.computed_tokens += part.tokens;
        if part.samples {
            let _ = sequence.accept(7);
        }
    }
}

fn check_batch(batch: &Batch, max_tokens: u32) {
    let shape = batch.shape();
    assert!((1..=max_tokens).contains(&shape.tokens), "{shape:?}");
    assert!(batch.scheduled.iter().all(|part| part.tokens > 0));
    assert!(batch.scheduled.is_sorted_by_key(|part| part.request), "parts come in the order of admission");
}

proptest! {
    #[test]
    fn every_running_sequence_is_served_within_as_many_steps_as_sequences_run(
        prompts in prop::collection::vec(1_usize..200, 1..12),
        budgets in prop::collection::vec(1_u32..16, 1..8),
    ) {
        let mut running: Vec<_> = prompts.iter().zip(0..).map(|(tokens, id)| sequence(id, *tokens)).collect();
        for (step, max_tokens) in (1..200).zip(budgets.into_iter().cycle()) {
            let batch = Batch::plan(running.iter().map(StepRequest::running), max_tokens);
            check_batch(&batch, max_tokens);
            serve(&mut running, &batch, step);
            let longest = running.iter().map(|s| step - s.last_step).max().unwrap_or(0);
            prop_assert!(longest < running.len() as u64, "step {step}: a sequence waited {longest} steps");
        }
    }
}

#[test]
fn with_room_for_all_decodes_run_and_the_oldest_prompt_goes_on() {
    let mut running = vec![sequence(1, 100), sequence(2, 1), sequence(3, 100), sequence(4, 1)];
    let batch = Batch::plan(running.iter().map(StepRequest::running), 64);
    let tokens = |batch: &Batch| batch.scheduled.iter().map(|p| (p.request.0, p.tokens)).collect::<Vec<_>>();
    assert_eq!(tokens(&batch), [(1, 62), (2, 1), (4, 1)]);
    serve(&mut running, &batch, 1);
    assert_eq!(
        tokens(&Batch::plan(running.iter().map(StepRequest::running), 200)),
        [(1, 38), (2, 1), (3, 100), (4, 1)]
    );
}
