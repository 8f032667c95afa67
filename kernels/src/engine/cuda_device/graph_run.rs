//! A decode step as one CUDA graph, in which kernels wait for the layers that move.
//!
//! The thread follows the words that the kernels leave, and publishes `done` of a layer that has passed. When the time
//! slice of the step ends, it ends the step, and the device stops before the next layer that moves. When a layer was
//! overtaken, the device stops by itself. From there on the kernels compute garbage, which nothing reads: they write no
//! KV, and no layer passes.

use std::hint::spin_loop;
use std::time::Instant;

use sluice_memory::cuda::{Error, ExecGraph, GraphBuilder};

use super::device_step::{DeviceStep, WaitsBy};
use super::graph_cache::CapturedStep;
use super::step_page::{LayerTimestamps, STEP_LIMIT, StepPage};
use crate::cuda::StepProgram;
use crate::engine::device::RunError;
use crate::engine::inputs::LayerInput;
use crate::engine::layer_waits::LayerWaits;
use crate::forward::LayerHooks;

/// Captures a step. `moving` says which layers it waits for.
pub(super) fn capture(
    step: DeviceStep<'_>,
    program: &StepProgram,
    moving: &[bool],
) -> Result<CapturedStep, Error> {
    let captured = GraphBuilder::capture(step.stream, |_| {
        let [begin, end] = step.page.stamps(program.stopped);
        step.run(&program.prologue)?;
        step.launch(&begin)?;
        for (layer, moves) in moving.iter().enumerate() {
            step.run_layer(program, layer, *moves, WaitsBy::Kernel)?;
        }
        step.launch(&end)?;
        step.run(&program.head)
    })?;
    Ok(CapturedStep { graph: captured.instantiate()?, results: program.results })
}

/// Lets the page wait for what the step expects, but for a wait that a test drops.
pub(super) fn arm(page: &StepPage, waits: &mut LayerWaits<'_>) {
    let expected = waits.expected();
    page.arm(expected);
    for (layer, expected) in expected.iter().enumerate() {
        for input in LayerInput::ALL.into_iter().filter(|input| expected.of(*input).is_some()) {
            if waits.next_wait_is_dropped() {
                page.drop_wait(layer, input);
            }
        }
    }
}

/// A graph on a stream, for a page that is armed.
pub(super) struct GraphRun<'a> {
    pub(super) step: DeviceStep<'a>,
    /// Whether each layer moves.
    pub(super) moving: &'a [bool],
}

impl GraphRun<'_> {
    /// Launches the graph and follows it to its end.
    pub(super) fn run(self, graph: &ExecGraph, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        graph.launch(self.step.stream)?;
        self.follow(waits)
    }

    fn follow(&self, waits: &mut LayerWaits<'_>) -> Result<(), RunError> {
        let GraphRun { step, moving } = self;
        let DeviceStep { stream, page, .. } = step;
        let mut left = (0..moving.len()).filter(|layer| moving[*layer]).peekable();
        let mut since = Instant::now();
        loop {
            // Asked first, so that an idle device has left all of its words.
            let is_idle = stream.is_idle()?;
            while let Some(layer) = left.next_if(|layer| page.has_passed(*layer)) {
                let LayerTimestamps { begun, weights, kv, passed } = page.layer_times(layer);
                let stalls = [weights.saturating_sub(begun), kv.saturating_sub(weights)];
                for (input, ns) in LayerInput::ALL.into_iter().zip(stalls) {
                    if waits.expected()[layer].of(input).is_some() {
                        waits.times.set_stall(layer, input, ns);
                    }
                }
                waits.after_layer(layer, passed.saturating_sub(kv));
                waits.begin_layer();
                since = Instant::now();
            }
            let next = left.peek().copied();
            match next {
                None if is_idle => break,
                None => {}
                Some(layer) if is_idle => return Err(step.ended_before(layer, waits)),
                Some(layer) => {
                    // Behind the last layer that moves nothing stops the device, and the step has its results.
                    if waits.end_if_expired() {
                        page.end_step();
                    }
                    if !waits.is_ready(layer) {
                        // The sidecar is late, and not the device.
                        since = Instant::now();
                    }
                }
            }
            if since.elapsed() > STEP_LIMIT {
                return Err(Error::Timeout { what: "a graph".into(), limit: STEP_LIMIT }.into());
            }
            spin_loop();
        }
        self.share_times(waits);
        Ok(())
    }

    /// Reports the times of resident layers: the layers between two that move share the time between them.
    fn share_times(&self, waits: &mut LayerWaits<'_>) {
        let (page, moving) = (self.step.page, self.moving);
        let [mut since, finished] = page.step_times();
        let mut resident = Vec::new();
        for layer in 0..=moving.len() {
            let stop = if layer == moving.len() { Some((finished, finished)) } else { None };
            let stop = stop.or_else(|| {
                let times = page.layer_times(layer);
                moving[layer].then_some((times.begun, times.passed))
            });
            let Some((begun, passed)) = stop else {
                resident.push(layer);
                continue;
            };
            let each = begun.saturating_sub(since) / resident.len().max(1) as u64;
            resident.drain(..).for_each(|layer| waits.after_layer(layer, each));
            since = passed;
        }
    }
}

/// A kernel that still waits when the thread has an error would spin for ever, and the context could not be destroyed.
impl Drop for GraphRun<'_> {
    fn drop(&mut self) {
        self.step.page.end_step();
    }
}
