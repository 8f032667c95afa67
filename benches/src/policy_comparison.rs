//! One load, several policies: a tenant with too little KV for its load, the same for each policy.
//!
//! The device is sized from the needs of the model and the link from the speed of the model here, so that the load
//! exhausts KV and r = T_T / T_c has the intended value on any machine.

mod calibration;
mod outcome;

use anyhow::Result;
use serde_json::Value;

pub use calibration::{Calibration, calibrate};
pub use outcome::PolicyRunFigures;

use crate::client::{self, Client, ClientReport};
use crate::tenant::{BenchEnv, Tenant, TenantDevice, TenantOptions};

/// 64 layers of 1.6 MB: enough of them that a few may move at r = 7.5, small enough that two cores decode a hundred
/// tokens a second.
#[rustfmt::skip]
pub const MODEL: &[&str] = &[
    "--layers", "64", "--hidden", "256", "--heads", "4", "--kv-heads", "4", "--intermediate", "688", "--vocab",
    "512", "--max-positions", "512",
];

/// Requests sent to each policy. T_c hardly grows up to this concurrency, as on a GPU: what a larger batch gains is
/// the policy's doing.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests of one run.
    pub requests: u32,
    /// Open at once.
    pub concurrency: u32,
    /// Prompt, tokens.
    pub prompt: u32,
    /// Output, tokens.
    pub output: u32,
}

/// The load of the benchmark.
pub const LOAD: Load = Load { requests: 24, concurrency: 4, prompt: 32, output: 64 };

impl Load {
    /// Longest context the tenant serves: one request, and a block to spare.
    pub fn context(&self) -> u32 {
        self.prompt + self.output + 8
    }

    /// A tenant for it.
    pub fn setup<'a>(&self, policy: &'a str, device: TenantDevice) -> TenantOptions<'a> {
        TenantOptions { policy, device, context: self.context(), paced: true, threads: None, page: false }
    }

    fn options(&self) -> Vec<String> {
        let lengths = format!("{}:{}", self.prompt, self.output);
        let (requests, concurrency) = (self.requests.to_string(), self.concurrency.to_string());
        ["-n", &requests, "--lengths", &lengths, "--concurrency", &concurrency, "--vocab", "256"]
            .map(String::from)
            .to_vec()
    }
}

/// Runs the load against a fresh tenant under `policy`; `show` sees its state twice a second.
pub fn run(
    world: &BenchEnv,
    policy: &str,
    device: TenantDevice,
    load: Load,
    mut show: impl FnMut(&Value),
) -> Result<PolicyRunFigures> {
    let tenant = Tenant::start(world, &policy.to_lowercase(), &load.setup(policy, device))?;
    let mut seen = outcome::Observed::default();
    let report = burst(world, &tenant, load, |state| {
        seen.look(state);
        show(state);
    })?;
    PolicyRunFigures::new(&report.figures, &tenant.state()?, seen, report.outputs)
}

/// Sends the load by `sluice bench`.
fn burst(
    world: &BenchEnv,
    tenant: &Tenant<'_>,
    load: Load,
    mut look: impl FnMut(&Value),
) -> Result<ClientReport> {
    let outputs = tenant.files().join("outputs.json");
    let client = Client::new(world, &tenant.url(), outputs, &load.options());
    let mut meanwhile = client::looking(&world.stop, || tenant.state().map(|state| look(&state)));
    let mut reports = client::run_all(vec![client], &world.stop, &mut meanwhile)?;
    Ok(reports.remove(0))
}
