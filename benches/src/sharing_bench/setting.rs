//! [`Setting`]: what all rules have in common.

use std::path::Path;

use anyhow::Result;

use super::size::Size;
use super::tenants::TENANTS;
use super::victim_policy::VictimPolicy;
use crate::policy_comparison::{self, Calibration, Load};
use crate::tenant::{BenchEnv, TenantDevice, Up};

/// Number of requests whose KV fits into a tenant's share.
const SHARE_REQUESTS: u32 = 2;

/// What all rules have in common: a device, what a client is promised, and the KV of a request.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The GPU of all three.
    pub device: TenantDevice,
    /// One burst to a tenant.
    pub burst: Load,
    /// Pace of a stream, milliseconds.
    pub pace_ms: u64,
    /// Objective for the first token, milliseconds.
    pub ttft_ms: u64,
    /// Objective for the time between tokens, milliseconds.
    pub tbt_ms: u64,
    /// What was measured of the model.
    pub calibration: Calibration,
}

impl Setting {
    /// Measures the model in `world`, and sizes a GPU with a link on which a layer's copy takes `ratio` times its
    /// compute.
    pub fn measure(world: &BenchEnv, size: Size, ratio: f64) -> Result<Setting> {
        let calibration = policy_comparison::calibrate(world, size.burst())?;
        Ok(Setting::of(calibration, size.burst(), ratio))
    }

    fn of(calibration: Calibration, burst: Load, ratio: f64) -> Setting {
        let share = calibration.short_device(SHARE_REQUESTS * burst.context(), calibration.link_for(ratio));
        let memory_bytes = share.memory_bytes * TENANTS.len() as u64;
        let step_ns = calibration.compute_ns * calibration.layers;
        // Slower than the tokens of a full batch come, so that a stream has some in reserve; what a reader is used to.
        let pace_ms = (3 * step_ns).div_ceil(1_000_000).max(50);
        // Twice what a burst gets where memory is ample: one that is served in parts does not keep it.
        let ttft_ms = (2.0 * calibration.ttft_ms).ceil() as u64;
        let device = TenantDevice { memory_bytes, ..share };
        Setting { device, burst, pace_ms, ttft_ms, tbt_ms: 2 * pace_ms, calibration }
    }

    /// The pool and the three tenants under `rule`, which all serve the model in `folder`.
    pub fn yaml(&self, rule: VictimPolicy, folder: &Path) -> String {
        let pool = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: bench}}\nspec:\n  \
             deviceClassName: host.sluice.dev\n  {}\n  \
             gpus: [{{name: shared, sharing: {{mode: Temporal, temporal: {{order: RoundRobin}}}}}}]\n  \
             hostMemoryPerGPU: 48Gi\n  policy: {}\n  remap: {{victim: {}}}\n",
            self.device.yaml(),
            rule.policy,
            rule.victim
        );
        TENANTS.iter().fold(pool, |yaml, name| yaml + &self.tenant(name, folder))
    }

    fn tenant(&self, name: &str, folder: &Path) -> String {
        let Setting { ttft_ms, pace_ms, .. } = *self;
        format!(
            "---\napiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: {name}}}\nspec:\n  \
             poolRef: {{name: bench}}\n  drainSeconds: 1\n  \
             slo: {{ttftMilliseconds: {ttft_ms}, tbtMilliseconds: {pace_ms}}}\n  \
             model: {{source: {{type: File, file: {{path: {:?}}}}}, maxModelLen: {}}}\n",
            folder.display().to_string(),
            self.burst.context()
        )
    }

    /// Starts the tenants under `rule`.
    pub fn start<'a>(
        &self,
        world: &'a BenchEnv,
        name: &str,
        rule: VictimPolicy,
        port: u16,
    ) -> Result<Up<'a>> {
        Up::start(world, name, &self.yaml(rule, world.model()), &TENANTS, port, &[])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::victim_policy::{FIXED, LRU, MRU};
    use super::*;

    pub(in crate::sharing_bench) fn setting() -> Setting {
        let calibration = Calibration {
            chunk_bytes: 1 << 16,
            fixed_bytes: 60 << 20,
            layers: 32,
            layer_bytes: 13 << 17,
            token_bytes: 1 << 15,
            ttft_ms: 150.2,
            compute_ns: 250_000,
        };
        Setting::of(calibration, Size::FULL.burst(), 7.5)
    }

    #[test]
    fn the_tenants_are_ones_that_the_product_takes() {
        for rule in [FIXED, MRU, LRU] {
            let yaml = setting().yaml(rule, Path::new("/m"));
            let loaded = sluice_types::load::load_valid_str(&yaml, "bench.yaml");
            assert_eq!(loaded.unwrap_or_else(|errors| panic!("{errors:?}")).len(), 4);
        }
    }

    #[test]
    fn burst_exhausts_its_share_and_fits_with_loan_of_one_peer() {
        let Setting { device, burst, calibration, .. } = setting();
        let request = u64::from(burst.prompt + burst.output) * calibration.token_bytes;
        let needed = u64::from(burst.requests) * request;
        let kv = device.memory_bytes / 3 - calibration.fixed_bytes;
        // `maxRemappedPercent` is 60 by default.
        let layers = calibration.layers * 60 / 100 * calibration.layer_bytes;
        assert!(kv >= u64::from(SHARE_REQUESTS) * request && kv * 2 < needed, "{kv} of {needed}");
        assert!(kv + layers >= needed, "{kv} and {layers} of {needed}");
    }

    #[test]
    fn objectives_follow_from_the_speed_of_the_model() {
        let fast = setting();
        assert_eq!((fast.pace_ms, fast.tbt_ms, fast.ttft_ms), (50, 100, 301));
        // A step of 32 layers takes 32 ms.
        let slow = Calibration { compute_ns: 1_000_000, ..fast.calibration };
        assert_eq!(Setting::of(slow, fast.burst, 7.5).pace_ms, 96);
    }
}
