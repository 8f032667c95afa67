//! A step kernel by kernel on a stream. The thread waits for a layer's `ready` and queues its kernels, while the GPU
//! computes earlier layers. It publishes `done` of a layer once the GPU has reached the event behind it, unless the layer
//! was overtaken: then the device writes no more KV, and the step ends.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use sluice_memory::cuda::stream::poll_until;
use sluice_memory::cuda::{Error, Event, Stream};

use super::kernels::CudaKernels;
use super::step_page::{STEP_LIMIT, StepPage};
use crate::cuda::StepProgram;
use crate::engine::device::RunError;
use crate::engine::inputs::{ExpectedGenerations, LayerInput};
use crate::engine::layer_waits::LayerWaits;
use crate::forward::{ForwardError, LayerHooks};

/// What a step runs on.
pub(super) struct StreamRun<'a> {
    pub(super) stream: &'a Stream,
    pub(super) kernels: &'a CudaKernels,
    pub(super) page: &'a StepPage,
    /// Events before and behind each layer.
    pub(super) events: &'a [[Event; 2]],
}

impl StreamRun<'_> {
    /// Queues all of a step, whose inputs are queued already.
    pub(super) fn run(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        let run = |operation| self.kernels.run(self.stream, operation);
        program.prologue.iter().try_for_each(run)?;
        self.run_layers(program, waits)?;
        Ok(program.head.iter().try_for_each(run)?)
    }

    /// Queues the layers, each once its weights and KV are there, then waits for the last one that was queued.
    fn run_layers(&self, program: &StepProgram, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        let (expected, mut aborted) = (waits.expected(), None);
        let StreamRun { page, events, .. } = *self;
        let mut queued =
            QueuedLayers { page, events, expected, queue: VecDeque::new(), overtaken: None, error: None };
        for (layer, operations) in program.layers.iter().enumerate() {
            let ready = waits.before_layer_behind(layer, Some(&mut || queued.next_finished()));
            queued.take_error()?;
            if ready.is_break() {
                aborted = Some(layer);
                break;
            }
            let [begin, end] = &events[layer];
            begin.record(self.stream)?;
            operations.iter().try_for_each(|operation| self.kernels.run(self.stream, operation))?;
            if expected[layer].moves() {
                self.kernels.launch(self.stream, &page.check(layer, program.stopped))?;
            }
            end.record(self.stream)?;
            queued.queue.push_back(layer);
        }
        poll_until(STEP_LIMIT, "the layers of a step", || {
            while let ControlFlow::Continue(Some((layer, elapsed_ns))) = queued.next_finished() {
                waits.after_layer(layer, elapsed_ns);
            }
            queued.take_error()?;
            Ok::<_, Error>(queued.queue.is_empty())
        })?;
        if let Some((layer, input)) = queued.overtaken {
            waits.overtake(layer, input);
            aborted = Some(layer);
        }
        if let Some(layer) = aborted {
            return Err(ForwardError::Aborted { layer }.into());
        }
        for layer in 1..program.layers.len() {
            // A time of an event is a call of the driver: layers without a wait need none.
            if waits.has_waited(layer) {
                let idle_ns = events[layer][0].since_ns(&events[layer - 1][1])?;
                waits.limit_stall(layer, idle_ns.max(0.0) as u64);
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
    overtaken: Option<(usize, LayerInput)>,
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
        if self.expected[layer].moves() {
            self.overtaken = self.page.overtaken(layer).map(|input| (layer, input));
        }
        self.overtaken.is_some()
    }

    fn take_error(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}
