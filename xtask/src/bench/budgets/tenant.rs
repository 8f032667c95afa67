//! A tenant with ample KV, and one request to it.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::run::capture;
use crate::tenant::{Device, Setup, Tenant, World};

/// 24 layers of 3.1 MiB: a decode step takes milliseconds, and a run of the model fits any machine.
#[rustfmt::skip]
pub const MODEL: &[&str] = &[
    "--layers", "24", "--hidden", "384", "--heads", "6", "--kv-heads", "3", "--intermediate", "1024",
    "--vocab", "512", "--max-positions", "512",
];
/// Device memory: weights and activations are a third of it, all the rest is KV.
const DEVICE: Device = Device { memory_bytes: 256 << 20, chunk_bytes: 64 << 10, link_bytes_per_s: None };

/// Starts it under `policy`.
pub fn start<'a>(world: &'a World, policy: &str) -> Result<Tenant<'a>> {
    let threads = Some(engine_threads());
    Tenant::start(world, policy, &Setup { policy, device: DEVICE, context: 512, paced: false, threads })
}

/// All cores but one, which is left to the sidecar and its client: who competes for it must not be what is measured.
fn engine_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().saturating_sub(1).max(1))
}

/// One greedy completion by `sluice bench`; returns its text. Equal prompts for equal lengths.
pub fn complete(world: &World, tenant: &Tenant<'_>, prompt_tokens: u32, tokens: u32) -> Result<String> {
    let outputs = tenant.files().join("outputs.json");
    let mut bench = world.command("sluice");
    bench.args(["bench", "--json", "-n", "1", "--url", &tenant.url(), "--outputs"]).arg(&outputs);
    bench.args(["--lengths", &format!("{prompt_tokens}:{tokens}"), "--vocab", "512"]).stderr(Stdio::null());
    let (status, report) = capture(&mut bench, &world.stop)?;
    ensure!(status.success(), "sluice bench failed: {report}");
    let texts: Vec<String> = serde_json::from_slice(&std::fs::read(&outputs)?)?;
    texts.into_iter().next().context("sluice bench wrote no answer")
}
