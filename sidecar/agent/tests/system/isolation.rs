//! Tests that no request changes another's response or status, with a real engine behind a real gateway.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::Router;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use sluice_agent::gateway::limits::RequestLimiter;
use sluice_agent::gateway::serve::{ListenerLimits, serve};
use sluice_agent::gateway::{ApiKeys, Gateway};
use sluice_agent::metrics::Metrics;
use sluice_agent::model::text::Text;
use sluice_common::random::Rng;
use sluice_policy::token_deposit::Pacing;
use sluice_scheduler::Finish;
use sluice_wire::config::{LimitsConfig, SidecarConfig, SloConfig};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::models::{Shape, generate};
use crate::support::{Tenant, TestRequest, assert_same, config, random_prompt};
use crate::tokenizers::{ModelFolder, folders, texts};

pub const VOCAB: u32 = 512;
const CONTEXT: u32 = 192;
pub const SHAPE: Shape = Shape { family: "llama", dtype: "f32", layers: 3, hidden: 64, vocab: VOCAB };
/// Longest wait.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest text of the random requests, bytes.
const HUGE_BYTES: usize = 500_000;

pub fn tenant_config(model: &Path) -> SidecarConfig {
    let mut config = config(model, 64 << 20, "Unified");
    config.max_model_len = Some(CONTEXT);
    config
}

/// Returns the API of `tenant`, with the text files of `folder`.
fn router(tenant: &Tenant, folder: &Path) -> Router {
    let metrics = Arc::new(Metrics::new("tenant", &SloConfig::default()));
    let limits = LimitsConfig::default();
    let gateway = Gateway {
        text: Arc::new(Text::open(folder).unwrap_or_else(|error| panic!("{error}"))),
        service: tenant.service.clone(),
        served_names: vec!["tenant".into()],
        vocab: VOCAB,
        max_model_tokens: CONTEXT,
        limiter: RequestLimiter::new(limits.max_streams, metrics.clone()),
        limits,
        stream_pacing: Pacing::Immediate,
        api_keys: ApiKeys::default(),
        metrics,
        started: 0,
        next_response: AtomicU64::new(0),
    };
    Arc::new(gateway).router()
}

/// The API of a tenant on a socket.
pub struct TestServer {
    pub address: SocketAddr,
    runtime: Runtime,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl TestServer {
    /// Serves `tenant` with the text files of `folder`.
    pub fn start(tenant: &Tenant, folder: &Path) -> TestServer {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let limits = ListenerLimits { max_connections: 64, drain_timeout: TIMEOUT };
        let serving = runtime.spawn(serve(listener, router(tenant, folder), limits, stopped));
        TestServer { address, runtime, stop, serving }
    }

    /// Finishes open requests and stops.
    pub fn shutdown(self) {
        self.stop.send(true).unwrap();
        self.runtime.block_on(self.serving).unwrap();
    }
}

/// A request of a client.
#[derive(Clone, Debug)]
struct ClientRequest {
    path: &'static str,
    body: Value,
    /// Whether the client disconnects after the first bytes of the response.
    disconnects: bool,
}

/// Returns status and body, without the response's id and time.
async fn ask(address: SocketAddr, asked: ClientRequest) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let sent = client.post(format!("http://{address}{}", asked.path)).json(&asked.body).timeout(TIMEOUT);
    let mut response = sent.send().await.unwrap();
    let status = response.status().as_u16();
    if asked.disconnects {
        let _ = response.chunk().await;
        return (status, Value::Null);
    }
    let streamed = response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream");
    let text = response.text().await.unwrap();
    (status, if streamed { joined(&text) } else { without_ids(serde_json::from_str(&text).unwrap()) })
}

fn without_ids(mut body: Value) -> Value {
    for own in ["id", "created"] {
        body.as_object_mut().unwrap().remove(own);
    }
    body
}

/// Joins a stream's events: texts and finish reasons of its choices, and the rest. The tokens per event vary.
fn joined(stream: &str) -> Value {
    let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let (mut texts, mut rest) = (BTreeMap::<String, String>::new(), Vec::new());
    for event in events.filter(|event| *event != "[DONE]") {
        let mut event = without_ids(serde_json::from_str(event).unwrap());
        let choices = event.as_object_mut().unwrap().remove("choices").unwrap_or_default();
        for choice in choices.as_array().into_iter().flatten() {
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
            let whole = texts.entry(choice["index"].to_string()).or_default();
            *whole += text;
            *whole += choice["finish_reason"].as_str().unwrap_or_default();
        }
        if !rest.contains(&event) {
            rest.push(event);
        }
    }
    json!({"texts": texts, "rest": rest, "ended": stream.ends_with("data: [DONE]\n\n")})
}

/// Generates valid and invalid parameters.
fn parameters() -> impl Strategy<Value = Value> {
    let good = (1..16_u32, 0..3_u32, any::<i32>(), 1..3_u32, any::<bool>()).prop_map(
        |(max_tokens, temperature, seed, n, stream)| {
            json!({"max_tokens": max_tokens, "temperature": f64::from(temperature) / 2.0, "seed": seed, "n": n,
                "stream": stream, "ignore_eos": true})
        },
    );
    let bad = proptest::sample::select(vec![
        json!({"logit_bias": {"600": 1}}),
        json!({"stop_token_ids": [512]}),
        json!({"top_p": 0}),
        json!({"max_tokens": 1000}),
        json!({"stop": 5}),
    ]);
    prop_oneof![6 => good, 1 => bad]
}

fn prompt(added: Vec<String>) -> impl Strategy<Value = (&'static str, &'static str, Value)> {
    const COMPLETIONS: (&str, &str) = ("/v1/completions", "prompt");
    let text = texts(added.clone()).prop_map(|text| (COMPLETIONS.0, COMPLETIONS.1, json!(text)));
    // One in a few hundred ids is beyond the vocabulary.
    let ids = vec(prop_oneof![300 => 0..VOCAB, 1 => VOCAB..VOCAB + 9, 1 => Just(u32::MAX)], 1..100)
        .prop_map(|ids| (COMPLETIONS.0, COMPLETIONS.1, json!(ids)));
    let huge = (texts(added.clone()), 1_000..3_000_usize).prop_map(|(text, times)| {
        // Below the largest body.
        let times = times.min(HUGE_BYTES / text.len().max(1));
        (COMPLETIONS.0, COMPLETIONS.1, json!(text.repeat(times)))
    });
    let chat = vec(texts(added), 1..3).prop_map(|contents| {
        let messages: Vec<_> = contents.iter().map(|text| json!({"role": "user", "content": text})).collect();
        ("/v1/chat/completions", "messages", json!(messages))
    });
    prop_oneof![4 => text, 3 => ids, 1 => huge, 4 => chat]
}

/// Generates requests, including those of clients that disconnect during a long response.
fn requests(added: Vec<String>) -> impl Strategy<Value = Vec<ClientRequest>> {
    let staying = (prompt(added), parameters()).prop_map(|((path, param, prompt), mut body)| {
        body[param] = prompt;
        ClientRequest { path, body, disconnects: false }
    });
    let leaving = vec(0..VOCAB, 1..40).prop_map(|ids| {
        let body = json!({"prompt": ids, "max_tokens": 150, "stream": true, "ignore_eos": true});
        ClientRequest { path: "/v1/completions", body, disconnects: true }
    });
    (vec(staying, 6..14), vec(leaving, 1..4)).prop_map(|(mut all, leaving)| {
        // Placed between the others.
        for (place, one) in leaving.into_iter().enumerate() {
            all.insert(2 * place + 1, one);
        }
        all
    })
}

/// Returns the responses to the requests sent one by one, and sent all at once.
fn answers(tenant: &Tenant, folder: &Path, asked: &[ClientRequest]) -> [Vec<(u16, Value)>; 2] {
    let served = TestServer::start(tenant, folder);
    // The client library needs a provider, even without TLS connections.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let clients = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let answers = clients.block_on(async {
        let mut sequential = Vec::new();
        for one in asked {
            sequential.push(ask(served.address, one.clone()).await);
        }
        let together: Vec<_> =
            asked.iter().map(|one| tokio::spawn(ask(served.address, one.clone()))).collect();
        let mut found = Vec::new();
        for one in together {
            found.push(one.await.unwrap());
        }
        [sequential, found]
    });
    served.shutdown();
    answers
}

/// Returns the start of a request, because prompts may have megabytes.
fn shown(asked: &ClientRequest) -> String {
    format!("{asked:?}").chars().take(400).collect()
}

#[test]
fn requests_do_not_affect_each_other() {
    let model = generate(&SHAPE);
    let tenant = Tenant::start(tenant_config(model.path()));
    let cases = folders(VOCAB).prop_flat_map(|folder: ModelFolder| {
        let requests = requests(folder.added.clone());
        (Just(folder), requests)
    });
    // Counts responses, streams, refusals and invalid templates.
    let counts = std::cell::Cell::new([0_u32; 4]);
    let config = ProptestConfig {
        cases: 24,
        failure_persistence: None,
        max_shrink_iters: 60,
        ..ProptestConfig::default()
    };
    // The same cases in every run.
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&cases, |(written, asked)| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::copy(model.path().join("config.json"), folder.path().join("config.json")).unwrap();
            written.write(folder.path());
            let [sequential, together] = answers(&tenant, folder.path(), &asked);
            for ((sequential, together), asked) in sequential.iter().zip(&together).zip(&asked) {
                // Some bodies exceed the limit.
                prop_assert!(
                    [200, 400, 413].contains(&sequential.0),
                    "{} alone: {sequential:?}",
                    shown(asked)
                );
                prop_assert_eq!(together, sequential, "{}", shown(asked));
                let (good, stream) = (sequential.0 == 200, sequential.1["texts"].is_object());
                let unreadable = sequential.1.to_string().contains("the chat template cannot be used");
                let [answers, streams, refusals, templates] = counts.get();
                let (answers, streams) = (answers + u32::from(good), streams + u32::from(stream));
                counts.set([
                    answers,
                    streams,
                    refusals + u32::from(!good),
                    templates + u32::from(unreadable),
                ]);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| {
            // The message contains the whole failing input.
            panic!("{}", failure.to_string().chars().take(4000).collect::<String>())
        });
    let counts = counts.get();
    eprintln!("{counts:?}");
    let wanted = [40, 20, 40, 0];
    assert!(
        counts.iter().zip(wanted).all(|(found, wanted)| *found > wanted),
        "each sort is there: {counts:?}"
    );
    tenant.assert_nothing_leaks("random requests");
}

/// The gateway lets no such prompt through, but the isolation of other requests must not depend on that.
#[test]
fn unknown_token_fails_only_its_request() {
    let model = generate(&SHAPE);
    let tenant = Tenant::start(tenant_config(model.path()));
    let mut rng = Rng::new(5);
    let mut wanted = |tokens| TestRequest::greedy(&random_prompt(&mut rng, tokens, VOCAB.into()), 30);
    let good: Vec<_> = [5, 40, 90, 17].map(&mut wanted).to_vec();
    let sequential = tenant.serve_in_order(&good);
    let bad = [(0, VOCAB), (39, VOCAB + 7), (100, u32::MAX), (149, VOCAB)].map(|(place, token)| {
        let mut bad = wanted(150);
        bad.prompt[place] = token;
        bad
    });
    for round in 0..3 {
        let tickets: Vec<_> =
            good.iter().zip(&bad).map(|(good, bad)| [tenant.submit(bad), tenant.submit(good)]).collect();
        let mut found = Vec::new();
        for [bad, good] in tickets {
            let (answer, finish) = tenant.finish(bad);
            let refused =
                |why: &str| why.contains("the engine refused the sequence: token") && why.contains("512");
            assert!(matches!(&finish, Finish::Failed(why) if refused(why)), "round {round}: {finish:?}");
            assert!(answer.tokens.is_empty(), "round {round}");
            found.push(tenant.collect(good));
        }
        assert_same(&found, &sequential, &format!("round {round}"));
    }
    tenant.assert_nothing_leaks("unknown tokens");
}
