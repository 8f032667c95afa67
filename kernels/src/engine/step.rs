//! Runs one step: checks it, waits for layers and KV that are loading, computes, publishes `done` and samples.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sluice_link::control::{ControlError, ControlPage, WaitLimit, WaitResult};
use sluice_link::message::{Faults, SequenceOrder, StepOrder};
use sluice_link::tables::TableReader;
use sluice_link::vocabulary::{
    FailedSequence, Generation, LayerId, Sampled, SequenceFailure, StepDone, TokenLogprobs,
};
use sluice_memory::SliceFence;

use super::inputs::{ExpectedGenerations, StepInputs};
use super::memory::EngineMemory;
use super::step_error::StepError;
use crate::forward::{Batch, ForwardError, LayerHooks, LogitRow, LogitsView, Model, Ranges};
use crate::sampling::{History, SampledToken, SamplingError, SamplingParams, sample};

/// Runs steps on one model and its memory.
pub(super) struct Stepper {
    model: Model,
    memory: EngineMemory,
    ranges: Ranges,
    control: ControlPage,
    tables: TableReader,
    /// Epoch of the current time slice; `None` on a GPU without time slices.
    fence: Option<SliceFence>,
    faults: Faults,
    inputs: StepInputs,
    history: Vec<u32>,
    /// Waits since the engine attached, for [`Faults::dropped_wait`].
    waits: u64,
}

impl Stepper {
    pub(super) fn new(
        model: Model,
        memory: EngineMemory,
        control: ControlPage,
        tables: TableReader,
        fence: Option<SliceFence>,
        faults: Faults,
    ) -> Stepper {
        let ranges = memory.ranges();
        let (inputs, history) = (StepInputs::default(), Vec::new());
        Stepper { model, memory, ranges, control, tables, fence, faults, inputs, history, waits: 0 }
    }

    /// Returns the engine's memory; its backing changes between steps only.
    pub(super) fn memory(&mut self) -> &mut EngineMemory {
        &mut self.memory
    }

    /// Returns the faults that tests inject.
    pub(super) fn faults(&self) -> Faults {
        self.faults
    }

    /// Runs `order`, which was received at `begun`.
    pub(super) fn run(&mut self, order: &StepOrder, begun: Instant) -> Result<StepDone, StepError> {
        let vocab = self.model.spec().vocab;
        self.inputs.read(order, &self.tables, &self.memory, vocab)?;
        if self.faults.poison_activations {
            self.memory.poison_activations(order.activation_limit_bytes);
        }
        // SAFETY: `read` checked that this many bytes are backed, and backing does not change during a step.
        unsafe { self.ranges.set_activation_limit(order.activation_limit_bytes) };
        let (logits, times) = loop {
            let slice = StepSlice { fence: self.fence.as_ref(), epoch: order.epoch };
            let mut hooks =
                Hooks::new(&self.control, slice, &self.inputs.expected, self.faults, &mut self.waits);
            let sequences = self.inputs.sequences();
            if sequences.is_empty() {
                match pass_layers(&mut hooks, self.model.spec().layers) {
                    Ok(()) => break (None, hooks.times()),
                    Err(error) => return Err(hooks.failure(error)),
                }
            }
            match self.model.run(&mut self.ranges, &Batch { sequences: &sequences }, &mut hooks) {
                Ok(logits) => break (Some(logits), hooks.times()),
                // The check rejected the sequence before any write and any wait, so the step runs without it.
                Err(ForwardError::Sequence { sequence, problem }) => {
                    self.inputs.reject(sequence, order, &problem);
                }
                Err(error) => return Err(hooks.failure(error)),
            }
        };
        let mut failed = self.inputs.take_refused();
        let sampler = Sampler { inputs: &self.inputs, tables: &self.tables, history: &mut self.history };
        let sampled = logits.map_or_else(Vec::new, |logits| sampler.sample_all(order, logits, &mut failed));
        let LayerTimes { layer_ns, stall_ns, kv_stall_ns } = times;
        let total_ns = nanos(begun.elapsed());
        let (id, attempt) = (order.id, order.attempt);
        Ok(StepDone { id, attempt, sampled, failed, layer_ns, stall_ns, kv_stall_ns, total_ns })
    }
}

/// Runs the hooks of all layers for a step without sequences: the sidecar waits for `done` of each layer.
fn pass_layers(hooks: &mut Hooks<'_>, layers: u16) -> Result<(), ForwardError> {
    for layer in 0..usize::from(layers) {
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
        mut logits: LogitsView<'_>,
        failed: &mut Vec<FailedSequence>,
    ) -> Vec<Sampled> {
        let mut rows = logits.rows_mut();
        let mut sampled = Vec::with_capacity(rows.len());
        for (index, params) in self.inputs.sampled() {
            let mut row = rows.next().expect("the forward pass gives one row for each sampled sequence");
            let sequence = &order.sequences[index];
            match self.choose(order.parity, sequence, params, &mut row) {
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

fn sampled_token(sequence: &SequenceOrder, choice: SampledToken) -> Sampled {
    let logprobs = choice.logprobs.map(|of| TokenLogprobs { chosen: of.chosen, top: of.top });
    Sampled { row: sequence.row, token: choice.token, logprobs }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Times of a step, per layer.
struct LayerTimes {
    layer_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    kv_stall_ns: Vec<u64>,
}

/// The time slice of a step.
#[derive(Clone, Copy)]
struct StepSlice<'a> {
    fence: Option<&'a SliceFence>,
    epoch: u64,
}

impl StepSlice<'_> {
    fn is_expired(self) -> bool {
        self.fence.is_some_and(|fence| fence.is_stale(self.epoch))
    }
}

/// The work between layers: stop when the step's time slice ends, wait for `ready` of weights and KV, publish `done`,
/// record times.
struct Hooks<'a> {
    control: &'a ControlPage,
    slice: StepSlice<'a>,
    expected: &'a [ExpectedGenerations],
    faults: Faults,
    waits: &'a mut u64,
    layer_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    kv_stall_ns: Vec<u64>,
    /// Why a layer was not computed: its input was overwritten, or the time slice is over.
    overtaken: Option<StepError>,
}

/// Never set: the watcher thread ends an engine whose sidecar exited, also during a wait.
static NEVER: AtomicBool = AtomicBool::new(false);

impl<'a> Hooks<'a> {
    fn new(
        control: &'a ControlPage,
        slice: StepSlice<'a>,
        expected: &'a [ExpectedGenerations],
        faults: Faults,
        waits: &'a mut u64,
    ) -> Self {
        let zeros = || vec![0; expected.len()];
        let (layer_ns, stall_ns, kv_stall_ns) = (zeros(), zeros(), zeros());
        Hooks { control, slice, expected, faults, waits, layer_ns, stall_ns, kv_stall_ns, overtaken: None }
    }

    fn times(self) -> LayerTimes {
        LayerTimes { layer_ns: self.layer_ns, stall_ns: self.stall_ns, kv_stall_ns: self.kv_stall_ns }
    }

    /// Returns why the pass that ended with `error` did not run all layers.
    fn failure(self, error: ForwardError) -> StepError {
        match (error, self.overtaken) {
            (ForwardError::Aborted { .. }, Some(overtaken)) => overtaken,
            (error, _) => error.into(),
        }
    }

    /// Runs one wait and returns its result and duration in nanoseconds.
    fn wait(
        &mut self,
        wait: impl FnOnce(&ControlPage) -> Result<WaitResult, ControlError>,
    ) -> (WaitResult, u64) {
        let number = *self.waits;
        *self.waits += 1;
        if self.faults.dropped_wait == Some(number) {
            return (WaitResult::Reached, 0);
        }
        let begun = Instant::now();
        let waited = wait(self.control).expect("layers were checked against the control page");
        (waited, nanos(begun.elapsed()))
    }

    fn wait_weights(&mut self, layer: usize, generation: Generation) -> ControlFlow<()> {
        let id = LayerId(layer as u16);
        let (end, ns) = self.wait(|page| page.wait_ready(id, generation, WaitLimit::unlimited(&NEVER)));
        self.stall_ns[layer] = ns;
        self.end(end, StepError::Overtaken { layer: id.0 })
    }

    fn wait_kv(&mut self, layer: usize, generation: Generation) -> ControlFlow<()> {
        let id = LayerId(layer as u16);
        let (end, ns) = self.wait(|page| page.wait_kv_ready(id, generation, WaitLimit::unlimited(&NEVER)));
        self.kv_stall_ns[layer] = ns;
        self.end(end, StepError::KvOvertaken { layer: id.0 })
    }

    fn end(&mut self, end: WaitResult, overtaken: StepError) -> ControlFlow<()> {
        match end {
            WaitResult::Reached => ControlFlow::Continue(()),
            WaitResult::Overtaken => {
                self.overtaken = Some(overtaken);
                ControlFlow::Break(())
            }
            WaitResult::Aborted | WaitResult::TimedOut => ControlFlow::Break(()),
        }
    }
}

impl LayerHooks for Hooks<'_> {
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()> {
        if self.faults.layer_delay_ns > 0 {
            std::thread::sleep(Duration::from_nanos(self.faults.layer_delay_ns));
        }
        if self.slice.is_expired() {
            self.overtaken = Some(StepError::StaleEpoch { epoch: self.slice.epoch });
            return ControlFlow::Break(());
        }
        self.control.begin_layer();
        let ExpectedGenerations { weights, kv } = self.expected[layer];
        weights.map_or(ControlFlow::Continue(()), |generation| self.wait_weights(layer, generation))?;
        kv.map_or(ControlFlow::Continue(()), |generation| self.wait_kv(layer, generation))
    }

    /// Called after all chunks of the step have passed the layer, so nothing reads the layer afterwards.
    fn after_layer(&mut self, layer: usize, elapsed_ns: u64) {
        self.layer_ns[layer] = elapsed_ns;
        let (id, ExpectedGenerations { weights, kv }) = (LayerId(layer as u16), self.expected[layer]);
        let weights = weights.map(|generation| self.control.publish_done(id, generation));
        let kv = kv.map(|generation| self.control.publish_kv_done(id, generation));
        for published in [weights, kv].into_iter().flatten() {
            published.expect("layers were checked against the control page");
        }
    }
}
