//! A step kernel by kernel on a stream. The thread waits for a layer's `ready` and queues its kernels, while the GPU
//! computes earlier layers. It publishes `done` of a layer once the GPU has reached the event behind it.

use std::collections::VecDeque;

use sluice_memory::cuda::stream::poll_until;
use sluice_memory::cuda::{Error, Event, Stream};

use super::kernels::CudaKernels;
use super::step_page::{STEP_LIMIT, StepPage};
use crate::cuda::StepProgram;
use crate::engine::device::RunError;
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
        let mut queued = QueuedLayers { events: self.events, queue: VecDeque::new(), error: None };
        let (expected, mut aborted) = (waits.expected(), None);
        for (layer, operations) in program.layers.iter().enumerate() {
            let ready = waits.before_layer_behind(layer, Some(&mut || queued.next_finished()));
            queued.take_error()?;
            if ready.is_break() {
                aborted = Some(layer);
                break;
            }
            let [begin, end] = &self.events[layer];
            begin.record(self.stream)?;
            operations.iter().try_for_each(|operation| self.kernels.run(self.stream, operation))?;
            if expected[layer].moves() {
                self.kernels.launch(self.stream, &self.page.check(layer))?;
            }
            end.record(self.stream)?;
            queued.queue.push_back(layer);
        }
        poll_until(STEP_LIMIT, "the layers of a step", || {
            while let Some((layer, elapsed_ns)) = queued.next_finished() {
                waits.after_layer(layer, elapsed_ns);
            }
            queued.take_error()?;
            Ok::<_, Error>(queued.queue.is_empty())
        })?;
        if let Some(layer) = aborted {
            return Err(ForwardError::Aborted { layer }.into());
        }
        for layer in 1..program.layers.len() {
            // A time of an event is a call of the driver: layers without a wait need none.
            if waits.has_waited(layer) {
                let idle_ns = self.events[layer][0].since_ns(&self.events[layer - 1][1])?;
                waits.limit_stall(layer, idle_ns.max(0.0) as u64);
            }
        }
        Ok(())
    }
}

/// Layers whose kernels are queued, first the one that ends first.
struct QueuedLayers<'a> {
    events: &'a [[Event; 2]],
    queue: VecDeque<usize>,
    /// The first error of the driver.
    error: Option<Error>,
}

impl QueuedLayers<'_> {
    /// Removes the first layer if the GPU has finished it, and returns it with its time.
    fn next_finished(&mut self) -> Option<(usize, u64)> {
        let layer = *self.queue.front()?;
        let [begin, end] = &self.events[layer];
        let finished = end
            .is_reached()
            .and_then(|reached| if reached { end.since_ns(begin).map(Some) } else { Ok(None) });
        match finished {
            Ok(elapsed_ns) => {
                let elapsed_ns = elapsed_ns?;
                self.queue.pop_front();
                Some((layer, elapsed_ns.max(0.0) as u64))
            }
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    fn take_error(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}
