//! Derives a user's conclusions from the answers: whether the machine is fit, and the effect of remapping on it.
//!
//! The figures are the weight-bound estimate: a step of one sequence reads every layer's weights once at the measured
//! bandwidth, and the link copies a layer at its peak. KV reads and larger batches increase T_c and reduce r, so more
//! layers can be freed without a stall.

use serde::{Deserialize, Serialize};
use sluice_policy::closed_form::Alike;

use crate::checks::link;
use crate::layouts;
use crate::models::{self, ModelShape};
use crate::report::{Answer, CheckResult, DeviceFacts};

/// Whether a machine is fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FitnessClass {
    /// The machine meets all requirements of the design.
    Fit,
    /// It does not meet them.
    Unfit,
    /// A deciding check has no answer.
    Unknown,
}

/// The verdict, its reason, and the expectation for common models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitness {
    /// The verdict.
    pub verdict: FitnessClass,
    /// Verdict and reason in one sentence.
    pub sentence: String,
    /// Common models; empty if the link was not measured.
    pub models: Vec<Expectation>,
}

/// Expectation for one model whose layers are remapped during decode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Name of the model.
    pub model: String,
    /// n: number of layers.
    pub layers: u16,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Whether they fit the device's memory.
    pub fits: bool,
    /// T_T: time to copy one layer to the device, in microseconds.
    pub copy_us: f64,
    /// T_c: time to read one layer on the device, in microseconds.
    pub compute_us: f64,
    /// T_T / T_c.
    pub r: f64,
    /// Largest number of layers that can be freed without a stall, with one slot.
    pub alpha_one_slot: u16,
    /// The same with two slots, if each layer keeps its slot.
    pub alpha_two_slots: u16,
}

/// The deciding checks. A device whose streams cannot wait for another process is not fit.
pub const DECIDE: [&str; 4] = ["aliases", "share", "limits", "signals"];

/// Judges the results of this device's checks.
pub fn judge(device: &DeviceFacts, rows: &[CheckResult]) -> Fitness {
    let models = bandwidths(rows).map(|rates| expect(rates, device.memory_bytes)).unwrap_or_default();
    let (verdict, reason) = verdict(rows);
    let sentence = match verdict {
        FitnessClass::Fit => format!("fit: {}", remapping(&models)),
        FitnessClass::Unfit => format!("not fit, because {reason}"),
        FitnessClass::Unknown => format!("not known to be fit, because {reason}"),
    };
    Fitness { verdict, sentence, models }
}

/// Returns the bandwidths of the link to the device and of the device's memory, in bytes per nanosecond (GB/s).
fn bandwidths(rows: &[CheckResult]) -> Option<[f64; 2]> {
    let asked = rows.iter().find(|row| row.name == link::CHECK.name)?;
    let rate = |name| {
        let figure = asked.figures.iter().find(|figure| figure.name == name)?;
        Some(figure.median).filter(|rate| *rate > 0.0)
    };
    Some([rate(link::TO_DEVICE)?, rate(link::DEVICE)?])
}

/// Returns the expectation for every common model at these bandwidths in GB/s.
pub fn expect([link, device]: [f64; 2], memory_bytes: u64) -> Vec<Expectation> {
    models::ALL.iter().map(|model| of_model(model, [link, device], memory_bytes)).collect()
}

fn of_model(model: &ModelShape, [link, device]: [f64; 2], memory_bytes: u64) -> Expectation {
    let ns = |rate: f64| (model.layer_bytes as f64 / rate).round().max(1.0);
    let (transfer, compute) = (ns(link), ns(device));
    let alike = Alike { layers: model.layers, compute_ns: compute as u64, transfer_ns: transfer as u64 };
    Expectation {
        model: model.name.into(),
        layers: model.layers,
        weight_bytes: model.bytes(),
        fits: model.bytes() <= memory_bytes,
        copy_us: transfer / 1000.0,
        compute_us: compute / 1000.0,
        r: transfer / compute,
        alpha_one_slot: layouts::largest_alpha(alike, 1),
        alpha_two_slots: layouts::largest_alpha(alike, 2),
    }
}

fn verdict(rows: &[CheckResult]) -> (FitnessClass, String) {
    let mut unknown = None;
    for name in DECIDE {
        let Some(row) = rows.iter().find(|row| row.name == name) else {
            unknown.get_or_insert_with(|| format!("question '{name}' was left out"));
            continue;
        };
        match &row.answer {
            Answer::Yes => {}
            Answer::No { reason } => {
                return (FitnessClass::Unfit, format!("the answer of '{name}' is no: {reason}"));
            }
            Answer::Unknown { reason } => {
                unknown.get_or_insert_with(|| format!("question '{name}' could not be answered: {reason}"));
            }
        }
    }
    unknown.map_or((FitnessClass::Fit, String::new()), |reason| (FitnessClass::Unknown, reason))
}

/// Describes the benefit of remapping active models.
fn remapping(models: &[Expectation]) -> String {
    let Some(first) = models.iter().find(|model| model.fits).or(models.first()) else {
        return "memory can move between tenants; the cost of remapping was not measured".into();
    };
    let (r, alpha) = (first.r, first.alpha_one_slot.max(first.alpha_two_slots));
    match alpha {
        0 => format!(
            "memory can move between tenants, but a layer of an active {} takes {r:.0} times as long to \
             copy as to read, so only idle models should lend layers",
            first.model
        ),
        alpha => format!(
            "memory can move between tenants, and an active {} can give the memory of {alpha} of {} layers \
             to KV without a stall (r = {r:.1})",
            first.model, first.layers
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slots_keep_their_addresses() {
        // Every layer is read in a millisecond, so that rounding to nanoseconds does not change r. Two alternating
        // slots would free 9 of 40.
        let size = models::OPT_13B.layer_bytes as f64 / 1e6;
        let found = of_model(&models::OPT_13B, [size / 3.55, size], 0);
        assert_eq!((found.layers, found.alpha_one_slot, found.alpha_two_slots), (40, 7, 8));
    }

    #[test]
    fn model_that_does_not_fit_is_reported() {
        let found = expect([55.0, 4000.0], 141 << 30);
        let fits: Vec<_> = found.iter().map(|model| (model.model.as_str(), model.fits)).collect();
        assert_eq!(fits[1], ("Llama-3-70B", true));
        let small = expect([55.0, 4000.0], 80 << 30);
        assert!(!small[1].fits && small[0].fits);
        // The weight-bound estimate of an H200 with PCIe 5.
        assert!((found[0].r - 72.7).abs() < 0.1, "{}", found[0].r);
        assert_eq!((found[0].alpha_one_slot, found[0].alpha_two_slots), (0, 0));
    }

    fn row(name: &str, answer: Answer) -> CheckResult {
        let (question, figures, notes) = (String::new(), Vec::new(), Vec::new());
        CheckResult { id: 1, name: name.into(), question, answer, figures, notes, seconds: 0.0 }
    }

    #[test]
    fn one_no_is_unfit_and_one_unknown_is_unknown() {
        let no = Answer::No { reason: "stale".into() };
        let open = Answer::Unknown { reason: "cuMemMap: x".into() };
        let yes = |name| row(name, Answer::Yes);
        let all = ["aliases", "share", "limits", "signals"].map(yes);
        assert_eq!(verdict(&all), (FitnessClass::Fit, String::new()));
        assert_eq!(verdict(&all[..3]), (FitnessClass::Unknown, "question 'signals' was left out".into()));
        let unfit = [row("aliases", open.clone()), row("share", no.clone()), yes("limits")];
        assert_eq!(verdict(&unfit), (FitnessClass::Unfit, "the answer of 'share' is no: stale".into()));
        let unknown = [yes("aliases"), row("share", open), yes("limits")];
        let deaf = [yes("aliases"), yes("share"), yes("limits"), row("signals", no)];
        assert_eq!(verdict(&deaf), (FitnessClass::Unfit, "the answer of 'signals' is no: stale".into()));
        assert_eq!(
            verdict(&unknown),
            (FitnessClass::Unknown, "question 'share' could not be answered: cuMemMap: x".into())
        );
    }

    #[test]
    fn sentence_states_remapping_gain() {
        assert!(remapping(&expect([55.0, 4000.0], 0)).contains("73 times as long to copy"));
        assert!(
            remapping(&expect([400.0, 3000.0], 0))
                .contains("can give the memory of 2 of 32 layers to KV without a stall (r = 7.5)")
        );
    }
}
