//! Algorithm 1, lines 23 to 28: the direction in which chunks change owner. Only labels change, no byte is copied.

/// A change of owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balloon {
    /// Both pools hold what is needed.
    Level,
    /// I > 0: this many activation chunks become KV.
    Inflate(u32),
    /// I < 0: this many KV chunks become activations.
    Deflate(u32),
    /// Both pools together hold less than is needed. Nothing moves: the step takes all it needs or nothing, and the
    /// remedies go on (offload, or wait).
    Short {
        /// Chunks missing.
        missing: u32,
    },
}

impl Balloon {
    /// I of Algorithm 1: positive for activations to KV, negative the other way, 0 when nothing moves.
    pub fn inflation(self) -> i64 {
        match self {
            Balloon::Inflate(chunks) => i64::from(chunks),
            Balloon::Deflate(chunks) => -i64::from(chunks),
            Balloon::Level | Balloon::Short { .. } => 0,
        }
    }
}

/// Decides for free pools (`free_kv` = P_kv, `free_activation` = P_act) and a batch's needs (M_kv, M_act), chunks. The
/// printed conditions compare each pool with its own need; that the giving pool can cover the amount is added here.
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
