//! What the simulator gets of a run: the machine as a profile, and its predictions next to the measured times.

use serde::{Deserialize, Serialize};
use sluice_kernels::cuda::Products;
use sluice_link::model::{Family, ModelSpec};
use sluice_probe::checks::link;
use sluice_probe::report::DeviceFacts;
use sluice_sim::profiles::cost::{BatchShape, Launch, step_ns};
use sluice_sim::profiles::hardware::Hardware;
use sluice_sim::profiles::measured::{MachineProfile, SCHEMA};
use sluice_sim::profiles::model::ModelProfile;

use crate::device_model::StepWork;
use crate::measurements::{attention, models};
use crate::row::{Row, median};
use crate::scale::Scale;
use crate::shapes;

/// The time of a step, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Model and step.
    pub step: String,
    /// Microseconds by the simulator's cost model on the measured machine.
    pub predicted_us: f64,
    /// Measured microseconds.
    pub measured_us: f64,
}

/// Returns the machine that these figures describe.
///
/// # Errors
/// The name of a figure that is needed and was not measured.
pub fn machine(
    rows: &[Row],
    (device, stand_in): (&DeviceFacts, bool),
    (date, commit): (&str, &str),
) -> Result<MachineProfile, String> {
    let figure = |measurement, name| {
        median(rows, measurement, name).ok_or_else(|| format!("{measurement} has not measured: {name}"))
    };
    let per_s = |gigabytes: f64| (gigabytes * 1e9) as u64;
    let link = |name| figure("link", name);
    let in_rate = link(link::TO_DEVICE)?;
    let small_ns = link("to device, registered: one of 64 KiB")? * 1000.0;
    Ok(MachineProfile {
        schema: SCHEMA,
        stand_in,
        device: device.name.clone(),
        date: date.into(),
        commit: commit.into(),
        memory_bytes: device.memory_bytes,
        host_bytes: host_bytes(),
        memory_bytes_per_s: per_s(link(link::DEVICE)?),
        flops: (figure("attention", attention::MATRIX)? * 1e12) as u64,
        in_bytes_per_s: per_s(in_rate),
        out_bytes_per_s: per_s(link("to host, registered: peak")?),
        coupled_permille: link("to device, what the other way leaves")?.clamp(1.0, 1000.0) as u16,
        setup_ns: (small_ns - 65_536.0 / in_rate).max(0.0) as u64,
    })
}

fn host_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// Returns the predictions for the steps that were measured.
pub fn predictions(rows: &[Row], scale: Scale, hardware: &Hardware) -> Vec<Prediction> {
    let all = shapes::all(scale);
    let steps = all.iter().flat_map(|shape| shape.steps.iter().map(move |step| (shape, *step)));
    let predicted = steps.filter_map(|(shape, step)| {
        let measured_us =
            median(rows, "models", &models::step_figure(&shape.step_name(step), Products::Deterministic))?;
        let launch = if step.is_decode() { Launch::Graph } else { Launch::Eager };
        let ns = step_ns(hardware, &profile(shape.name, &shape.spec), &batch(step), launch);
        Some(Prediction { step: shape.step_name(step), predicted_us: ns as f64 / 1000.0, measured_us })
    });
    predicted.collect()
}

fn batch(step: StepWork) -> BatchShape {
    match step.is_decode() {
        true => BatchShape::decode(step.sequences.into(), u64::from(step.start + 1)),
        false => BatchShape::prefill(step.tokens.into()),
    }
}

fn profile(name: &'static str, spec: &ModelSpec) -> ModelProfile {
    ModelProfile {
        name,
        layers: spec.layers,
        hidden: spec.hidden.into(),
        heads: spec.heads.into(),
        kv_heads: spec.kv_heads.into(),
        ffn: spec.intermediate.into(),
        ffn_matrices: if spec.family == Family::Llama { 3 } else { 2 },
        vocab: spec.vocab.into(),
        embeddings: if spec.tied_embeddings { 1 } else { 2 },
        context_tokens: spec.max_positions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulator has the same published models.
    #[test]
    fn shapes_are_the_simulator_s_models() {
        let all = shapes::all(Scale::Full);
        let ours: Vec<ModelProfile> = all.iter().map(|shape| profile("", &shape.spec)).collect();
        let find = |name| sluice_sim::profiles::model::find(name).expect("a published model");
        let theirs = ["llama-3-8b", "opt-13b"].map(|name| ModelProfile { name: "", ..*find(name) });
        assert_eq!(ours, theirs);
    }
}
