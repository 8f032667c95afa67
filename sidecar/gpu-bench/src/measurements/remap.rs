//! Measurement 5: a decode whose layers move, against the policy's step model; and the times of a remap and of its
//! reversion.
//!
//! The kernels are the product's. All resident layers use the weights of one layer, and copies fill slots from one
//! layer's bytes on the host, as in the probe's check `remap`, so a model takes the memory of a few layers.

use std::time::Duration;

use sluice_kernels::cuda::{DeviceRanges, Operation, StepProgram};
use sluice_kernels::engine::CudaKernels;
use sluice_link::slab::slab_layout;
use sluice_policy::closed_form::Alike;
use sluice_policy::ids::LayerId;
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::checks::remap::alphas;
use sluice_probe::checks::remap::decode::{Decode, TokenPart};
use sluice_probe::layouts;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::{Figure, median_of};

use crate::device_data::{DeviceData, LIMIT};
use crate::device_model::{DeviceModel, StepWork, upload_inputs};
use crate::scale::Scale;
use crate::shapes::{self, Shape};

mod transaction;

/// Measurement 5.
pub const CHECK: Check = Check {
    id: 5,
    name: "remap",
    text: "Steps of models whose layers move, for alpha from 0 to beyond the largest without a stall, against the step \
           model; a remap and its reversion",
    mib: 18_432,
    quick_mib: 6144,
    limit: Duration::from_secs(240),
    ask,
};

/// Bytes of a page of the host: layers on the host are whole pages.
const PAGE: u64 = 4096;

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let (data, kernels) = (DeviceData::new(&bench.context)?, CudaKernels::load(&bench.context)?);
    findings.notes.push(
        "every step is launched kernel by kernel, because copies run ahead into the next step and a graph ends with its \
         own; as a graph a decode takes the time that `models` has"
            .into(),
    );
    for shape in shapes::all(Scale::of(bench)) {
        bench.progress(shape.name);
        let bytes = slab_layout(&shape.spec).layer.bytes.next_multiple_of(PAGE);
        findings.figures.extend(transaction::measure(bench, &data, &shape, bytes)?);
        let decode = Decode::new(bench, shape.spec.layers, bytes)?;
        let model = DeviceModel::new(&data, &shape.spec, 1, &shape.steps)?;
        let mut study = Study { bench, data: &data, kernels: &kernels, shape: &shape, model, decode };
        let copies = study.decode.isolated_copies()?;
        findings.figures.push(Figure::of(format!("{}: T_T", shape.name), "us", &microseconds(&copies)));
        for step in &shape.steps {
            study.step(*step, median_of(&copies), findings)?;
        }
    }
    Ok(Answer::Yes)
}

struct Study<'a> {
    bench: &'a Bench,
    data: &'a DeviceData,
    kernels: &'a CudaKernels,
    shape: &'a Shape,
    model: DeviceModel,
    decode: Decode,
}

impl Study<'_> {
    fn step(&mut self, step: StepWork, transfer: f64, findings: &mut Findings<'_>) -> Result<(), Error> {
        let layers = self.shape.spec.layers;
        let name = self.shape.step_name(step);
        let tokens = self.run(step, &Layout::resident(), transfer)?;
        let (resident, ends) = (mean(&tokens), self.ends(step)?);
        let compute = ((resident - ends) / f64::from(layers)).max(1.0);
        findings.figures.push(Figure::of(format!("{name}: alpha 0"), "us", &microseconds(&tokens)));
        findings.figures.push(Figure::single(format!("{name}: r"), "", transfer / compute));
        let [compute_ns, transfer_ns] = [compute, transfer].map(|ns| ns.round().max(1.0) as u64);
        let alike = Alike { layers, compute_ns, transfer_ns };
        for beta in [1, 2] {
            for alpha in alphas(self.bench, alike, beta) {
                let (layout, _) = layouts::best(alike, alpha, beta);
                let expected = resident + stall_ns(alike, &layout, ends);
                let measured = self.run(step, &layout, expected)?;
                let name = format!("{name}: alpha {alpha}, slots {beta}");
                findings.figures.push(Figure::of(&name, "us", &microseconds(&measured)));
                findings.figures.push(Figure::single(format!("{name}: expected"), "us", expected / 1000.0));
            }
        }
        Ok(())
    }

    /// Returns the nanoseconds of steps with this layout.
    fn run(&mut self, step: StepWork, layout: &Layout, about: f64) -> Result<Vec<f64>, Error> {
        let layers = (0..self.shape.spec.layers).map(|layer| self.decode.address(layout, LayerId(layer)));
        let ranges = DeviceRanges { layers: layers.collect(), ..self.model.ranges.clone() };
        let program = self.model.plan(&ranges, step);
        upload_inputs(&self.data.stream, &program)?;
        self.data.stream.finish_within(LIMIT)?;
        let kernels = self.kernels;
        Ok(self.decode.run_parts(layout, about, &|stream, part| {
            operations(&program, part).iter().try_for_each(|operation| kernels.run(stream, operation))
        })?)
    }

    /// Returns the nanoseconds of a step without its layers.
    fn ends(&self, step: StepWork) -> Result<f64, Error> {
        let program = self.model.plan(&self.model.ranges, step);
        let times = self.data.times_ns(self.bench, 5, |stream| {
            let mut operations = program.prologue.iter().chain(&program.head);
            operations.try_for_each(|operation| self.kernels.run(stream, operation))
        });
        Ok(median_of(&times?))
    }
}

fn operations(program: &StepProgram, part: TokenPart) -> &[Operation] {
    match part {
        TokenPart::Begin => &program.prologue,
        TokenPart::Layer { layer, .. } => &program.layers[layer.index()],
        TokenPart::End => &program.head,
    }
}

/// Returns the stall of a step by the policy's step model. The time outside the layers counts for the last one, because
/// copies run during it.
fn stall_ns(alike: Alike, layout: &Layout, ends: f64) -> f64 {
    let mut compute = vec![alike.compute_ns; alike.layers.into()];
    if let Some(last) = compute.last_mut() {
        *last += ends as u64;
    }
    let transfer = vec![alike.transfer_ns; alike.layers.into()];
    stall_per_token_ns(&Times { compute_ns: &compute, transfer_ns: &transfer }, layout) as f64
}

fn mean(ns: &[f64]) -> f64 {
    ns.iter().sum::<f64>() / ns.len() as f64
}

fn microseconds(ns: &[f64]) -> Vec<f64> {
    ns.iter().map(|ns| ns / 1000.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outside_the_layers_hides_copies() {
        let alike = Alike { layers: 8, compute_ns: 1000, transfer_ns: 9000 };
        let (layout, stall) = layouts::best(alike, 1, 1);
        assert_eq!(stall_ns(alike, &layout, 0.0), stall as f64);
        assert!(stall > 0 && stall_ns(alike, &layout, 50_000.0) < stall as f64);
    }
}
