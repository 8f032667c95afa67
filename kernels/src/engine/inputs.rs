//! What a step reads, copied out of shared memory into reused buffers and checked there: the sidecar's later writes can
//! no longer change what was checked.

use std::ops::Range;

use sluice_link::message::{SequenceOrder, StepOrder};
use sluice_link::tables::{TableError, TableReader};
use sluice_link::vocabulary::{BLOCK_TOKENS, FailedSequence, Generation, LayerId, RowId, SequenceFailure};
use thiserror::Error;

use super::memory::{EngineMemory, UnmappedAddress};
use super::step::StepError;
use crate::forward::{BlockTable, Sequence, SequenceError};
use crate::sampling::{SamplingError, SamplingParams};

/// Why one sequence is refused, in a step that runs for the others. It was found before anything is written.
#[derive(Debug, Error)]
enum InputError {
    /// An index outside of the tables.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A block that nothing backs.
    #[error(transparent)]
    Unmapped(#[from] UnmappedAddress),
    /// Bad parameters.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// One sequence's part of the buffers.
struct SequenceInput {
    /// Index among the sequences of the order.
    index: usize,
    start: u32,
    tokens: Range<usize>,
    blocks: Range<usize>,
    columns: usize,
    params: Option<SamplingParams>,
}

/// What a layer must show before it is read; none = it is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedGenerations {
    /// Of its weights.
    pub(super) weights: Option<Generation>,
    /// Of its KV.
    pub(super) kv: Option<Generation>,
}

/// Buffers of one step, reused by the next.
#[derive(Default)]
pub(super) struct StepInputs {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    /// The sequences that run, in the order of the step.
    spans: Vec<SequenceInput>,
    rows: Vec<bool>,
    /// Those that do not.
    refused: Vec<FailedSequence>,
    /// Generation that each layer must show.
    pub(super) expected: Vec<ExpectedGenerations>,
}

impl StepInputs {
    /// Reads and checks everything that `order` names. Writes nothing but these buffers. A sequence that is unfit is left
    /// out and refused; an error is about the step as a whole.
    pub(super) fn read(
        &mut self,
        order: &StepOrder,
        tables: &TableReader,
        memory: &EngineMemory,
        vocab: u32,
    ) -> Result<(), StepError> {
        memory.check_weights()?;
        memory.check_activations(order.activation_limit_bytes)?;
        self.read_generations(order, tables.shape().layers)?;
        self.tokens.clear();
        self.blocks.clear();
        self.spans.clear();
        self.refused.clear();
        self.rows.clear();
        self.rows.resize(tables.shape().rows as usize, false);
        for (index, sequence) in order.sequences.iter().enumerate() {
            let row = sequence.row;
            if self.rows.get_mut(row.index()).is_some_and(|seen| std::mem::replace(seen, true)) {
                return Err(StepError::RowTwice(row.0));
            }
            let (tokens, blocks) = (self.tokens.len(), self.blocks.len());
            match self.read_sequence(order, index, tables, memory, vocab) {
                Ok(span) => self.spans.push(span),
                Err(unfit) => {
                    self.tokens.truncate(tokens);
                    self.blocks.truncate(blocks);
                    self.refused.push(refused(row, &unfit));
                }
            }
        }
        Ok(())
    }

    /// Leaves out the sequence at `place` among those that run.
    pub(super) fn reject(&mut self, place: usize, order: &StepOrder, problem: &SequenceError) {
        let span = self.spans.remove(place);
        self.refused.push(refused(order.sequences[span.index].row, problem));
    }

    /// The sequences that were left out, each with the reason.
    pub(super) fn take_refused(&mut self) -> Vec<FailedSequence> {
        std::mem::take(&mut self.refused)
    }

    fn read_generations(&mut self, order: &StepOrder, layers: u16) -> Result<(), StepError> {
        self.expected.clear();
        self.expected.resize(usize::from(layers), ExpectedGenerations::default());
        for (layer, generation) in &order.generations {
            self.expected(*layer)?.weights = Some(*generation);
        }
        for (layer, generation) in &order.kv_generations {
            self.expected(*layer)?.kv = Some(*generation);
        }
        Ok(())
    }

    fn expected(&mut self, layer: LayerId) -> Result<&mut ExpectedGenerations, StepError> {
        let layers = self.expected.len() as u16;
        self.expected.get_mut(layer.index()).ok_or(StepError::Layer { layer: layer.0, layers })
    }

    fn read_sequence(
        &mut self,
        order: &StepOrder,
        index: usize,
        tables: &TableReader,
        memory: &EngineMemory,
        vocab: u32,
    ) -> Result<SequenceInput, InputError> {
        let parity = order.parity;
        let SequenceOrder { row, start, count, sample } = &order.sequences[index];
        let (tokens_at, blocks_at) = (self.tokens.len(), self.blocks.len());
        tables.history(parity, *row, *start, *count, &mut self.tokens)?;
        // The history's bound was just checked, so the sum fits.
        let columns = (start + count).div_ceil(BLOCK_TOKENS);
        tables.blocks(parity, *row, columns, &mut self.blocks)?;
        self.blocks[blocks_at..].iter().try_for_each(|block| memory.check_block(*block))?;
        let params = sample.as_ref().map(|order| params(&order.sampling));
        params.as_ref().map_or(Ok(()), |params| params.check(vocab as usize))?;
        Ok(SequenceInput {
            index,
            start: *start,
            tokens: tokens_at..self.tokens.len(),
            blocks: blocks_at..self.blocks.len(),
            columns: columns as usize,
            params,
        })
    }

    /// The sequences, for the forward pass: the last token of those that are sampled has logits.
    pub(super) fn sequences(&self) -> Vec<Sequence<'_>> {
        let sequence = |span: &SequenceInput| Sequence {
            start: span.start,
            tokens: &self.tokens[span.tokens.clone()],
            blocks: BlockTable::by_layer(&self.blocks[span.blocks.clone()], span.columns),
            logit_rows: usize::from(span.params.is_some()),
        };
        self.spans.iter().map(sequence).collect()
    }

    /// The sequences that are sampled: index in the order, and how.
    pub(super) fn sampled(&self) -> impl Iterator<Item = (usize, &SamplingParams)> {
        self.spans.iter().filter_map(|span| Some((span.index, span.params.as_ref()?)))
    }
}

fn refused(row: RowId, reason: &impl ToString) -> FailedSequence {
    FailedSequence { row, failure: SequenceFailure::Refused(reason.to_string()) }
}

fn params(sampling: &sluice_link::vocabulary::Sampling) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        min_p: sampling.min_p,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        logit_bias: sampling.logit_bias.clone(),
        banned_tokens: Vec::new(),
        stop_tokens: sampling.stop_tokens.clone(),
        min_tokens: sampling.min_tokens,
        seed: sampling.seed,
        logprobs: sampling.logprobs,
    }
}
