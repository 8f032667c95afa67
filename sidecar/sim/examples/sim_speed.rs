//! Measures the tokens that the simulator makes per second of wall time with `Detail::Times`: OPT-13B on a GH200, two
//! requests per second with prompts of 128 tokens and outputs of 256, with KV on the device and with part of it
//! offloaded.
//!
//! Run with `cargo run --release -p sluice-sim --example sim_speed`; add `-- --json` for JSON. The limit only ensures
//! that an hour of such a load is simulated in some minutes.

use std::process::ExitCode;
use std::time::Instant;

use sluice_policy::reclaim::PolicyName;
use sluice_sim::gpu::GpuSharing;
use sluice_sim::profiles::{hardware, model};
use sluice_sim::serve::{self, ServeConfig};
use sluice_sim::workload::{Arrival, Lengths};

/// Smallest accepted rate, tokens per second.
const LIMIT: f64 = 5_000.0;
const REQUESTS: u64 = 200;
const GAP_NS: u64 = 500_000_000;
const LENGTHS: Lengths = Lengths { prompt: 128, output: 256 };

fn case(policy: PolicyName) -> ServeConfig {
    let machine = *hardware::find("gh200").expect("a machine of the list");
    let model = *model::find("opt-13b").expect("a model of the list");
    ServeConfig::new(machine, serve::tenant_models(&machine, &[model], &[300]), GpuSharing::Isolated, policy)
}

/// Returns the tokens made, and the rate in tokens per second of wall time.
fn measure(policy: PolicyName) -> (u64, f64) {
    let coming = |at: u64| Arrival { at_ns: at * GAP_NS, tenant: 0, lengths: LENGTHS };
    let load: Vec<_> = (0..REQUESTS).map(coming).collect();
    let start = Instant::now();
    let served = serve::serve(&case(policy), &load, &mut |_| ()).expect("a case that runs");
    let tokens = served.tokens;
    (tokens, tokens as f64 / start.elapsed().as_secs_f64())
}

fn main() -> ExitCode {
    let json = std::env::args().any(|arg| arg == "--json");
    let mut all_passed = true;
    for policy in [PolicyName::Recompute, PolicyName::Oneiros, PolicyName::FlexGen, PolicyName::Unified] {
        let (tokens, rate) = measure(policy);
        let passed = tokens > 0 && rate >= LIMIT;
        all_passed &= passed;
        let name = format!("simulated tokens per second of wall time, {}", policy.name());
        if json {
            let limit = format!(r#""limit": {LIMIT}, "at_least": true, "passed": {passed}"#);
            println!(
                r#"{{"name": "{name}", "value": {rate:.0}, "unit": "tokens/s", {limit}, "detail": {{"tokens": {tokens}}}}}"#
            );
        } else {
            let verdict = if passed { "pass" } else { "fail" };
            println!("{name}: {rate:.0} of {tokens}, at least {LIMIT}: {verdict}");
        }
    }
    if all_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
