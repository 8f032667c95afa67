//! The inputs of a step. They are copied out of shared memory into reused buffers and checked there, so later writes of
//! the sidecar cannot change checked data.

use std::ops::Range;

use sluice_link::control::{ControlPage, WaitLimit, WaitResult};
use sluice_link::message::{SequenceOrder, StepOrder};
use sluice_link::tables::{TableError, TableReader};
use sluice_link::vocabulary::{BLOCK_TOKENS, FailedSequence, Generation, LayerId, RowId, SequenceFailure};
use thiserror::Error;

use super::memory::{BackedAddresses, EngineMemory, UnmappedAddress};
use super::step_error::StepError;
use crate::forward::{BlockTable, Sequence, SequenceError};
use crate::sampling::{SamplingError, SamplingParams};

/// Why one sequence is rejected while the step runs for the others. Found before the step writes anything.
#[derive(Debug, Error)]
enum InputError {
    /// An index outside the tables.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A block that is not backed.
    #[error(transparent)]
    Unmapped(#[from] UnmappedAddress),
    /// Sampling parameters out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// The slices of the buffers that belong to one sequence.
struct SequenceInput {
    /// Index among the order's sequences.
    index: usize,
    start: u32,
    tokens: Range<usize>,
    layer_blocks: Range<usize>,
    kv_blocks: usize,
    params: Option<SamplingParams>,
}

/// The generations that a layer must reach before the step reads it; `None`: it is resident.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedGenerations {
    /// Generation of the weights.
    pub(super) weights: Option<Generation>,
    /// Generation of the KV.
    pub(super) kv: Option<Generation>,
}

impl ExpectedGenerations {
    /// Returns the generation of one input.
    pub(super) fn of(self, input: LayerInput) -> Option<Generation> {
        match input {
            LayerInput::Weights => self.weights,
            LayerInput::Kv => self.kv,
        }
    }

    /// Whether the layer's weights or KV move.
    pub(super) fn moves(self) -> bool {
        self.weights.is_some() || self.kv.is_some()
    }
}

/// Why no call of the control page fails.
const CHECKED: &str = "layers were checked against the control page";

/// What a step reads of a layer, each with its words on the control page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerInput {
    /// Its weights.
    Weights,
    /// Its KV.
    Kv,
}

impl LayerInput {
    /// Both, in the order of the waits for them.
    pub(super) const ALL: [LayerInput; 2] = [LayerInput::Weights, LayerInput::Kv];

    /// Waits until the sidecar has published a generation.
    pub(super) fn wait_ready(
        self,
        control: &ControlPage,
        layer: LayerId,
        generation: Generation,
        limit: WaitLimit<'_>,
    ) -> WaitResult {
        let ended = match self {
            LayerInput::Weights => control.wait_ready(layer, generation, limit),
            LayerInput::Kv => control.wait_kv_ready(layer, generation, limit),
        };
        ended.expect(CHECKED)
    }

    /// Returns the generation that the sidecar has published.
    pub(super) fn ready(self, control: &ControlPage, layer: LayerId) -> Generation {
        let published = match self {
            LayerInput::Weights => control.ready(layer),
            LayerInput::Kv => control.kv_ready(layer),
        };
        published.expect(CHECKED)
    }

    /// Publishes that a generation was read for the last time.
    pub(super) fn publish_done(self, control: &ControlPage, layer: LayerId, generation: Generation) {
        let published = match self {
            LayerInput::Weights => control.publish_done(layer, generation),
            LayerInput::Kv => control.publish_kv_done(layer, generation),
        };
        published.expect(CHECKED);
    }

    /// Returns the error of a step for which this was overwritten.
    pub(super) fn overtaken(self, layer: u16) -> StepError {
        match self {
            LayerInput::Weights => StepError::Overtaken { layer },
            LayerInput::Kv => StepError::KvOvertaken { layer },
        }
    }
}

/// Buffers of one step, reused by later steps.
#[derive(Default)]
pub(super) struct StepInputs {
    tokens: Vec<u32>,
    layer_blocks: Vec<u32>,
    /// The sequences that run, in the order of the step.
    spans: Vec<SequenceInput>,
    rows: Vec<bool>,
    /// The sequences that were rejected.
    refused: Vec<FailedSequence>,
    /// Expected generations, per layer.
    pub(super) expected: Vec<ExpectedGenerations>,
}

impl StepInputs {
    /// Reads and checks everything that `order` names, and writes only these buffers. An invalid sequence is left out
    /// and listed as refused. An error concerns the step as a whole.
    pub(super) fn read(
        &mut self,
        order: &StepOrder,
        tables: &TableReader,
        memory: &EngineMemory<impl BackedAddresses>,
        vocab: u32,
    ) -> Result<(), StepError> {
        memory.check_weights()?;
        memory.check_activations(order.activation_limit_bytes)?;
        self.read_generations(order, tables.shape().layers)?;
        self.tokens.clear();
        self.layer_blocks.clear();
        self.spans.clear();
        self.refused.clear();
        self.rows.clear();
        self.rows.resize(tables.shape().rows as usize, false);
        for (index, sequence) in order.sequences.iter().enumerate() {
            let row = sequence.row;
            if self.rows.get_mut(row.index()).is_some_and(|seen| std::mem::replace(seen, true)) {
                return Err(StepError::RowTwice(row.0));
            }
            let (tokens, layer_blocks) = (self.tokens.len(), self.layer_blocks.len());
            match self.read_sequence(order, index, tables, memory, vocab) {
                Ok(span) => self.spans.push(span),
                Err(unfit) => {
                    self.tokens.truncate(tokens);
                    self.layer_blocks.truncate(layer_blocks);
                    self.refused.push(refused(row, &unfit));
                }
            }
        }
        Ok(())
    }

    /// Rejects the sequence at index `place` of those that run.
    pub(super) fn reject(&mut self, place: usize, order: &StepOrder, problem: &SequenceError) {
        let span = self.spans.remove(place);
        self.refused.push(refused(order.sequences[span.index].row, problem));
    }

    /// Takes the rejected sequences, each with the reason.
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
        memory: &EngineMemory<impl BackedAddresses>,
        vocab: u32,
    ) -> Result<SequenceInput, InputError> {
        let parity = order.parity;
        let SequenceOrder { row, start, count, sample } = &order.sequences[index];
        let (tokens_at, layer_blocks_at) = (self.tokens.len(), self.layer_blocks.len());
        tables.history(parity, *row, *start, *count, &mut self.tokens)?;
        // `history` checked the sum against the table, so it cannot overflow.
        let kv_blocks = (start + count).div_ceil(BLOCK_TOKENS);
        tables.layer_blocks(parity, *row, kv_blocks, &mut self.layer_blocks)?;
        self.layer_blocks[layer_blocks_at..]
            .iter()
            .try_for_each(|layer_block| memory.check_layer_block(*layer_block))?;
        let params = sample.as_ref().map(|order| params(&order.sampling));
        params.as_ref().map_or(Ok(()), |params| params.check(vocab as usize))?;
        Ok(SequenceInput {
            index,
            start: *start,
            tokens: tokens_at..self.tokens.len(),
            layer_blocks: layer_blocks_at..self.layer_blocks.len(),
            kv_blocks: kv_blocks as usize,
            params,
        })
    }

    /// Returns the sequences for the forward pass. A sampled sequence has logits of its last token only.
    pub(super) fn sequences(&self) -> Vec<Sequence<'_>> {
        let sequence = |span: &SequenceInput| Sequence {
            start: span.start,
            tokens: &self.tokens[span.tokens.clone()],
            layer_blocks: BlockTable::by_layer(&self.layer_blocks[span.layer_blocks.clone()], span.kv_blocks),
            logit_rows: usize::from(span.params.is_some()),
        };
        self.spans.iter().map(sequence).collect()
    }

    /// Returns the sampled sequences: index in the order, and parameters.
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
