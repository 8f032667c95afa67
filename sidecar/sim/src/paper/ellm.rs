//! eLLM's Algorithm 1 as printed: it admits a step's requests in queue order, each completely or not at all. A sidecar
//! uses only its test of offloading ([`Supply::fits_by_offload`]) and its balloon.

use sluice_policy::ellm::{Balloon, Need, Supply};

/// Which half of Algorithm 1 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Prefill: needs much activation memory, and its KV may be offloaded to the CPU buffer layer by layer.
    Prefill,
    /// Decode: KV must be on the device and is fetched first if it was swapped out.
    Decode,
}

/// The admitted requests: a prefix of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// For each admitted request, in queue order: whether its KV is offloaded to the CPU buffer.
    pub offloaded: Vec<bool>,
    /// M_kv: KV chunks that the batch needs on the device.
    pub kv: u32,
    /// M_act: activation chunks that the batch needs.
    pub activation: u32,
    /// P_B after the batch.
    pub buffer_left: u32,
}

/// Admits requests in queue order until one does not fit. A request fits if at least theta chunks stay free after it;
/// in prefill also if that holds without its KV and its KV fits into the buffer. All counts are chunks.
pub fn admit(phase: Phase, supply: Supply, queue: &[Need]) -> Admission {
    let mut batch = Admission { buffer_left: supply.buffer, ..Admission::default() };
    for need in queue {
        let taken = batch.kv + batch.activation;
        let left = Supply { free: supply.free.saturating_sub(taken), buffer: batch.buffer_left, ..supply };
        if fits_on_device(left, *need) {
            batch.add(need.kv, need.activation, false);
        } else if phase == Phase::Prefill && left.fits_by_offload(*need) {
            batch.buffer_left -= need.kv;
            batch.add(0, need.activation, true);
        } else {
            break;
        }
    }
    batch
}

/// Returns I of Algorithm 1: positive for activations to KV, negative for KV to activations, 0 if no chunk moves.
pub fn inflation(balloon: Balloon) -> i64 {
    match balloon {
        Balloon::Inflate(chunks) => i64::from(chunks),
        Balloon::Deflate(chunks) => -i64::from(chunks),
        Balloon::Level | Balloon::Short { .. } => 0,
    }
}

/// Tests the first inequality: at least theta chunks stay free after the request.
fn fits_on_device(left: Supply, need: Need) -> bool {
    let taken = [need.kv, need.activation, left.threshold].map(u64::from);
    taken.iter().sum::<u64>() <= u64::from(left.free)
}

impl Admission {
    fn add(&mut self, kv: u32, activation: u32, offloaded: bool) {
        self.kv += kv;
        self.activation += activation;
        self.offloaded.push(offloaded);
    }
}
