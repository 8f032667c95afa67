//! The examples, run as in the quick start of the README: copied to a folder, with generated models at the paths
//! that they name, and otherwise unchanged.

use std::path::Path;

use crate::support::tenant::{greedy, prompt};
use crate::support::{Answer, Tenant, TestEnv, model};

/// Tenants and models of an example.
struct Example {
    text: String,
    tenants: Vec<String>,
    models: Vec<String>,
}

impl Example {
    fn read(name: &str) -> Example {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let tenants = text.split("\n---\n").filter(|document| document.contains("kind: ModelTenant"));
        let tenants = tenants.map(|tenant| values(tenant, "name:").remove(0)).collect();
        let mut models = values(&text, "path:");
        models.sort_unstable();
        models.dedup();
        Example { tenants, models, text }
    }
}

/// Returns the values of a key, without comments.
fn values(yaml: &str, key: &str) -> Vec<String> {
    let lines = yaml.lines().filter_map(|line| line.trim_start().strip_prefix(key));
    lines.map(|value| value.split('#').next().unwrap().trim().to_owned()).collect()
}

/// Checks that every tenant answers, alone and with all others, and that all end on request.
async fn serves(name: &str, tenants: &[&str]) {
    let (world, example) = (TestEnv::new(), Example::read(name));
    assert_eq!(example.tenants, tenants, "{name}");
    for (seed, path) in example.models.iter().enumerate() {
        let folder = world.path(path);
        std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
        model::generate(&folder, &format!("--seed {seed}"));
    }
    let mut up = world.up_text(&example.text, &[]);
    let mut answers = Vec::new();
    for tenant in tenants {
        let tenant = up.ready(tenant).await;
        let answer = tenant.complete(&greedy(&prompt(1, 20), 8)).await.unwrap();
        assert_eq!((answer.tokens.len(), answer.finish.as_str()), (8, "length"), "{name}: {tenant:?}");
        answers.push((tenant, answer));
    }
    let ask = |(tenant, answer)| tokio::spawn(async move { asked_again(tenant, answer).await });
    for asked in answers.into_iter().map(ask).collect::<Vec<_>>() {
        asked.await.unwrap();
    }
    up.end_cleanly().await;
}

async fn asked_again(tenant: Tenant, answer: Answer) {
    assert_eq!(tenant.complete(&greedy(&prompt(1, 20), 8)).await.unwrap(), answer, "{tenant:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quick_start_serves() {
    serves("quickstart.yaml", &["story"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gpus_serve() {
    serves("two-gpus.yaml", &["story", "summary"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_tenants_serve_in_time_slices() {
    serves("three-tenants.yaml", &["chat", "code", "summary"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn four_tenants_serve_at_once_on_two_gpus() {
    serves("spatial.yaml", &["chat", "code", "summary", "batch"]).await;
}
