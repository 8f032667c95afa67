//! Access control: API keys and the limits of the YAML.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_client::RequestError;

use crate::support::http::{self, CLIENT, Raw};
use crate::support::tenant::{greedy, prompt};
use crate::support::{Tenant, TestEnv, Yaml, eventually, slow};

/// Time after which a key that was removed from its file is refused.
const REVOKED_WITHIN: Duration = Duration::from_secs(60);
const MODEL: &str = "--layers 2 --hidden 64 --intermediate 128 --vocab 300 --max-positions 512";

#[tokio::test(flavor = "multi_thread")]
async fn only_listed_api_keys_are_accepted() {
    let world = TestEnv::new();
    let model = world.model("model", MODEL);
    world.write("keys", "# of the team\nsk-first\n\n  sk-second  \n");
    let mut up =
        world.up(&Yaml::pool("16Mi").tenant("locked", &model, "", "access: {apiKeysFile: keys}"), &[]);
    let tenant = up.ready("locked").await;
    for key in [None, Some("sk-third"), Some("sk-firs"), Some("# of the team"), Some("")] {
        let (status, body) = status(&tenant, key).await;
        assert_eq!(
            (status, body["error"]["code"].as_str()),
            (401, Some("invalid_api_key")),
            "{key:?}: {body}"
        );
    }
    for key in ["sk-first", "sk-second"] {
        assert_eq!(status(&tenant, Some(key)).await.0, 200, "{key}");
    }
    let models = CLIENT.get(tenant.url("/v1/models")).send().await.unwrap();
    assert_eq!(models.status(), 401);
    assert_eq!(http::get_status(&tenant.url("/health")).await.unwrap(), 200, "probes need no key");

    world.write("keys", "\u{feff}# of the team\r\nsk-second\r\n");
    let revoked = Instant::now();
    eventually("the revoked key is refused", async || {
        (status(&tenant, Some("sk-first")).await.0 == 401).then_some(())
    })
    .await;
    assert!(revoked.elapsed() < REVOKED_WITHIN, "{:?}", revoked.elapsed());
    assert_eq!(status(&tenant, Some("sk-second")).await.0, 200);
    assert!(!world.stderr().contains("sk-"), "keys are not for logs");
    up.end_cleanly().await;
}

async fn status(tenant: &Tenant, key: Option<&str>) -> (u16, Value) {
    match http::post(&tenant.url("/v1/completions"), &greedy(&prompt(1, 4), 2), key).await {
        Ok(response) => (response.status().as_u16(), Value::Null),
        Err(RequestError::Refused { status, body, .. }) => (status.as_u16(), body),
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_file_that_is_missing_or_empty_is_refused_by_name() {
    for text in [None, Some("# nobody\n")] {
        let world = TestEnv::new();
        let model = world.model("model", MODEL);
        text.map(|text| world.write("keys", text));
        let yaml = Yaml::pool("16Mi").tenant("locked", &model, "", "access: {apiKeysFile: keys}");
        let outcome = world.up(&yaml, &[]).ended().await;
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(78), ""), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("spec.access.apiKeysFile: "), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("/keys"), "{}", outcome.stderr);
        world.assert_no_leftovers().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_names_of_the_yaml_hold() {
    let world = TestEnv::new();
    let limits = "limits: {maxStreams: 2, maxPromptTokens: 30, maxBodyBytes: 2Ki}";
    let (up, tenant) = slow::start(&world, limits).await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 30).await;

    let (status, error, _) = tenant.refusal(&greedy(&prompt(1, 31), 1)).await;
    assert_eq!((status, error["param"].as_str()), (400, Some("prompt")), "{error}");
    assert_eq!(tenant.complete(&greedy(&prompt(1, 30), 1)).await.unwrap().tokens.len(), 1);

    let (status, error, _) = tenant.refusal(&json!({"prompt": "p", "user": "u".repeat(2048)})).await;
    assert_eq!(status, 413, "{error}");
    let (status, error, _) = tenant.refusal(&json!({"prompt": "p", "model": "another"})).await;
    assert_eq!((status, error["code"].as_str()), (404, Some("model_not_found")), "{error}");

    let (mut one, mut two) = (tenant.stream(&body).await, tenant.stream(&body).await);
    one.until_tokens(1).await;
    two.until_tokens(1).await;
    let (status, error, retry) = tenant.refusal(&body).await;
    assert_eq!((status, error["code"].as_str()), (429, Some("rate_limit_exceeded")), "{error}");
    assert!(retry.is_some_and(|seconds| seconds.parse::<u32>().unwrap() > 0), "it says when to come again");
    assert_eq!(
        [one.finish().await.unwrap(), two.finish().await.unwrap()],
        [expected.clone(), expected.clone()]
    );
    assert_eq!(tenant.complete(&body).await.unwrap(), expected, "the places are free again");
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_returns_429_and_queued_requests_complete() {
    let world = TestEnv::new();
    let (up, tenant) = slow::start(&world, "limits: {maxQueuedRequests: 1}").await;
    let (body, expected) = slow::undisturbed(&tenant, 1, 20).await;
    let requests: Vec<_> = (0..100)
        .map(|_| {
            let (tenant, body) = (tenant.clone(), body.clone());
            tokio::spawn(async move { tenant.complete(&body).await })
        })
        .collect();
    let (mut served, mut refused) = (0, 0);
    for request in requests {
        match request.await.unwrap() {
            Ok(answer) => {
                assert_eq!(answer, expected);
                served += 1;
            }
            Err(RequestError::Refused { status, body, retry_after }) => {
                assert_eq!((status.as_u16(), retry_after.is_some()), (429, true), "{body}");
                refused += 1;
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(served >= 1 && refused >= 1, "{served} served, {refused} refused");
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connection_is_kept_alive() {
    let world = TestEnv::new();
    let model = world.model("model", MODEL);
    let mut up = world.up(&Yaml::pool("16Mi").tenant("a", &model, "", ""), &[]);
    let tenant = up.ready("a").await;
    let mut kept = Raw::connect(&tenant.address).await;
    let body = greedy(&prompt(1, 4), 2).to_string();
    kept.post(body.as_bytes()).await;
    assert_eq!(kept.status().await, Some(200));
    // Longer than the limit for a request head at the other ports.
    assert!(!kept.closes_within(Duration::from_secs(12)).await, "a load balancer would lose a request");
    drop(kept);
    up.end_cleanly().await;
}
