//! Measurement 4: tokens per second of models of published shapes, with weights made on the device.

use std::time::{Duration, Instant};

use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda::Event;
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::Figure;

use crate::device_data::DeviceData;
use crate::device_model::{self, DeviceModel, StepWork};
use crate::scale::Scale;
use crate::shapes::{self, Shape};

/// Measurement 4.
pub const CHECK: Check = Check {
    id: 4,
    name: "models",
    text: "Steps of whole models, planned and launched as the engine does, without a sidecar: decode and prefill",
    mib: 40_960,
    quick_mib: 6144,
    limit: Duration::from_secs(180),
    ask,
};

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let scale = Scale::of(bench);
    let (data, kernels) = (DeviceData::new(&bench.context)?, CudaKernels::load(&bench.context)?);
    for shape in shapes::all(scale) {
        bench.progress(shape.name);
        let model = DeviceModel::new(&data, &shape.spec, shape.spec.layers, &shape.steps)?;
        let study = Study { data: &data, kernels: &kernels, model: &model, rounds: scale.pick(2, 5, 20) };
        for step in &shape.steps {
            study.step(&shape, *step, findings)?;
        }
    }
    Ok(Answer::Yes)
}

/// Returns the name of the figure with the time of a step.
pub fn step_figure(shape: &Shape, step: StepWork) -> String {
    format!("{}: step", shape.step_name(step))
}

struct Study<'a> {
    data: &'a DeviceData,
    kernels: &'a CudaKernels,
    model: &'a DeviceModel,
    rounds: usize,
}

impl Study<'_> {
    /// Measures a step from its plan until its tokens are on the host, by the host's clock, and the part of it in which
    /// the device had its kernels, by the device's.
    fn step(&self, shape: &Shape, step: StepWork, findings: &mut Findings<'_>) -> Result<(), Error> {
        let (mut whole, mut device) = (Vec::new(), Vec::new());
        let warm_up = self.rounds.div_ceil(4);
        for round in 0..warm_up + self.rounds {
            let start = Instant::now();
            let program = self.model.plan(&self.model.ranges, step);
            let first = Event::after(&self.data.stream)?;
            let queued = device_model::queue(&self.data.stream, self.kernels, &program);
            let last = queued.and_then(|()| Event::after(&self.data.stream));
            // The queued work reads the program until it ends.
            let ended = device_model::finish(&self.data.stream, &program);
            let last = last?;
            ended?;
            if round >= warm_up {
                whole.push(start.elapsed().as_secs_f64() * 1e6);
                device.push(last.since_ns(&first)? / 1000.0);
            }
        }
        let name = shape.step_name(step);
        let tokens = f64::from(step.sequences * step.tokens);
        let rates: Vec<f64> = whole.iter().map(|us| tokens / us * 1e6).collect();
        findings.figures.push(Figure::of(&name, "tokens/s", &rates));
        findings.figures.push(Figure::of(step_figure(shape, step), "us", &whole));
        findings.figures.push(Figure::of(format!("{name}: on the device"), "us", &device));
        Ok(())
    }
}
