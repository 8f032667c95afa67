//! What a step reads, copied out of shared memory into reused buffers and checked there: the sidecar's later writes can
//! no longer change what was checked.

use std::ops::Range;

use sluice_link::message::{SequenceOrder, StepOrder};
use sluice_link::tables::TableReader;
use sluice_link::vocabulary::{BLOCK_TOKENS, Generation, LayerId};

use super::memory::EngineMemory;
use super::step::StepError;
use crate::forward::{BlockTable, Sequence};
use crate::sampling::SamplingParams;

/// One sequence's part of the buffers.
struct Span {
    start: u32,
    tokens: Range<usize>,
    blocks: Range<usize>,
    columns: usize,
    params: Option<SamplingParams>,
}

/// What a layer must show before it is read; none = it is there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
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
    spans: Vec<Span>,
    rows: Vec<bool>,
    /// Generation that each layer must show.
    pub(super) expected: Vec<Expected>,
}

impl StepInputs {
    /// Reads and checks everything that `order` names. Writes nothing but these buffers.
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
        self.rows.clear();
        self.rows.resize(tables.shape().rows as usize, false);
        for sequence in &order.sequences {
            self.read_sequence(order.parity, sequence, tables, vocab)?;
        }
        self.blocks.iter().try_for_each(|block| memory.check_block(*block))?;
        Ok(())
    }

    fn read_generations(&mut self, order: &StepOrder, layers: u16) -> Result<(), StepError> {
        self.expected.clear();
        self.expected.resize(usize::from(layers), Expected::default());
        for (layer, generation) in &order.generations {
            self.expected(*layer)?.weights = Some(*generation);
        }
        for (layer, generation) in &order.kv_generations {
            self.expected(*layer)?.kv = Some(*generation);
        }
        Ok(())
    }

    fn expected(&mut self, layer: LayerId) -> Result<&mut Expected, StepError> {
        let layers = self.expected.len() as u16;
        self.expected.get_mut(layer.index()).ok_or(StepError::Layer { layer: layer.0, layers })
    }

    fn read_sequence(
        &mut self,
        parity: u8,
        sequence: &SequenceOrder,
        tables: &TableReader,
        vocab: u32,
    ) -> Result<(), StepError> {
        let SequenceOrder { row, start, count, sample } = sequence;
        let (tokens_at, blocks_at) = (self.tokens.len(), self.blocks.len());
        tables.history(parity, *row, *start, *count, &mut self.tokens)?;
        // The history's bound was just checked, so the sum fits.
        let columns = (start + count).div_ceil(BLOCK_TOKENS);
        tables.blocks(parity, *row, columns, &mut self.blocks)?;
        if std::mem::replace(&mut self.rows[row.index()], true) {
            return Err(StepError::RowTwice(row.0));
        }
        let params = sample.as_ref().map(|order| params(&order.sampling));
        params.as_ref().map_or(Ok(()), |params| params.check(vocab as usize))?;
        self.spans.push(Span {
            start: *start,
            tokens: tokens_at..self.tokens.len(),
            blocks: blocks_at..self.blocks.len(),
            columns: columns as usize,
            params,
        });
        Ok(())
    }

    /// The sequences, for the forward pass: the last token of those that are sampled has logits.
    pub(super) fn sequences(&self) -> Vec<Sequence<'_>> {
        let sequence = |span: &Span| Sequence {
            start: span.start,
            tokens: &self.tokens[span.tokens.clone()],
            blocks: BlockTable::by_layer(&self.blocks[span.blocks.clone()], span.columns),
            logit_rows: usize::from(span.params.is_some()),
        };
        self.spans.iter().map(sequence).collect()
    }

    /// How sequence `index` is sampled.
    pub(super) fn params(&self, index: usize) -> Option<&SamplingParams> {
        self.spans[index].params.as_ref()
    }
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
