//! One step: check, wait for moving layers and fetched KV, compute, publish, sample.

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
use thiserror::Error;

use super::inputs::{ExpectedGenerations, StepInputs};
use super::memory::{EngineMemory, UnmappedAddress};
use crate::forward::{Batch, ForwardError, LayerHooks, LogitRow, LogitsView, Model, Ranges};
use crate::sampling::{Choice, History, SamplingError, SamplingParams, sample};

/// A step that is refused as a whole; what is wrong with one sequence alone is a [`FailedSequence`]. All but
/// [`StepError::Overtaken`] and [`StepError::KvOvertaken`] are found before anything is written; those leave KV at the step's
/// own positions, in blocks that go with the step's requests.
#[derive(Debug, Error)]
pub(super) enum StepError {
    /// Memory that nothing backs.
    #[error(transparent)]
    Unmapped(#[from] UnmappedAddress),
    /// No such layer.
    #[error("a generation for layer {layer} of a model with {layers} layers")]
    Layer {
        /// Named.
        layer: u16,
        /// Layers of the model.
        layers: u16,
    },
    /// Two sequences would write the same row.
    #[error("row {0} appears twice in the step")]
    RowTwice(u32),
    /// A slot was filled again before this step had read it.
    #[error("layer {layer} was overwritten before it was read: its slot was reused too early")]
    Overtaken {
        /// The layer whose weights are gone.
        layer: u16,
    },
    /// A buffer of KV was filled again before this step had read it.
    #[error("KV of layer {layer} was overwritten before it was read: its buffer was reused too early")]
    KvOvertaken {
        /// The layer whose KV is gone.
        layer: u16,
    },
    /// Another turn than the step's is in force on the GPU.
    #[error("turn {epoch} has passed")]
    TurnPassed {
        /// Epoch of the step.
        epoch: u64,
    },
    /// The forward pass refused.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Everything a step runs on.
pub(super) struct Stepper {
    model: Model,
    memory: EngineMemory,
    ranges: Ranges,
    control: ControlPage,
    tables: TableReader,
    /// Which turn is in force; none on a GPU without turns.
    fence: Option<SliceFence>,
    faults: Faults,
    inputs: StepInputs,
    history: Vec<u32>,
    /// Waits made since the engine attached, for [`Faults::dropped_wait`].
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

    /// The memory, to be changed between steps.
    pub(super) fn memory(&mut self) -> &mut EngineMemory {
        &mut self.memory
    }

    /// What tests inject.
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
        // SAFETY: `read` found that many bytes backed, and backing does not change during a step.
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
                // Nothing was written and no layer was waited for: the others run without it.
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

/// Goes through the layers of a step in which no sequence runs: the sidecar counts on each layer to be passed.
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
    /// A token for each sequence that runs and asks for one. One without a token fails alone: the others' tokens stand.
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
    ) -> Result<Choice, SequenceFailure> {
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

fn sampled_token(sequence: &SequenceOrder, choice: Choice) -> Sampled {
    let logprobs = choice.logprobs.map(|of| TokenLogprobs { chosen: of.chosen, top: of.top });
    Sampled { row: sequence.row, token: choice.token, logprobs }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Times of the layers of a step.
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

/// What happens between layers: end when the step's time slice ends, wait for `ready` of weights and KV, publish `done`, keep the times.
struct Hooks<'a> {
    control: &'a ControlPage,
    slice: StepSlice<'a>,
    expected: &'a [ExpectedGenerations],
    faults: Faults,
    waits: &'a mut u64,
    layer_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    kv_stall_ns: Vec<u64>,
    /// Why a layer was not read: what it was to read is gone, or the turn has passed.
    overtaken: Option<StepError>,
}

/// Never raised: an engine whose sidecar is gone is ended by the watcher, in the middle of whatever it does.
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

    /// Why the pass that ended with `error` did not go through all layers.
    fn failure(self, error: ForwardError) -> StepError {
        match (error, self.overtaken) {
            (ForwardError::Aborted { .. }, Some(overtaken)) => overtaken,
            (error, _) => error.into(),
        }
    }

    /// One wait, and how long it took.
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
            self.overtaken = Some(StepError::TurnPassed { epoch: self.slice.epoch });
            return ControlFlow::Break(());
        }
        self.control.begin_layer();
        let ExpectedGenerations { weights, kv } = self.expected[layer];
        weights.map_or(ControlFlow::Continue(()), |generation| self.wait_weights(layer, generation))?;
        kv.map_or(ControlFlow::Continue(()), |generation| self.wait_kv(layer, generation))
    }

    /// A step goes through a layer with all of its chunks before this is called, so nothing reads the layer afterwards.
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
