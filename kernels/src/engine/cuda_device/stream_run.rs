//! A step kernel by kernel on a stream. The thread waits for a layer's `ready` and queues its kernels, while the GPU
//! computes earlier layers. It publishes `done` of a layer once the GPU has reached the event behind it, unless the layer
//! was overtaken: then the device writes no more KV, and the step ends.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use sluice_memory::cuda::stream::poll_until;
use sluice_memory::cuda::{Error, Event};

use super::device_step::{DeviceStep, WaitsBy};
use super::step_page::{STEP_LIMIT, StepPage};
use crate::cuda::StepProgram;
use crate::engine::device::RunError;
use crate::engine::inputs::ExpectedGenerations;
use crate::engine::layer_waits::LayerWaits;
use crate::forward::LayerHooks;

/// What a step runs on.
pub(super) struct StreamRun<'a> {
    pub(super) step: DeviceStep<'a>,
    /// Events before and behind each layer.
    pub(super) events: &'a [[Event; 2]],
}

impl StreamRun<'_> {
    /// Queues all of a step, whose inputs are queued already.
    pub(super) fn run(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        self.step.run(&program.prologue)?;
        self.run_layers(program, waits)?;
        Ok(self.step.run(&program.head)?)
    }

    /// Queues the layers, each once its weights and KV are there, then waits for the last one that was queued.
    fn run_layers(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        let (expected, mut aborted) = (waits.expected(), None);
        let StreamRun { step, events } = *self;
        let (page, queue) = (step.page, VecDeque::new());
        let mut queued = QueuedLayers { page, events, expected, queue, overtaken: None, error: None };
        for layer in 0..program.layers.len() {
            let ready = waits.before_layer_behind(layer, Some(&mut || queued.next_finished()));
            queued.take_error()?;
            if ready.is_break() {
                aborted = Some(layer);
                break;
            }
            let [begin, end] = &events[layer];
            begin.record(step.stream)?;
            step.run_layer(program, layer, expected[layer].moves(), WaitsBy::Thread)?;
            end.record(step.stream)?;
            queued.queue.push_back(layer);
        }
        poll_until(STEP_LIMIT, "the layers of a step", || {
            while let ControlFlow::Continue(Some((layer, elapsed_ns))) = queued.next_finished() {
                waits.after_layer(layer, elapsed_ns);
            }
            queued.take_error()?;
            Ok::<_, Error>(queued.queue.is_empty())
        })?;
        if let Some(layer) = queued.overtaken.or(aborted) {
            return Err(step.ended_before(layer, waits));
        }
        for layer in 1..program.layers.len() {
            // A time of an event is a call of the driver: layers without a wait need none.
            if waits.times.has_stalled(layer) {
                let idle_ns = events[layer][0].since_ns(&events[layer - 1][1])?;
                waits.times.limit_stall(layer, idle_ns.max(0.0) as u64);
            }
        }
        Ok(())
    }
}

/// Layers whose kernels are queued, first the one that ends first.
struct QueuedLayers<'a> {
    page: &'a StepPage,
    events: &'a [[Event; 2]],
    expected: &'a [ExpectedGenerations],
    queue: VecDeque<usize>,
    /// The layer that was overwritten while it was read. No later one passes, and the queue is empty.
    overtaken: Option<usize>,
    /// The first error of the driver.
    error: Option<Error>,
}

impl QueuedLayers<'_> {
    /// Removes the first layer if the GPU has finished it, and returns it with its time. Breaks once no further layer
    /// passes.
    fn next_finished(&mut self) -> ControlFlow<(), Option<(usize, u64)>> {
        let Some(&layer) = self.queue.front() else {
            return if self.overtaken.is_some() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(None)
            };
        };
        let [begin, end] = &self.events[layer];
        let finished = end
            .is_reached()
            .and_then(|reached| if reached { end.since_ns(begin).map(Some) } else { Ok(None) });
        match finished {
            Ok(None) => ControlFlow::Continue(None),
            Ok(Some(_)) if self.find_overtaken(layer) => {
                self.queue.clear();
                ControlFlow::Break(())
            }
            Ok(Some(elapsed_ns)) => {
                self.queue.pop_front();
                ControlFlow::Continue(Some((layer, elapsed_ns.max(0.0) as u64)))
            }
            Err(error) => {
                self.error.get_or_insert(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Whether a layer that the GPU has finished was overtaken.
    fn find_overtaken(&mut self, layer: usize) -> bool {
        if self.expected[layer].moves() && self.page.overtaken(layer).is_some() {
            self.overtaken = Some(layer);
        }
        self.overtaken.is_some()
    }

    fn take_error(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}
