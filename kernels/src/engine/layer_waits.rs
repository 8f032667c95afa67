//! The work between layers: stop when the step's time slice ends, wait for `ready` of weights and KV, publish `done`,
//! record times.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sluice_link::control::{ControlPage, WaitLimit, WaitResult};
use sluice_link::message::Faults;
use sluice_link::vocabulary::{Generation, LayerId};
use sluice_memory::SliceFence;

use super::inputs::{ExpectedGenerations, LayerInput};
use super::layer_times::LayerTimes;
use super::step_error::StepError;
use crate::forward::{ForwardError, LayerHooks};

/// How long a wait sleeps before it looks at the device again.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

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
    /// Times of the layers that ran.
    pub(super) times: LayerTimes,
    /// Why a layer was not computed: its input was overwritten, or the time slice is over.
    stopped: Option<StepError>,
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
        let times = LayerTimes::new(expected.len());
        LayerWaits { control, slice, expected, faults, waits, times, stopped: None }
    }

    /// Returns why the pass that ended with `error` did not run all layers.
    pub(super) fn failure(self, error: ForwardError) -> StepError {
        match (error, self.stopped) {
            (ForwardError::Aborted { .. }, Some(stopped)) => stopped,
            (error, _) => error.into(),
        }
    }

    /// Returns what the step expects of each layer.
    pub(super) fn expected(&self) -> &'a [ExpectedGenerations] {
        self.expected
    }

    /// Whether a test lets the engine sleep before each layer.
    pub(super) fn delays_layers(&self) -> bool {
        self.faults.layer_delay_ns > 0
    }

    /// As [`LayerHooks::before_layer`], for a device that still computes earlier layers. While it waits it completes the
    /// layers that `finished` returns, because the sidecar may wait for their `done` before it copies. It ends when no
    /// further layer passes, because then the sidecar copies no more.
    pub(super) fn before_layer_behind(
        &mut self,
        layer: usize,
        mut finished: Option<FinishedLayers<'_>>,
    ) -> ControlFlow<()> {
        if self.delays_layers() {
            std::thread::sleep(Duration::from_nanos(self.faults.layer_delay_ns));
        }
        if self.end_if_expired() {
            return ControlFlow::Break(());
        }
        self.begin_layer();
        for input in LayerInput::ALL {
            if let Some(generation) = self.expected[layer].of(input) {
                self.wait(layer, input, generation, &mut finished)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Counts progress, for those who look for hangs.
    pub(super) fn begin_layer(&self) {
        self.control.begin_layer();
    }

    /// Counts a wait, and returns whether a test drops it.
    pub(super) fn next_wait_is_dropped(&mut self) -> bool {
        let number = *self.waits;
        *self.waits += 1;
        self.faults.dropped_wait == Some(number)
    }

    /// Whether the sidecar has published what the step expects of a layer.
    pub(super) fn is_ready(&self, layer: usize) -> bool {
        let id = LayerId(layer as u16);
        LayerInput::ALL.into_iter().all(|input| {
            self.expected[layer].of(input).is_none_or(|expected| input.ready(self.control, id) >= expected)
        })
    }

    /// Whether the time slice of the step is over. Then the step fails for that.
    pub(super) fn end_if_expired(&mut self) -> bool {
        let is_expired = self.slice.is_expired();
        if is_expired {
            self.stopped = Some(StepError::StaleEpoch { epoch: self.slice.epoch });
        }
        is_expired
    }

    /// Lets the step fail because an input was overwritten before the step has read it or while it did.
    pub(super) fn overtake(&mut self, layer: usize, input: LayerInput) {
        self.stopped = Some(input.overtaken(layer as u16));
    }

    /// Waits for one input of a layer.
    fn wait(
        &mut self,
        layer: usize,
        input: LayerInput,
        generation: Generation,
        finished: &mut Option<FinishedLayers<'_>>,
    ) -> ControlFlow<()> {
        if self.next_wait_is_dropped() {
            return ControlFlow::Continue(());
        }
        let begun = Instant::now();
        let patience = WaitLimit { abort: &NEVER, limit: finished.is_some().then_some(POLL_INTERVAL) };
        let end = loop {
            let end = input.wait_ready(self.control, LayerId(layer as u16), generation, patience);
            if end != WaitResult::TimedOut || self.complete(finished).is_break() {
                break end;
            }
        };
        self.times.set_stall(layer, input, nanos(begun.elapsed()));
        match end {
            WaitResult::Reached => return ControlFlow::Continue(()),
            WaitResult::Overtaken => self.overtake(layer, input),
            WaitResult::Aborted | WaitResult::TimedOut => {}
        }
        ControlFlow::Break(())
    }

    /// Completes the layers that the device has finished.
    fn complete(&mut self, finished: &mut Option<FinishedLayers<'_>>) -> ControlFlow<()> {
        let Some(next) = finished else { return ControlFlow::Continue(()) };
        while let Some((layer, elapsed_ns)) = next()? {
            self.after_layer(layer, elapsed_ns);
        }
        ControlFlow::Continue(())
    }
}

impl LayerHooks for LayerWaits<'_> {
    fn before_layer(&mut self, layer: usize) -> ControlFlow<()> {
        self.before_layer_behind(layer, None)
    }

    /// Called after all chunks of the step have passed the layer, so nothing reads the layer afterwards.
    fn after_layer(&mut self, layer: usize, elapsed_ns: u64) {
        self.times.layer_ns[layer] = elapsed_ns;
        for input in LayerInput::ALL {
            if let Some(generation) = self.expected[layer].of(input) {
                input.publish_done(self.control, LayerId(layer as u16), generation);
            }
        }
    }
}

/// Returns the nanoseconds of a duration.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
