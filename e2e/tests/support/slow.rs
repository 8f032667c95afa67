//! A tenant with long steps that need little CPU: each step streams two layers over a slow link.

use std::time::Duration;

use super::tenant::{greedy, prompt};
use super::{Answer, Tenant, TestEnv, Up, Yaml};

const MODEL: &str = "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 1024";
/// Layers forced to move. Their slabs of 80 KiB take 20 ms each over a link of 4 MiB/s.
const FORCED: [&str; 2] = ["--force-remap", "1:1"];
/// Least time of a step that follows from it.
pub const STEP: Duration = Duration::from_millis(30);

/// Starts the tenant. `spec` adds to its `spec`.
pub async fn start<'a>(world: &'a TestEnv, spec: &str) -> (Up<'a>, Tenant) {
    let model = world.model("slow", MODEL);
    let mut yaml =
        Yaml::pool("16Mi").tenant("slow", &model, "", &format!("pacing: {{mode: Immediate}}, {spec}"));
    yaml.link = Some("4Mi");
    let mut up = world.up(&yaml, &[FORCED[0], FORCED[1], "--poison"]);
    let tenant = up.ready("slow").await;
    (up, tenant)
}

/// Returns a request and its answer without a disturbance.
pub async fn undisturbed(tenant: &Tenant, seed: u32, tokens: usize) -> (serde_json::Value, Answer) {
    let body = greedy(&prompt(seed, 24), tokens);
    let begun = std::time::Instant::now();
    let answer = tenant.complete(&body).await.unwrap();
    assert_eq!((answer.tokens.len(), answer.finish.as_str()), (tokens, "length"));
    let least = STEP * u32::try_from(tokens).unwrap();
    assert!(begun.elapsed() > least, "it is slow enough to be met in the middle: {:?}", begun.elapsed());
    (body, answer)
}
