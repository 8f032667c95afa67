//! Closed forms of a prefill while weights load (DESIGN 6, "Waking"; Oneiros 5.3, T_Compute of an inactive model).
//!
//! Layers 0..f are resident; layers f..n-1 load in order from time 0. T_p is the time of the *whole* prompt in one
//! layer: all its chunks pass a layer before the next one.

use super::{cumulated, saturated};

/// A prompt over identical layers of which the last ones are not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waking {
    /// n: layers.
    pub layers: u16,
    /// f: resident layers, the first ones. At most n.
    pub present: u16,
    /// T_T: copy of one layer, nanoseconds.
    pub transfer_ns: u64,
    /// T_p: the whole prompt's compute in one layer, nanoseconds.
    pub compute_ns: u64,
}

impl Waking {
    fn missing(self) -> u128 {
        u128::from(self.layers.checked_sub(self.present).expect("no more layers are present than there are"))
    }

    /// Whether compute hides all loads: `T_T <= f T_p` and `(n-f) T_T <= (n-1) T_p`.
    pub fn hidden(self) -> bool {
        let (load, compute) = (u128::from(self.transfer_ns), u128::from(self.compute_ns));
        let first_in_time = load <= u128::from(self.present) * compute;
        let last_in_time = self.missing() * load <= u128::from(self.layers.saturating_sub(1)) * compute;
        self.missing() == 0 || (first_in_time && last_in_time)
    }

    /// Returns the exact time to the first token, nanoseconds: `max(n T_p, T_T + (n-f) T_p, (n-f) T_T + T_p)`.
    pub fn ttft_ns(self) -> u64 {
        let (load, compute) = (u128::from(self.transfer_ns), u128::from(self.compute_ns));
        let all_present = u128::from(self.layers) * compute;
        if self.missing() == 0 {
            return saturated(all_present);
        }
        let behind_first = load + self.missing() * compute;
        let behind_last = self.missing() * load + compute;
        saturated(all_present.max(behind_first).max(behind_last))
    }
}

/// Returns the most missing layers that a prompt hides: `min(floor((n-1)/rho), n - ceil(rho))` with rho = T_T / T_p.
pub fn most_hidden(layers: u16, transfer_ns: u64, compute_ns: u64) -> u16 {
    assert!(transfer_ns > 0 && compute_ns > 0, "copies and compute take time");
    let (load, compute, n) = (u128::from(transfer_ns), u128::from(compute_ns), u128::from(layers));
    let by_link = n.saturating_sub(1) * compute / load;
    let by_first = n.saturating_sub(load.div_ceil(compute));
    by_link.min(by_first) as u16
}

/// Returns the time to the first token over differing stages (embeddings, layers, head), nanoseconds: the maximum over
/// k of A_k + the sum of c_i for i >= k, with A_k the cumulative loads. A resident stage loads 0. Every k is needed.
pub fn ttft_ns(loads_ns: &[u64], computes_ns: &[u64]) -> u64 {
    assert_eq!(loads_ns.len(), computes_ns.len(), "both times are given for every stage");
    let total: u64 = computes_ns.iter().fold(0, |sum, ns| sum.saturating_add(*ns));
    let done = cumulated(computes_ns);
    let through = |(k, arrived): (usize, u64)| arrived.saturating_add(total - (done[k] - computes_ns[k]));
    cumulated(loads_ns).into_iter().enumerate().map(through).max().unwrap_or(0)
}
