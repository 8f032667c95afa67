//! A decode step as one CUDA graph, in which kernels wait for the layers that move.
//!
//! The thread follows the words that the kernels leave: it publishes `done` of a layer that has passed, and ends all
//! waits when the time slice of the step ends or a layer was overtaken. The kernels behind an ended wait compute
//! garbage, which nothing reads.

use std::hint::spin_loop;
use std::time::Instant;

use sluice_memory::cuda::{Error, GraphBuilder, Stream};

use super::graph_cache::CapturedStep;
use super::kernels::CudaKernels;
use super::step_page::{LayerTimestamps, STEP_LIMIT, StepPage};
use crate::cuda::StepProgram;
use crate::engine::device::RunError;
use crate::engine::inputs::LayerInput;
use crate::engine::layer_waits::LayerWaits;
use crate::forward::{ForwardError, LayerHooks};

/// Captures a step. `moving` says which layers it waits for.
pub(super) fn capture(
    stream: &Stream,
    kernels: &CudaKernels,
    page: &StepPage,
    program: &StepProgram,
    moving: &[bool],
) -> Result<CapturedStep, Error> {
    let captured = GraphBuilder::capture(stream, |stream| {
        let launch = |plan: &_| kernels.launch(stream, plan);
        let run = |operation: &_| kernels.run(stream, operation);
        let [begin, end] = page.stamps();
        program.prologue.iter().try_for_each(run)?;
        launch(&begin)?;
        for (layer, operations) in program.layers.iter().enumerate() {
            if moving[layer] {
                launch(&page.wait(layer))?;
            }
            operations.iter().try_for_each(run)?;
            if moving[layer] {
                launch(&page.check(layer))?;
            }
        }
        launch(&end)?;
        program.head.iter().try_for_each(run)
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

/// Follows the graph that was launched on `stream` to its end.
pub(super) fn follow(
    stream: &Stream,
    page: &StepPage,
    moving: &[bool],
    waits: &mut LayerWaits<'_>,
) -> Result<(), RunError> {
    let mut left = (0..moving.len()).filter(|layer| moving[*layer]).peekable();
    let mut since = Instant::now();
    let mut is_expired = false;
    loop {
        // Asked first, so that an idle device has left all of its words.
        let is_idle = stream.is_idle()?;
        while let Some(layer) = left.next_if(|layer| page.has_passed(*layer)) {
            let LayerTimestamps { begun, weights, kv, passed } = page.layer_times(layer);
            waits.set_stalls(layer, weights.saturating_sub(begun), kv.saturating_sub(weights));
            if page.overtaken(layer).is_some() {
                // The step has failed, and what it still waits for may never come.
                page.end_waits();
            }
            waits.after_layer(layer, passed.saturating_sub(kv));
            waits.begin_layer();
            since = Instant::now();
        }
        if is_idle {
            break;
        }
        if !is_expired && waits.end_if_expired() {
            page.end_waits();
            is_expired = true;
        }
        if left.peek().is_some_and(|layer| !waits.is_ready(*layer)) {
            // The sidecar is late, and not the device.
            since = Instant::now();
        }
        if since.elapsed() > STEP_LIMIT {
            return Err(Error::Timeout { what: "a graph".into(), limit: STEP_LIMIT }.into());
        }
        spin_loop();
    }
    if is_expired {
        return Err(ForwardError::Aborted { layer: 0 }.into());
    }
    share_times(page, moving, waits);
    Ok(())
}

/// Reports the times of resident layers: the layers between two that move share the time between them.
fn share_times(page: &StepPage, moving: &[bool], waits: &mut LayerWaits<'_>) {
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
