//! Graphs of decode steps, captured once and launched for every step with the same launches.

use sluice_memory::cuda::{Error, ExecGraph};

use crate::cuda::{Results, StepLayout};

/// Most graphs that are kept. What a kernel of a graph takes of the device's memory is not measured on a GPU.
const MOST_GRAPHS: usize = 32;

/// What decides the work of a graph.
#[derive(PartialEq, Eq)]
pub(super) struct GraphKey {
    /// The launches of the step.
    pub(super) layout: StepLayout,
    /// Whether each layer moves: the graph waits for it.
    pub(super) moving: Vec<bool>,
}

/// A captured step.
pub(super) struct CapturedStep {
    /// The graph.
    pub(super) graph: ExecGraph,
    /// Where it leaves its results.
    pub(super) results: Results,
}

/// The graphs, the one used last at the end.
///
/// Bound: 32 graphs, each with 11 or 12 kernels for each layer of a Llama model, eight more, and two for each layer that
/// moves: at most 12,544 nodes for Llama-3-8B without moving layers.
#[derive(Default)]
pub(super) struct GraphCache {
    graphs: Vec<(GraphKey, CapturedStep)>,
    captured: u64,
    launched: u64,
}

impl GraphCache {
    /// Returns the graph of a step that is about to be launched, which `capture` captures if it is not kept. The one
    /// that was not used for longest makes room.
    pub(super) fn get(
        &mut self,
        key: GraphKey,
        capture: impl FnOnce() -> Result<CapturedStep, Error>,
    ) -> Result<&CapturedStep, Error> {
        let known = self.graphs.iter().position(|(known, _)| *known == key);
        let entry = match known {
            Some(place) => self.graphs.remove(place),
            None => {
                if self.graphs.len() == MOST_GRAPHS {
                    self.graphs.remove(0);
                }
                let captured = capture()?;
                self.captured += 1;
                (key, captured)
            }
        };
        self.launched += 1;
        self.graphs.push(entry);
        Ok(&self.graphs.last().expect("just pushed").1)
    }
}

impl Drop for GraphCache {
    fn drop(&mut self) {
        let GraphCache { captured, launched, .. } = self;
        tracing::info!(captured, launched, "CUDA graphs of decode steps");
    }
}
