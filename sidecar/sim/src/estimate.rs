//! r and what remapping can free, for a model on a machine.

use sluice_policy::remap::even;
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};

use crate::profiles::cost::{Batch, Launch, layer_ns, step_ns};
use crate::profiles::hardware::Hardware;
use crate::profiles::model::Model;

/// What the policy would find with all layers resident, under no cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// T_c: compute of one layer, nanoseconds.
    pub compute_ns: u64,
    /// T_T: the copy of one layer's slab, nanoseconds.
    pub transfer_ns: u64,
    /// A step with all layers resident, nanoseconds.
    pub step_ns: u64,
    /// The largest number of layers whose memory can be given away without a stall, over one slot and over two.
    pub largest_alpha: [u16; 2],
}

impl Estimate {
    /// For steps like this batch.
    pub fn new(hardware: &Hardware, model: &Model, batch: &Batch, launch: Launch) -> Estimate {
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

    /// r = T_T / T_c, permille, rounded up.
    pub fn r_permille(&self) -> u64 {
        (self.transfer_ns * 1000).div_ceil(self.compute_ns.max(1))
    }

    /// The best of both numbers of slots.
    pub fn alpha(&self) -> u16 {
        self.largest_alpha.into_iter().max().unwrap_or(0)
    }
}

/// By the step model, under constant addresses, never a whole model.
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
    use sluice_policy::remap::{Question, choose};

    use super::*;

    /// What the policy frees when all that is free is wanted.
    fn policy_alpha(layers: u16, compute_ns: u64, transfer_ns: u64) -> u16 {
        let (compute, transfer) = (vec![compute_ns; layers.into()], vec![transfer_ns; layers.into()]);
        let choice = choose(&Question {
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
        // Figures of another step model: one more than sets without a wider end give at r = 3.5.
        assert_eq!([largest(40, 35), largest(48, 35)], [9, 11]);
        for (layers, tenths) in [32, 40, 48].into_iter().flat_map(|n| (10..90).map(move |r| (n, r))) {
            assert_eq!(largest(layers, tenths), policy_alpha(layers, 10, tenths), "r {tenths} of {layers}");
        }
    }
}
