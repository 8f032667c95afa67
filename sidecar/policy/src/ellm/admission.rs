//! Algorithm 1, lines 1 to 22: whether a prompt is admitted with its KV in the CPU buffer. The scheduler decides which
//! prompts are admitted with their KV on the device.

/// A request's need in this step. `kv` and `activation` may have different units, as long as [`Supply`] has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// KV_r: KV, including what is to be fetched.
    pub kv: u32,
    /// ACT_r: activations.
    pub activation: u32,
}

/// Capacity of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Supply {
    /// P_T: what is free on the device, of all owners.
    pub free: u32,
    /// theta: what stays free.
    pub threshold: u32,
    /// P_B: what is free in the CPU buffer; 0 without a buffer, which rules out admission by offload.
    pub buffer: u32,
}

impl Supply {
    /// Tests the second inequality of prefill: at least theta stays free without the request's KV, and its KV fits into
    /// the buffer.
    pub fn fits_by_offload(self, need: Need) -> bool {
        let taken = u64::from(need.activation) + u64::from(self.threshold);
        taken <= u64::from(self.free) && need.kv <= self.buffer
    }
}
