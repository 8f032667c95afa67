//! The GPU of a soak, its sharing mode, and the sleep settings of its tenants.

use super::super::rng::Rng;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Options of each tenant's model, without a seed.
    pub model: &'static str,
    /// Device memory of all tenants together, MiB.
    pub memory_mib: u64,
    /// Bandwidth of the link.
    pub link: &'static str,
    /// Sharing mode.
    pub sharing: &'static str,
    /// Victim rule.
    pub remap: &'static str,
    /// Loan time without renewal, milliseconds; `None` = the default.
    pub loan_ms: Option<u64>,
}

/// Sleep settings of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepConfig {
    /// Host memory for KV.
    pub host_kv: &'static str,
    /// Idle time until hibernation, seconds.
    pub hibernates_after: u32,
}

/// 21.3 MiB of weights; a sequence of 256 tokens has 2 MiB of KV.
const LARGE: &str = "--layers 16 --hidden 256 --heads 8 --kv-heads 4 --intermediate 640";
/// 2.9 MiB of weights; a sequence of 256 tokens has 0.5 MiB of KV.
const SMALL: &str = "--layers 8 --hidden 128 --heads 4 --kv-heads 2 --intermediate 320";

/// For every seed, two, three and eight tenants get three different modes, so that at most one of them trades
/// nothing.
pub const SHARINGS: [&str; 7] = [
    "{mode: Temporal, temporal: {order: RoundRobin}}",
    "{mode: Spatial}",
    "{mode: Temporal, temporal: {order: Priority}}",
    "{mode: Isolated, isolated: {profile: 1g.9gb}}",
    "{mode: Temporal, temporal: {order: RoundRobin, minQuantumMilliseconds: 1, maxQuantumMilliseconds: 10}}",
    "{mode: Spatial}",
    "{mode: Temporal, temporal: {order: RoundRobin}}",
];

pub const REMAPS: [&str; 6] = [
    "{victim: MostRecentlyUsed, minResidenceMilliseconds: 0}",
    "{victim: MostRecentlyUsed, minResidenceMilliseconds: 200}",
    "{victim: LeastRecentlyUsed, minResidenceMilliseconds: 0}",
    "{victim: LeastRecentlyUsed, minResidenceMilliseconds: 50}",
    "{victim: FixedOrder, minResidenceMilliseconds: 0}",
    "{victim: FixedOrder, minResidenceMilliseconds: 50}",
];

/// Likewise, at most one of the three has loans that outlast every stop.
const LOANS_MS: [Option<u64>; 4] = [Some(300), Some(1_000), Some(500), None];
const HOST_KV: [&str; 3] = ["512Ki", "2Mi", "16Mi"];
/// The minimum is 2.
const HIBERNATES_AFTER: [u32; 4] = [2, 2, 3, 600];

impl Gpu {
    pub(super) fn draw(seed: u64, tenants: usize) -> Gpu {
        let mut dice = Rng::of(seed, "gpu");
        let small = tenants > 3;
        // The slowest link takes a second for the weights of one tenant.
        let links = if small { ["1Gi", "64Mi", "16Mi", "8Mi"] } else { ["2Gi", "512Mi", "64Mi", "16Mi"] };
        Gpu {
            model: if small { SMALL } else { LARGE },
            memory_mib: tenants as u64 * if small { 6 } else { 29 },
            link: dice.pick(&links),
            remap: dice.pick(&REMAPS),
            sharing: turned(&SHARINGS, &mut dice, tenants),
            loan_ms: turned(&LOANS_MS, &mut dice, tenants),
        }
    }

    /// Returns the number of GPUs and their MiB: a slice for each tenant if they share nothing.
    pub fn slices(&self, tenants: usize) -> (u32, u64) {
        match self.trades() {
            true => (1, self.memory_mib),
            false => (tenants as u32, self.memory_mib / tenants as u64),
        }
    }

    /// Bytes of device memory.
    pub fn capacity_bytes(&self) -> u64 {
        self.memory_mib << 20
    }

    /// Whether memory changes hands.
    pub fn trades(&self) -> bool {
        !self.sharing.contains("Isolated")
    }

    /// Loan time, milliseconds.
    pub fn loan_ms(&self) -> u64 {
        self.loan_ms.unwrap_or(10_000)
    }
}

/// Numbers of tenants that differ by less than the number of items get different items.
fn turned<T: Copy>(of: &[T], dice: &mut Rng, tenants: usize) -> T {
    of[(dice.between(0, of.len() as u64) as usize + tenants) % of.len()]
}

impl SleepConfig {
    pub(super) fn draw(dice: &mut Rng) -> SleepConfig {
        SleepConfig { host_kv: dice.pick(&HOST_KV), hibernates_after: dice.pick(&HIBERNATES_AFTER) }
    }

    /// In a tenant's `spec`.
    pub fn yaml(self) -> String {
        let SleepConfig { host_kv, hibernates_after } = self;
        let idle = format!("idle: {{afterSeconds: 1, hibernateAfterSeconds: {hibernates_after}}}");
        format!("memory: {{hostKv: {host_kv}}}, {idle}")
    }
}
