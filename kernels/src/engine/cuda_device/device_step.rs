//! What a step puts on its stream, one kernel after another or captured: the program's operations, and around a layer
//! that moves the launches that wait for it and check it.

use sluice_memory::cuda::{Error, Stream};

use super::kernels::CudaKernels;
use super::step_page::StepPage;
use crate::cuda::{LaunchPlan, Operation, StepProgram};
use crate::engine::device::RunError;
use crate::engine::layer_waits::LayerWaits;
use crate::forward::ForwardError;

/// What holds back a layer until its weights and KV are there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitsBy {
    /// The thread, before it queues the layer.
    Thread,
    /// A kernel of the step.
    Kernel,
}

/// A stream, and the words that steps on it share with the host.
#[derive(Clone, Copy)]
pub(super) struct DeviceStep<'a> {
    pub(super) stream: &'a Stream,
    pub(super) kernels: &'a CudaKernels,
    pub(super) page: &'a StepPage,
}

impl DeviceStep<'_> {
    /// Queues operations.
    pub(super) fn run(&self, operations: &[Operation]) -> Result<(), Error> {
        operations.iter().try_for_each(|operation| self.kernels.run(self.stream, operation))
    }

    /// Queues a launch.
    pub(super) fn launch(&self, plan: &LaunchPlan) -> Result<(), Error> {
        self.kernels.launch(self.stream, plan)
    }

    /// Queues a layer. One that moves is checked behind its last read: if it was overtaken, the step stops there.
    pub(super) fn run_layer(
        &self,
        program: &StepProgram,
        layer: usize,
        moves: bool,
        waits_by: WaitsBy,
    ) -> Result<(), Error> {
        if moves && waits_by == WaitsBy::Kernel {
            self.launch(&self.page.wait(layer, program.stopped))?;
        }
        self.run(&program.layers[layer])?;
        if moves {
            self.launch(&self.page.check(layer, program.stopped))?;
        }
        Ok(())
    }

    /// Returns the error of a step that ended before `layer` had passed: the layer was overtaken, or `waits` know why.
    pub(super) fn ended_before(&self, layer: usize, waits: &mut LayerWaits<'_>) -> RunError {
        if let Some(input) = self.page.overtaken(layer) {
            waits.overtake(layer, input);
        }
        ForwardError::Aborted { layer }.into()
    }
}
