//! r and what remapping can free, for a model on a machine.

use sluice_policy::remap::uniform;
use sluice_policy::step_model::{Layout, Times, stall_per_token_ns};

use crate::profiles::cost::{Batch, Launch, layer_ns, step_ns};
use crate::profiles::hardware::Hardware;
use crate::profiles::model::Model;

/// What the policy would find.
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
    let stall = |alpha: u16| {
        let moving = uniform(layers, alpha + u16::from(beta));
        stall_per_token_ns(&times, &Layout { moving, beta })
    };
    let most = layers.saturating_sub(u16::from(beta) + 1);
    (1..=most).rev().find(|&alpha| stall(alpha) == 0).unwrap_or(0)
}
