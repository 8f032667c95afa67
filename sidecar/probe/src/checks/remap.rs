//! Check 7: copies fill slots layer by layer under a decode loop. Compares measured stalls with the policy's step model
//! and also reports the closed form.
//!
//! No model is needed. All resident layers use one piece of device memory, because a layer is far larger than the
//! caches. Each fill copies the layer's bytes from one piece of host memory that starts one page later for each layer.
//! So a model of 25 GB takes the memory of three layers. A slot is mapped at the addresses of all layers that share it,
//! and the check verifies that each layer finds its own bytes there.

use std::time::{Duration, Instant};

use sluice_policy::closed_form::Alike;
use sluice_policy::step_model::Layout;

use super::check::Check;
use crate::Error;
use crate::bench::Bench;
use crate::layouts;
use crate::models::{self, ModelShape};
use crate::numa;
use crate::report::Answer;
use crate::results::Findings;
use crate::statistics::{Figure, median_of};

mod copy_loop;
pub mod decode;
mod stretched;

use decode::{Decode, WhileCopying};

/// Check 7.
pub const CHECK: Check = Check {
    id: 7,
    name: "remap",
    text: "Do slots that are filled by copies under a running decode stall it as long as the policy's step model says \
           (within 10 % of a token)?",
    mib: 1920,
    quick_mib: 416,
    limit: Duration::from_secs(100),
    ask,
};

/// If r is above this value, the loop also runs with longer compute, as for a larger batch, at about [`LOWER_R`].
const HIGH_R: f64 = 9.0;
const LOWER_R: f64 = 6.0;
/// Allowed relative deviation of a token's time from the model.
const TOLERANCE: f64 = 0.1;
/// Time for testing layouts; the remaining layouts are skipped.
const QUICK: Duration = Duration::from_secs(12);
const FULL: Duration = Duration::from_secs(80);
/// Maximum of tested numbers of freed layers.
const MAX_ALPHAS: u16 = 7;

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let until = Instant::now() + bench.setup.pick(QUICK, FULL);
    numa::pin_to_device_node(bench, findings)?;
    let mut study = Study { findings, deviations: Vec::new(), until };
    let models = bench.setup.pick(&[models::LLAMA_3_8B][..], &[models::LLAMA_3_8B, models::OPT_13B]);
    for model in models {
        study.model(bench, model)?;
    }
    Ok(Answer::of(study.deviations.is_empty(), || study.deviations.join("; ")))
}

struct Study<'a, 'b> {
    findings: &'a mut Findings<'b>,
    /// Deviations from the model.
    deviations: Vec<String>,
    /// Time after which no further layout is tested.
    until: Instant,
}

/// Times of one layer, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Layer {
    transfer: f64,
    compute: f64,
}

impl Study<'_, '_> {
    fn model(&mut self, bench: &Bench, model: &ModelShape) -> Result<(), Error> {
        let bytes = layer_bytes(bench, model)?;
        let mut decode = Decode::new(bench, model.layers, bytes)?;
        let copies = decode.isolated_copies()?;
        let transfer = median_of(&copies);
        self.figure(model, "T_T", &microseconds(&copies));
        if bytes != model.layer_bytes {
            self.findings.notes.push(format!(
                "{}: layers of {} MiB in place of {}",
                model.name,
                bytes >> 20,
                model.layer_bytes >> 20
            ));
        }
        let natural = self.regime(bench, model, &mut decode, (1, transfer))?;
        if natural > HIGH_R {
            let reads = (natural / LOWER_R).ceil() as u32;
            self.regime(bench, model, &mut decode, (reads, transfer))?;
        }
        Ok(())
    }

    /// Tests all layouts with each layer read `reads` times. Returns the measured r.
    fn regime(
        &mut self,
        bench: &Bench,
        model: &ModelShape,
        decode: &mut Decode,
        (reads, transfer): (u32, f64),
    ) -> Result<f64, Error> {
        // The estimate for the lower r. A smaller r takes longer, but then the device is fast.
        let about = transfer * f64::from(model.layers) / LOWER_R;
        let resident = decode.run(&Layout::resident(), reads, about)?;
        let layer = Layer { transfer, compute: mean(&resident) / f64::from(model.layers) };
        let r = transfer / layer.compute;
        bench.progress(&format!("{}, r = {r:.1}", model.name));
        self.figure(model, &format!("r {r:.1}, all resident: token"), &microseconds(&resident));
        let factor = self.while_copying(model, decode, &format!("r {r:.1}"), (reads, &resident))?;
        let (compute_ns, transfer_ns) = (whole(layer.compute), whole(layer.transfer));
        let alike = Alike { layers: model.layers, compute_ns, transfer_ns };
        let of_slots = |beta| alphas(bench, alike, beta).into_iter().map(move |alpha| (alpha, beta));
        for (alpha, beta) in [1, 2].into_iter().flat_map(of_slots) {
            let name = format!("r {r:.1}, alpha {alpha}, slots {beta}");
            if Instant::now() > self.until {
                self.findings
                    .notes
                    .push(format!("{} {name} and the following ones: no time was left", model.name));
                break;
            }
            let (layout, expected) = layouts::best(alike, alpha, beta);
            let expected = expected as f64;
            let tokens = decode.run(&layout, reads, mean(&resident) + expected)?;
            self.compare_tokens(model, &name, &tokens, (mean(&resident), expected));
            let stretched = stretched::stall_ns(alike, &layout, factor) / 1000.0;
            self.figure(model, &format!("{name}: expected, with compute as while copying"), &[stretched]);
            let (form, stall) = closed_form(alike, alpha, beta);
            self.figure(model, &format!("{name}: {form}"), &[stall / 1000.0]);
            self.verified(model, &name, decode.verify(&layout)?);
        }
        Ok(r)
    }

    /// Measures tokens with all layers resident next to unrelated copies to the device. Returns by which factor they
    /// take longer than without copies (`resident`).
    fn while_copying(
        &mut self,
        model: &ModelShape,
        decode: &mut Decode,
        name: &str,
        (reads, resident): (u32, &[f64]),
    ) -> Result<f64, Error> {
        let WhileCopying { tokens, copies, wrong } = decode.run_while_copying(reads, mean(resident))?;
        let name = format!("{name}, all resident, while copying");
        self.figure(model, &format!("{name}: token"), &microseconds(&tokens));
        if !copies.is_empty() {
            self.figure(model, &format!("{name}: T_T"), &microseconds(&copies));
        }
        self.verified(model, &name, wrong);
        // No time is zero on a device, but a clock may be coarse.
        Ok(mean(&tokens).max(1.0) / mean(resident).max(1.0))
    }

    /// Compares measured tokens with the model: `base` is the time with all layers resident, in nanoseconds.
    fn compare_tokens(
        &mut self,
        model: &ModelShape,
        name: &str,
        tokens: &[f64],
        (base, expected): (f64, f64),
    ) {
        let stalls: Vec<f64> = tokens.iter().map(|token| (token - base) / 1000.0).collect();
        self.figure(model, &format!("{name}: stall"), &stalls);
        self.figure(model, &format!("{name}: expected"), &[expected / 1000.0]);
        self.compare(model, name, mean(tokens), base + expected);
    }

    fn figure(&mut self, model: &ModelShape, what: &str, us: &[f64]) {
        self.findings.figures.push(Figure::of(format!("{} {what}", model.name), "us", us));
    }

    fn verified(&mut self, model: &ModelShape, name: &str, wrong: u64) {
        if wrong > 0 {
            self.deviations.push(format!("{} {name}: {wrong} tags did not match the layer", model.name));
        }
    }

    fn compare(&mut self, model: &ModelShape, what: &str, measured: f64, expected: f64) {
        if differs(measured, expected) {
            let (name, ours, theirs) = (model.name, measured / 1000.0, expected / 1000.0);
            self.deviations.push(format!("{name} {what}: a token took {ours:.0} us, expected {theirs:.0}"));
        }
    }
}

/// Returns the bytes of the model's layers, or less with `--quick`.
fn layer_bytes(bench: &Bench, model: &ModelShape) -> Result<u64, Error> {
    const LEAST: u64 = 2 << 20;
    let small = (bench.context.memory()?.free / 256).clamp(LEAST, 128 << 20) / LEAST * LEAST;
    Ok(bench.setup.pick(small.min(model.layer_bytes), model.layer_bytes))
}

fn whole(ns: f64) -> u64 {
    ns.round().max(1.0) as u64
}

/// Returns the tested numbers of freed layers: from 1 to two more than are possible without a stall. Long lists are
/// thinned, and `--quick` tests only the edge.
pub fn alphas(bench: &Bench, alike: Alike, beta: u8) -> Vec<u16> {
    let free = layouts::largest_alpha(alike, beta);
    let most = (free + 2).min(alike.layers - 1 - u16::from(beta));
    let first = bench.setup.pick(free.max(1), 1).min(most);
    let step = ((most - first + 1).div_ceil(MAX_ALPHAS)).max(1);
    let mut chosen: Vec<u16> = (first..=most).rev().step_by(step.into()).collect();
    chosen.reverse();
    chosen
}

/// Returns the closed form's stall in nanoseconds: exact for one slot, a lower bound for two.
fn closed_form(alike: Alike, alpha: u16, beta: u8) -> (&'static str, f64) {
    match beta {
        1 => ("closed form", alike.one_slot_ns(alpha) as f64),
        _ => ("closed form, at least", alike.two_slots_at_least_ns(alpha) as f64),
    }
}

/// Whether a token's time deviates from the expected time.
fn differs(measured: f64, expected: f64) -> bool {
    (measured - expected).abs() > TOLERANCE * expected
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
    fn a_token_may_be_a_tenth_from_the_model_s() {
        assert!(!differs(1099.0, 1000.0) && !differs(901.0, 1000.0));
        assert!(differs(1101.0, 1000.0) && differs(899.0, 1000.0));
    }

    #[test]
    fn the_closed_form_of_one_slot_is_the_step_model_s_stall_and_that_of_two_below_it() {
        for (r, alpha) in [(3, 1), (6, 4), (9, 3), (9, 10), (72, 5)] {
            let alike = Alike { layers: 32, compute_ns: 1000, transfer_ns: r * 1000 };
            let stall = |beta| layouts::best(alike, alpha, beta).1 as f64;
            assert_eq!(closed_form(alike, alpha, 1), ("closed form", stall(1)));
            assert!(closed_form(alike, alpha, 2).1 <= stall(2));
        }
    }
}
