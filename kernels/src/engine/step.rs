//! Runs one step: checks it, waits for layers and KV that are loading, computes, publishes `done` and samples.

use std::time::Instant;

use sluice_link::control::ControlPage;
use sluice_link::message::{EngineSetup, Faults, SequenceOrder, StepOrder};
use sluice_link::tables::TableReader;
use sluice_link::vocabulary::{FailedSequence, Sampled, SequenceFailure, StepDone, TokenLogprobs};
use sluice_memory::SliceFence;

use super::device::{ResultRow, RunError, StepDevice};
use super::inputs::StepInputs;
use super::layer_times::LayerTimes;
use super::layer_waits::{LayerWaits, StepSlice, nanos};
use super::step_error::StepError;
use crate::forward::{Batch, ForwardError, LayerHooks, LogitRow};
use crate::sampling::{History, SampledToken, SamplingError, SamplingParams, sample};

/// Runs steps on one device.
pub(super) struct Stepper<D> {
    device: D,
    control: ControlPage,
    tables: TableReader,
    /// Epoch of the current time slice; `None` on a GPU without time slices.
    fence: Option<SliceFence>,
    faults: Faults,
    /// Tokens of the vocabulary.
    vocab: u32,
    inputs: StepInputs,
    history: Vec<u32>,
    /// Waits since the engine attached, for [`Faults::dropped_wait`].
    waits: u64,
}

/// What a sidecar shares with its engine besides memory of the device.
pub(super) struct SharedPages {
    pub(super) control: ControlPage,
    pub(super) tables: TableReader,
    /// Epoch of the current time slice; `None` on a GPU without time slices.
    pub(super) fence: Option<SliceFence>,
}

impl<D: StepDevice> Stepper<D> {
    pub(super) fn new(device: D, setup: &EngineSetup, shared: SharedPages) -> Stepper<D> {
        let SharedPages { control, tables, fence } = shared;
        let (faults, vocab) = (setup.faults, setup.spec.vocab);
        let (inputs, history) = (StepInputs::default(), Vec::new());
        Stepper { device, control, tables, fence, faults, vocab, inputs, history, waits: 0 }
    }

    /// Returns the device; the backing of its memory changes between steps only.
    pub(super) fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Returns the faults that tests inject.
    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    /// Runs `order`, which was received at `begun`.
    pub(super) fn run(&mut self, order: &StepOrder, begun: Instant) -> Result<StepDone, StepError> {
        let memory = self.device.memory();
        self.inputs.read(order, &self.tables, memory, self.vocab)?;
        if self.faults.poison_activations {
            self.device.poison_activations(order.activation_limit_bytes)?;
        }
        let (rows, times) = loop {
            let slice = StepSlice { fence: self.fence.as_ref(), epoch: order.epoch };
            let mut waits =
                LayerWaits::new(&self.control, slice, &self.inputs.expected, self.faults, &mut self.waits);
            let sequences = self.inputs.sequences();
            if sequences.is_empty() {
                match pass_layers(&mut waits, self.inputs.expected.len()) {
                    Ok(()) => break (Vec::new(), waits.times),
                    Err(error) => return Err(waits.failure(error)),
                }
            }
            let batch = Batch { sequences: &sequences };
            let takes_largest: Vec<bool> =
                self.inputs.sampled().map(|(_, params)| params.takes_largest()).collect();
            match self.device.run(order.activation_limit_bytes, &batch, &mut waits, &takes_largest) {
                Ok(rows) => break (rows, waits.times),
                // The check rejected the sequence before any write and any wait, so the step runs without it.
                Err(RunError::Forward(ForwardError::Sequence { sequence, problem })) => {
                    self.inputs.reject(sequence, order, &problem);
                }
                Err(RunError::Forward(error)) => return Err(waits.failure(error)),
                Err(RunError::Gpu(error)) => return Err(error.into()),
            }
        };
        let mut failed = self.inputs.take_refused();
        let sampler = Sampler { inputs: &self.inputs, tables: &self.tables, history: &mut self.history };
        let sampled = sampler.sample_all(order, rows, &mut failed);
        let LayerTimes { layer_ns, stall_ns, kv_stall_ns } = times;
        let total_ns = nanos(begun.elapsed());
        let (id, attempt) = (order.id, order.attempt);
        Ok(StepDone { id, attempt, sampled, failed, layer_ns, stall_ns, kv_stall_ns, total_ns })
    }
}

/// Runs the hooks of all layers for a step without sequences: the sidecar waits for `done` of each layer.
fn pass_layers(hooks: &mut LayerWaits<'_>, layers: usize) -> Result<(), ForwardError> {
    for layer in 0..layers {
        if hooks.before_layer(layer).is_break() {
            return Err(ForwardError::Aborted { layer });
        }
        hooks.after_layer(layer, 0);
    }
    Ok(())
}

struct Sampler<'a> {
    inputs: &'a StepInputs,
    tables: &'a TableReader,
    history: &'a mut Vec<u32>,
}

impl Sampler<'_> {
    /// Samples a token for each sequence that asks for one. A sequence without a candidate fails alone.
    fn sample_all(
        mut self,
        order: &StepOrder,
        rows: Vec<ResultRow<'_>>,
        failed: &mut Vec<FailedSequence>,
    ) -> Vec<Sampled> {
        let mut sampled = Vec::with_capacity(rows.len());
        let mut rows = rows.into_iter();
        for (index, params) in self.inputs.sampled() {
            let row = rows.next().expect("the forward pass gives one row for each sampled sequence");
            let sequence = &order.sequences[index];
            let choice = match row {
                ResultRow::Logits(mut row) => self.choose(order.parity, sequence, params, &mut row),
                ResultRow::Largest(token) => largest(token),
            };
            match choice {
                Ok(choice) => sampled.push(sampled_token(sequence, choice)),
                Err(failure) => failed.push(FailedSequence { row: sequence.row, failure }),
            }
        }
        sampled
    }

    fn choose(
        &mut self,
        parity: u8,
        sequence: &SequenceOrder,
        params: &SamplingParams,
        row: &mut LogitRow<'_>,
    ) -> Result<SampledToken, SequenceFailure> {
        let refused = |reason: String| SequenceFailure::Refused(reason);
        let end = sequence.start + sequence.count;
        self.history.clear();
        let read = self.tables.history(parity, sequence.row, 0, end, self.history);
        read.map_err(|error| refused(error.to_string()))?;
        let prompt_tokens = sequence.sample.as_ref().map_or(0, |wanted| wanted.prompt_tokens);
        let history = History { tokens: self.history, prompt_tokens: prompt_tokens as usize };
        sample(row, params, history).map_err(|error| match error {
            SamplingError::NoCandidate => SequenceFailure::NoCandidate,
            error => refused(error.to_string()),
        })
    }
}

/// Returns the choice of a device.
fn largest(token: Option<u32>) -> Result<SampledToken, SequenceFailure> {
    token.map(|token| SampledToken { token, logprobs: None }).ok_or(SequenceFailure::NoCandidate)
}

fn sampled_token(sequence: &SequenceOrder, choice: SampledToken) -> Sampled {
    let logprobs = choice.logprobs.map(|of| TokenLogprobs { chosen: of.chosen, top: of.top });
    Sampled { row: sequence.row, token: choice.token, logprobs }
}
