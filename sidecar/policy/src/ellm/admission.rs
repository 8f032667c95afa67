//! Algorithm 1, lines 1 to 22: admits a step's requests, each completely or not at all.

use alloc::vec::Vec;

/// Which half of Algorithm 1 runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Prefill: needs much activation memory, and its KV may be offloaded to the CPU buffer layer by layer.
    Prefill,
    /// Decode: KV must be on the device and is fetched first if it was swapped out.
    Decode,
}

/// A request's need in this step, chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// KV_r: chunks of KV, including those to fetch.
    pub kv: u32,
    /// ACT_r: chunks of activations.
    pub activation: u32,
}

/// Capacity of the step, chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// P_T: free chunks of all owners.
    pub free: u32,
    /// theta: chunks that stay free.
    pub threshold: u32,
    /// P_B: free chunks of the CPU buffer; 0 without a buffer, which rules out admission by offload.
    pub buffer: u32,
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
/// in prefill also if that holds without its KV and its KV fits into the buffer.
pub fn admit(phase: Phase, supply: Supply, queue: &[Need]) -> Admission {
    let mut batch = Admission { buffer_left: supply.buffer, ..Admission::default() };
    for need in queue {
        if batch.leaves_threshold(supply, need.kv, need.activation) {
            batch.add(need.kv, need.activation, false);
        } else if phase == Phase::Prefill && batch.takes_by_offload(supply, *need) {
            batch.buffer_left -= need.kv;
            batch.add(0, need.activation, true);
        } else {
            break;
        }
    }
    batch
}

impl Admission {
    /// Tests the second inequality of prefill: at least theta chunks stay free without the request's KV, and its KV
    /// fits into the remaining buffer. The buffer may use another unit if `need.kv` uses the same.
    pub fn takes_by_offload(&self, supply: Supply, need: Need) -> bool {
        self.leaves_threshold(supply, 0, need.activation) && need.kv <= self.buffer_left
    }

    fn leaves_threshold(&self, supply: Supply, kv: u32, activation: u32) -> bool {
        let taken = [self.kv, self.activation, kv, activation, supply.threshold].map(u64::from);
        taken.iter().sum::<u64>() <= u64::from(supply.free)
    }

    fn add(&mut self, kv: u32, activation: u32, offloaded: bool) {
        self.kv += kv;
        self.activation += activation;
        self.offloaded.push(offloaded);
    }
}
