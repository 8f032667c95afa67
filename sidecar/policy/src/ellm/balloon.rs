//! Algorithm 1, lines 23 to 28: decides the direction in which chunks change owner. Only ownership changes; no bytes
//! are copied.

/// The direction in which chunks pass between activations and KV, and their number; or why none passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balloon {
    /// Both pools cover their needs.
    Level,
    /// I > 0: this many activation chunks become KV.
    Inflate(u32),
    /// I < 0: this many KV chunks become activations.
    Deflate(u32),
    /// Both pools together are short. No chunk moves: the step takes all it needs or nothing, and the caller tries the
    /// next reclaim option (offload, or wait).
    Short {
        /// Chunks missing.
        missing: u32,
    },
}

/// Decides for free pools (`free_kv` = P_kv, `free_activation` = P_act) and a batch's needs (M_kv, M_act), chunks. The
/// printed conditions compare each pool with its own need; this function also checks that the giving pool covers the
/// amount.
pub fn balloon(free_kv: u32, free_activation: u32, need_kv: u32, need_activation: u32) -> Balloon {
    let free = u64::from(free_kv) + u64::from(free_activation);
    let need = u64::from(need_kv) + u64::from(need_activation);
    if need > free {
        let missing = u32::try_from(need - free).unwrap_or(u32::MAX);
        return Balloon::Short { missing };
    }
    match (need_kv.checked_sub(free_kv), need_activation.checked_sub(free_activation)) {
        (Some(chunks @ 1..), _) => Balloon::Inflate(chunks),
        (_, Some(chunks @ 1..)) => Balloon::Deflate(chunks),
        _ => Balloon::Level,
    }
}
