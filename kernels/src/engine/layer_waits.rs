//! The work between layers: stop when the step's time slice ends, wait for `ready` of weights and KV, publish `done`,
//! record times.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sluice_link::control::{ControlError, ControlPage, WaitLimit, WaitResult};
use sluice_link::message::Faults;
use sluice_link::vocabulary::{Generation, LayerId};
use sluice_memory::SliceFence;

use super::inputs::{ExpectedGenerations, LayerInput};
use super::step_error::StepError;
use crate::forward::{ForwardError, LayerHooks};

/// How long a wait sleeps before it looks at the device again.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Times of a step, per layer.
pub(super) struct LayerTimes {
    pub(super) layer_ns: Vec<u64>,
    pub(super) stall_ns: Vec<u64>,
    pub(super) kv_stall_ns: Vec<u64>,
}

/// The time slice of a step.
#[derive(Clone, Copy)]
pub(super) struct StepSlice<'a> {
    /// Epoch of the current time slice; `None` on a GPU without time slices.
    pub(super) fence: Option<&'a SliceFence>,
    /// Epoch of the step.
    pub(super) epoch: u64,
}

/// Returns the next layer that the device has finished, with its compute time in nanoseconds. Breaks if no further layer
/// passes.
pub(super) type FinishedLayers<'a> = &'a mut dyn FnMut() -> ControlFlow<(), Option<(usize, u64)>>;

impl StepSlice<'_> {
    fn is_expired(self) -> bool {
        self.fence.is_some_and(|fence| fence.is_stale(self.epoch))
    }
}

/// The work between layers: stop when the step's time slice ends, wait for `ready` of weights and KV, publish `done`,
/// record times.
pub(super) struct LayerWaits<'a> {
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

impl<'a> LayerWaits<'a> {
    pub(super) fn new(
        control: &'a ControlPage,
        slice: StepSlice<'a>,
        expected: &'a [ExpectedGenerations],
        faults: Faults,
        waits: &'a mut u64,
    ) -> Self {
        let zeros = || vec![0; expected.len()];
        let (layer_ns, stall_ns, kv_stall_ns) = (zeros(), zeros(), zeros());
        LayerWaits {
            control,
            slice,
            expected,
            faults,
            waits,
            layer_ns,
            stall_ns,
            kv_stall_ns,
            overtaken: None,
        }
    }

    /// Returns the times of the layers that ran.
    pub(super) fn times(self) -> LayerTimes {
        LayerTimes { layer_ns: self.layer_ns, stall_ns: self.stall_ns, kv_stall_ns: self.kv_stall_ns }
    }

    /// Returns why the pass that ended with `error` did not run all layers.
    pub(super) fn failure(self, error: ForwardError) -> StepError {
        match (error, self.overtaken) {
            (ForwardError::Aborted { .. }, Some(overtaken)) => overtaken,
            (error, _) => error.into(),
        }
    }

    /// As [`LayerHooks::before_layer`], for a device that still computes earlier layers. While it waits it completes the
    /// layers that `finished` returns, because the sidecar may wait for their `done` before it copies. It ends when no
    /// further layer passes, because then the sidecar copies no more.
    pub(super) fn before_layer_behind(
        &mut self,
        layer: usize,
        mut finished: Option<FinishedLayers<'_>>,
    ) -> ControlFlow<()> {
        if self.faults.layer_delay_ns > 0 {
            std::thread::sleep(Duration::from_nanos(self.faults.layer_delay_ns));
        }
        if self.end_if_expired() {
            return ControlFlow::Break(());
        }
        self.control.begin_layer();
        let ExpectedGenerations { weights, kv } = self.expected[layer];
        if let Some(generation) = weights {
            self.wait_weights(layer, generation, &mut finished)?;
        }
        kv.map_or(ControlFlow::Continue(()), |generation| self.wait_kv(layer, generation, &mut finished))
    }

    /// Returns what the step expects of each layer.
    pub(super) fn expected(&self) -> &'a [ExpectedGenerations] {
        self.expected
    }

    /// Whether a layer of the step moves.
    pub(super) fn moves_layers(&self) -> bool {
        self.expected.iter().any(|expected| expected.moves())
    }

    /// Whether a test lets the engine sleep before each layer.
    pub(super) fn delays_layers(&self) -> bool {
        self.faults.layer_delay_ns > 0
    }

    /// Counts a wait, and returns whether a test drops it.
    pub(super) fn next_wait_is_dropped(&mut self) -> bool {
        let number = *self.waits;
        *self.waits += 1;
        self.faults.dropped_wait == Some(number)
    }

    /// Whether the time slice of the step is over. Then the step fails for that.
    pub(super) fn end_if_expired(&mut self) -> bool {
        let is_expired = self.slice.is_expired();
        if is_expired {
            self.overtaken = Some(StepError::StaleEpoch { epoch: self.slice.epoch });
        }
        is_expired
    }

    /// Counts progress, for those who look for hangs.
    pub(super) fn begin_layer(&self) {
        self.control.begin_layer();
    }

    /// Whether the sidecar has published what the step expects of a layer.
    pub(super) fn is_ready(&self, layer: usize) -> bool {
        let (id, ExpectedGenerations { weights, kv }) = (LayerId(layer as u16), self.expected[layer]);
        let reached = |published: Result<Generation, ControlError>, expected: Option<Generation>| {
            let published = published.expect("layers were checked against the control page");
            expected.is_none_or(|expected| published >= expected)
        };
        reached(self.control.ready(id), weights) && reached(self.control.kv_ready(id), kv)
    }

    /// Records how long the device waited for the weights and the KV of a layer, if they move.
    pub(super) fn set_stalls(&mut self, layer: usize, weights_ns: u64, kv_ns: u64) {
        let ExpectedGenerations { weights, kv } = self.expected[layer];
        self.stall_ns[layer] = weights.map_or(0, |_| weights_ns);
        self.kv_stall_ns[layer] = kv.map_or(0, |_| kv_ns);
    }

    /// Lets the step fail because an input was overwritten while the step read it.
    pub(super) fn overtake(&mut self, layer: usize, input: LayerInput) {
        let layer = layer as u16;
        self.overtaken = Some(match input {
            LayerInput::Weights => StepError::Overtaken { layer },
            LayerInput::Kv => StepError::KvOvertaken { layer },
        });
    }

    /// Whether the thread has waited for the layer.
    pub(super) fn has_waited(&self, layer: usize) -> bool {
        self.stall_ns[layer] + self.kv_stall_ns[layer] > 0
    }

    /// Limits the stall of a layer to what the device measured: while the device works on earlier layers, a wait is no stall.
    pub(super) fn limit_stall(&mut self, layer: usize, idle_ns: u64) {
        self.stall_ns[layer] = self.stall_ns[layer].min(idle_ns);
        self.kv_stall_ns[layer] = self.kv_stall_ns[layer].min(idle_ns - self.stall_ns[layer]);
    }

    /// Runs one wait and returns its result and duration in nanoseconds.
    fn wait(
        &mut self,
        finished: &mut Option<FinishedLayers<'_>>,
        wait: impl Fn(&ControlPage, WaitLimit<'_>) -> Result<WaitResult, ControlError>,
    ) -> (WaitResult, u64) {
        if self.next_wait_is_dropped() {
            return (WaitResult::Reached, 0);
        }
        let begun = Instant::now();
        let limit = finished.is_some().then_some(POLL_INTERVAL);
        loop {
            let waited = wait(self.control, WaitLimit { abort: &NEVER, limit });
            match waited.expect("layers were checked against the control page") {
                WaitResult::TimedOut => {
                    if self.complete(finished).is_break() {
                        return (WaitResult::Aborted, nanos(begun.elapsed()));
                    }
                }
                end => return (end, nanos(begun.elapsed())),
            }
        }
    }

    /// Completes the layers that the device has finished.
    fn complete(&mut self, finished: &mut Option<FinishedLayers<'_>>) -> ControlFlow<()> {
        let Some(next) = finished else { return ControlFlow::Continue(()) };
        while let Some((layer, elapsed_ns)) = next()? {
            self.after_layer(layer, elapsed_ns);
        }
        ControlFlow::Continue(())
    }

    fn wait_weights(
        &mut self,
        layer: usize,
        generation: Generation,
        finished: &mut Option<FinishedLayers<'_>>,
    ) -> ControlFlow<()> {
        let id = LayerId(layer as u16);
        let (end, ns) = self.wait(finished, |page, limit| page.wait_ready(id, generation, limit));
        self.stall_ns[layer] = ns;
        self.end(end, StepError::Overtaken { layer: id.0 })
    }

    fn wait_kv(
        &mut self,
        layer: usize,
        generation: Generation,
        finished: &mut Option<FinishedLayers<'_>>,
    ) -> ControlFlow<()> {
        let id = LayerId(layer as u16);
        let (end, ns) = self.wait(finished, |page, limit| page.wait_kv_ready(id, generation, limit));
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

impl LayerHooks for LayerWaits<'_> {
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()> {
        self.before_layer_behind(layer, None)
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

/// Returns the nanoseconds of a duration.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
