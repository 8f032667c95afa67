//! What the answers mean for a user: whether the machine is fit, and what remapping would do there.
//!
//! The figures are the weight-bound estimate: a step of one sequence reads every layer's weights once at the bandwidth that was
//! measured, and the link copies a layer at its peak. KV reads and larger batches make T_c longer and r smaller, so that more
//! layers can go without a stall.

use serde::{Deserialize, Serialize};
use sluice_policy::closed_form::Alike;

use crate::checks::link;
use crate::layouts;
use crate::models::{self, Model};
use crate::report::{Answer, CheckResult, DeviceFacts};

/// Whether a machine is fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FitnessClass {
    /// It does everything that the design needs.
    Fit,
    /// It does not.
    Unfit,
    /// A question that decides it has no answer.
    Unknown,
}

/// The verdict, why, and what to expect of common models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitness {
    /// The verdict.
    pub verdict: FitnessClass,
    /// The verdict and its reason in one sentence.
    pub sentence: String,
    /// Common models; none when the link was not measured.
    pub models: Vec<Expectation>,
}

/// What to expect of one model whose layers are remapped while it decodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Its name.
    pub model: String,
    /// n: layers.
    pub layers: u16,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// Whether the device holds them all.
    pub fits: bool,
    /// T_T: copying one layer to the device, microseconds.
    pub copy_us: f64,
    /// T_c: reading one layer on the device, microseconds.
    pub compute_us: f64,
    /// T_T / T_c.
    pub r: f64,
    /// Largest number of layers whose memory can be given away without a stall, one slot.
    pub alpha_one_slot: u16,
    /// The same with two slots, where a layer keeps its slot.
    pub alpha_two_slots: u16,
}

/// The questions that decide. A device whose streams cannot wait for another process is not fit.
pub const DECIDE: [&str; 4] = ["aliases", "share", "limits", "signals"];

/// What these answers of this device say.
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

/// Bytes per nanosecond (GB/s): the link to the device, and the device's memory.
fn bandwidths(rows: &[CheckResult]) -> Option<[f64; 2]> {
    let asked = rows.iter().find(|row| row.name == link::CHECK.name)?;
    let rate = |name| {
        let figure = asked.figures.iter().find(|figure| figure.name == name)?;
        Some(figure.median).filter(|rate| *rate > 0.0)
    };
    Some([rate(link::TO_DEVICE)?, rate(link::DEVICE)?])
}

/// Every common model at these bandwidths, GB/s.
pub fn expect([link, device]: [f64; 2], memory_bytes: u64) -> Vec<Expectation> {
    models::ALL.iter().map(|model| of_model(model, [link, device], memory_bytes)).collect()
}

fn of_model(model: &Model, [link, device]: [f64; 2], memory_bytes: u64) -> Expectation {
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
            unknown.get_or_insert_with(|| format!("'{name}' was not asked"));
            continue;
        };
        match &row.answer {
            Answer::Yes => {}
            Answer::No { reason } => return (FitnessClass::Unfit, format!("'{name}' answered no: {reason}")),
            Answer::Unknown { reason } => {
                unknown.get_or_insert_with(|| format!("'{name}' could not be asked: {reason}"));
            }
        }
    }
    unknown.map_or((FitnessClass::Fit, String::new()), |reason| (FitnessClass::Unknown, reason))
}

/// What remapping of active models would bring.
fn remapping(models: &[Expectation]) -> String {
    let Some(first) = models.iter().find(|model| model.fits).or(models.first()) else {
        return "memory can move between tenants; what remapping costs was not measured".into();
    };
    let (r, alpha) = (first.r, first.alpha_one_slot.max(first.alpha_two_slots));
    match alpha {
        0 => format!(
            "memory can move between tenants, but a layer of an active {} takes {r:.0} times as long to copy as to read, so \
             that only idle models should give layers up",
            first.model
        ),
        alpha => format!(
            "memory can move between tenants, and an active {} gives up to {alpha} of {} layers without a stall (r = {r:.1})",
            first.model, first.layers
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_slots_keep_their_addresses() {
        // Every layer is read in a millisecond, so that rounding to nanoseconds leaves r as it is. Two alternating slots
        // would free 9 of 40.
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
        // The weight-bound estimate of an H200 behind PCIe 5.
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
        assert_eq!(verdict(&all[..3]), (FitnessClass::Unknown, "'signals' was not asked".into()));
        let unfit = [row("aliases", open.clone()), row("share", no.clone()), yes("limits")];
        assert_eq!(verdict(&unfit), (FitnessClass::Unfit, "'share' answered no: stale".into()));
        let unknown = [yes("aliases"), row("share", open), yes("limits")];
        let deaf = [yes("aliases"), yes("share"), yes("limits"), row("signals", no)];
        assert_eq!(verdict(&deaf), (FitnessClass::Unfit, "'signals' answered no: stale".into()));
        assert_eq!(
            verdict(&unknown),
            (FitnessClass::Unknown, "'share' could not be asked: cuMemMap: x".into())
        );
    }

    #[test]
    fn sentence_states_remapping_gain() {
        assert!(remapping(&expect([55.0, 4000.0], 0)).contains("73 times as long to copy"));
        assert!(
            remapping(&expect([400.0, 3000.0], 0))
                .contains("gives up to 2 of 32 layers without a stall (r = 7.5)")
        );
    }
}
