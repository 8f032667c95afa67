//! Estimates r and how much memory remapping can free, for a model on a machine.

use sluice_policy::remap::even;
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};

use crate::profiles::cost::{BatchShape, Launch, layer_ns, step_ns};
use crate::profiles::hardware::Hardware;
use crate::profiles::model::ModelProfile;

/// The policy's result with all layers resident and without a cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// T_c: compute time of one layer, nanoseconds.
    pub compute_ns: u64,
    /// T_T: copy time of one layer's slab, nanoseconds.
    pub transfer_ns: u64,
    /// Time of a step with all layers resident, nanoseconds.
    pub step_ns: u64,
    /// The largest number of layers whose memory can be lent without a stall, with one slot and with two.
    pub largest_alpha: [u16; 2],
}

impl Estimate {
    /// Estimates for steps with this batch.
    pub fn new(hardware: &Hardware, model: &ModelProfile, batch: &BatchShape, launch: Launch) -> Estimate {
        let compute_ns = layer_ns(hardware, model, batch, launch);
        let transfer_ns = hardware.link.in_ns(model.layer_bytes());
        let largest = |beta| largest_alpha(model.layers, compute_ns, transfer_ns, beta);
        Estimate {
            compute_ns,
            transfer_ns,
            step_ns: step_ns(hardware, model, batch, launch),
            largest_alpha: [largest(1), largest(2)],
        }
    }

    /// Returns r = T_T / T_c, permille, rounded up.
    pub fn r_permille(&self) -> u64 {
        (self.transfer_ns * 1000).div_ceil(self.compute_ns.max(1))
    }

    /// Returns the larger alpha of one and two slots.
    pub fn alpha(&self) -> u16 {
        self.largest_alpha.into_iter().max().unwrap_or(0)
    }
}

/// Returns the largest alpha without a stall by the step model, with constant addresses; at least one layer stays
/// resident.
fn largest_alpha(layers: u16, compute_ns: u64, transfer_ns: u64, beta: u8) -> u16 {
    let (compute, transfer) = (vec![compute_ns; layers.into()], vec![transfer_ns; layers.into()]);
    let times = Times { compute_ns: &compute, transfer_ns: &transfer };
    let is_free = |alpha: u16| {
        let mut sets = even(layers, alpha + u16::from(beta), beta);
        sets.any(|moving| stall_per_token_ns(&times, &Layout { moving, beta }) == 0)
    };
    let most = layers.saturating_sub(u16::from(beta) + 1);
    (1..=most).rev().find(|&alpha| is_free(alpha)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use sluice_policy::remap::{Question, choose_layout};

    use super::*;

    /// Returns the alpha that the policy chooses when it may free every layer.
    fn policy_alpha(layers: u16, compute_ns: u64, transfer_ns: u64) -> u16 {
        let (compute, transfer) = (vec![compute_ns; layers.into()], vec![transfer_ns; layers.into()]);
        let choice = choose_layout(&Question {
            times: &Times { compute_ns: &compute, transfer_ns: &transfer },
            current: &Layout::resident(),
            wanted_alpha: layers,
            cap_m: layers,
            allowance_ns: 0,
            horizon_tokens: 1,
        });
        choice.layout.alpha()
    }

    #[test]
    fn estimate_matches_policy_search() {
        let largest = |layers, transfer_ns| {
            [1, 2].map(|beta| largest_alpha(layers, 10, transfer_ns, beta)).into_iter().max().unwrap_or(0)
        };
        // Reference values of another step model. At r = 3.5, sets without a wider end give one layer less.
        assert_eq!([largest(40, 35), largest(48, 35)], [9, 11]);
        for (layers, tenths) in [32, 40, 48].into_iter().flat_map(|n| (10..90).map(move |r| (n, r))) {
            assert_eq!(largest(layers, tenths), policy_alpha(layers, 10, tenths), "r {tenths} of {layers}");
        }
    }
}
