//! Tests that out-of-range input is rejected by name before any write.

use std::ops::ControlFlow;

use sluice_kernels::forward::{
    Batch, BlockTable, ForwardError, LayerHooks, Model, ModelError, RangeParts, Ranges, Sequence,
    SequenceError, StepShape,
};
use sluice_link::model::{Dtype, ModelSpec};

use crate::agreement::{checkpoint, tokens};
use crate::memory::{Bytes, Memory, TestSequence};
use crate::specs::llama;

fn refused(change: impl Fn(&mut TestSequence<'_>)) -> SequenceError {
    let spec = llama(Dtype::Bf16);
    let mut memory = Memory::new(&spec, &checkpoint(&spec), 6);
    let tokens = tokens(20, 1, &spec);
    let mut part =
        TestSequence { start: 0, tokens: &tokens, layer_blocks: &[0, 1, 2, 3, 4, 5], kv_blocks: 2, rows: 1 };
    let model = memory.model(2);
    change(&mut part);
    let error = memory.run(&model, &[part]).unwrap_err();
    assert!(memory.kv.as_slice().iter().all(|byte| *byte == 0xff), "KV was written before {error}");
    match error {
        ForwardError::Sequence { sequence: 0, problem } => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn tokens_beyond_the_vocabulary_are_refused() {
    let error = refused(|part| part.tokens = &[1, 300]);
    assert_eq!(error, SequenceError::TokenOutOfRange { index: 1, token: 300, vocab: 300 });
}

#[test]
fn layer_blocks_beyond_the_arena_are_refused() {
    let error = refused(|part| part.layer_blocks = &[0, 1, 2, 6, 4, 5]);
    let expected =
        SequenceError::LayerBlockOutOfRange { layer: 1, kv_block: 1, layer_block: 6, layer_blocks: 6 };
    assert_eq!(error, expected);
}

#[test]
fn a_layer_block_table_that_ends_early_is_refused() {
    let error = refused(|part| part.layer_blocks = &[0, 1, 2, 3, 4]);
    assert_eq!(error, SequenceError::LayerBlockMissing { layer: 2, kv_block: 1 });
}

#[test]
fn positions_beyond_the_model_are_refused() {
    let error = refused(|part| part.start = 250);
    assert_eq!(error, SequenceError::PositionOutOfRange { position: 269, max_positions: 256 });
    let error = refused(|part| part.start = u32::MAX as usize);
    assert!(matches!(error, SequenceError::PositionOutOfRange { .. }));
}

#[test]
fn empty_sequences_and_too_many_rows_are_refused() {
    assert_eq!(refused(|part| part.tokens = &[]), SequenceError::Empty);
    let error = refused(|part| part.rows = 21);
    assert_eq!(error, SequenceError::TooManyLogitRows { wanted: 21, tokens: 20 });
}

#[test]
fn shapes_that_cannot_be_computed_are_refused() {
    let spec = llama(Dtype::F32);
    let refused = |spec: ModelSpec, chunk_bytes| Model::new(spec, chunk_bytes, 1).err().unwrap();
    let shape = |change: &dyn Fn(&mut ModelSpec)| {
        let mut spec = spec.clone();
        change(&mut spec);
        refused(spec, 1 << 21)
    };
    assert!(matches!(shape(&|spec| spec.head_dim = 7), ModelError::Shape(_)));
    assert!(matches!(shape(&|spec| spec.kv_heads = 4), ModelError::Shape(_)));
    assert!(matches!(shape(&|spec| spec.layers = 0), ModelError::Shape(_)));
    let layer_block_bytes = spec.layer_block_bytes();
    let error = refused(spec, layer_block_bytes - 1);
    assert_eq!(
        error,
        ModelError::LayerBlockExceedsChunk { layer_block_bytes, chunk_bytes: layer_block_bytes - 1 }
    );
}

/// Records calls and stops before a layer.
struct StopHook(usize, Vec<String>);

impl LayerHooks for StopHook {
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()> {
        self.1.push(format!("before {layer}"));
        if layer == self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn after_layer(&mut self, layer: usize, elapsed_ns: u64) {
        assert!(elapsed_ns > 0);
        self.1.push(format!("after {layer}"));
    }
}

#[test]
fn a_hook_ends_the_step_before_its_layer_is_read() {
    let spec = llama(Dtype::F32);
    let checkpoint = checkpoint(&spec);
    let mut memory = Memory::new(&spec, &checkpoint, 3);
    let model = memory.model(2).in_chunks_of(1);
    let cost = model.activation_cost().bytes(StepShape { tokens: 3, sequences: 1, logit_rows: 0 });
    let mut activations = Bytes::poisoned(cost as usize);
    let layers = memory.layers.iter().map(|layer| layer.as_slice().as_ptr());
    let parts = RangeParts {
        global: memory.global.as_slice().as_ptr(),
        // Layer 2 is unmapped, like a layer without a slot.
        layers: layers.take(2).chain([std::ptr::without_provenance(64)]).collect(),
        kv: memory.kv.as_mut_slice().as_mut_ptr(),
        layer_blocks: 3,
        activations: activations.as_mut_slice().as_mut_ptr(),
        activation_limit_bytes: cost,
    };
    // SAFETY: everything but layer 2 exists until the end of the test, and the hook aborts the step before layer 2.
    let mut ranges = unsafe { Ranges::new(parts) };
    let layer_blocks = BlockTable::by_kv_block(&[0, 1, 2], 3);
    let sequence = Sequence { start: 0, tokens: &[1, 2, 3], layer_blocks, logit_rows: 0 };
    let mut hooks = StopHook(2, Vec::new());
    let result = model.run(&mut ranges, &Batch { sequences: &[sequence] }, &mut hooks);
    assert_eq!(result.err(), Some(ForwardError::Aborted { layer: 2 }));
    assert_eq!(hooks.1, ["before 0", "after 0", "before 1", "after 1", "before 2"]);
}
