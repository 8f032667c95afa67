//! Tokens that the simulator makes in a second of wall time, over times alone: OPT-13B on a GH200, two requests a second with
//! prompts of 128 tokens and answers of 256, where KV stays on the device and where some of it is away.
//!
//! Run with `cargo run --release -p sluice-sim --example sim_speed`; with `-- --json` as JSON. The limit says no more than that
//! an hour of such a load is simulated in some minutes.

use std::process::ExitCode;
use std::time::Instant;

use sluice_policy::params::PolicyName;
use sluice_sim::gpu::Sharing;
use sluice_sim::profiles::{hardware, model};
use sluice_sim::serve::{self, ServeConfig};
use sluice_sim::workload::{Arrival, Lengths};

/// Tokens a second at least.
const LIMIT: f64 = 5_000.0;
const REQUESTS: u64 = 200;
const GAP_NS: u64 = 500_000_000;
const LENGTHS: Lengths = Lengths { prompt: 128, output: 256 };

fn case(policy: PolicyName) -> ServeConfig {
    let machine = *hardware::find("gh200").expect("a machine of the list");
    let model = *model::find("opt-13b").expect("a model of the list");
    ServeConfig::new(machine, serve::tenant_models(&machine, &[model], &[300]), Sharing::Isolated, policy)
}

/// Tokens made, and how many that is in a second.
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
