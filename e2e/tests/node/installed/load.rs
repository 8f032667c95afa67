//! Load on tenants: many concurrent requests, and open streams.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::Value;
use sluice_client::chunk_text;
use sluice_e2e::cluster::eventually;
use tokio::task::{JoinHandle, JoinSet};

use super::ask::{COMPLETIONS, completion, open, text_of};
use super::processes::{Stopped, container};
use super::{PROMPT, Product, value};

/// More requests than fit into a tenant's own KV memory, and their answers.
pub struct Load {
    prompts: Vec<String>,
    expected: Vec<String>,
}

/// Maximum attempts to stop an engine in the middle of all streams, and to repeat a load until it borrows memory.
const TRIES: u32 = 5;
/// Number of requests.
const REQUESTS: usize = 40;
/// Answers of the model, the same for every test of the binary.
static EXPECTED: OnceLock<Vec<String>> = OnceLock::new();

impl Load {
    /// Creates prompts and gets each answer from an otherwise idle tenant.
    pub async fn new(product: &Product<'_>, tenant: &str) -> Load {
        // All prompts differ: equal prompts share their KV.
        let prompts: Vec<_> = (0..REQUESTS).map(|n| format!("{PROMPT} {n} friends")).collect();
        if EXPECTED.get().is_none() {
            let mut expected = Vec::new();
            for prompt in &prompts {
                expected.push(product.answer(tenant, prompt, 200).await);
            }
            EXPECTED.get_or_init(|| expected);
        }
        Load { prompts, expected: EXPECTED.get().expect("just answered").clone() }
    }

    /// Returns the first `count` of the requests.
    pub fn part(&self, count: usize) -> Load {
        Load { prompts: self.prompts[..count].to_vec(), expected: self.expected[..count].to_vec() }
    }

    /// Sends all requests at once. The tasks return the complete answers; requests may fail.
    pub fn sent(&self, product: &Product<'_>, tenant: &str) -> JoinSet<Option<String>> {
        let body = |prompt: &String| completion(tenant, prompt, 200, false);
        let requests = self.prompts.iter().map(|prompt| product.post(tenant, COMPLETIONS, &body(prompt)));
        requests.map(|request| async { request.send().await.ok()?.text().await.ok() }).collect()
    }

    /// Sends all requests again once all sent ones have been answered.
    pub fn keep_sent(&self, product: &Product<'_>, tenant: &str, requests: &mut JoinSet<Option<String>>) {
        while requests.try_join_next().is_some() {}
        if requests.is_empty() {
            *requests = self.sent(product, tenant);
        }
    }

    /// Waits for the sent requests. Returns the number of incomplete answers.
    ///
    /// # Panics
    /// If a complete answer is not the answer to any of the prompts.
    pub async fn ended(&self, mut requests: JoinSet<Option<String>>) -> usize {
        let mut cut = 0;
        while let Some(body) = requests.join_next().await {
            let body = body.unwrap().and_then(|body| serde_json::from_str::<Value>(&body).ok());
            match body.as_ref().and_then(|body| body["choices"][0]["text"].as_str()) {
                Some(text) => {
                    assert!(self.expected.iter().any(|one| one == text), "{text:?} is another answer")
                }
                None => cut += 1,
            }
        }
        cut
    }

    /// Repeats [`Load::answered`] until `done`.
    pub async fn answered_until(&self, product: &Product<'_>, tenant: &str, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            self.answered(product, tenant).await;
        }
    }

    /// Sends all requests at once, to another tenant of the same model.
    ///
    /// # Panics
    /// If an answer differs.
    pub async fn answered(&self, product: &Product<'_>, tenant: &str) {
        let many = self.prompts.iter().map(|prompt| product.answer(tenant, prompt, 200));
        let answers = futures_util::future::join_all(many).await;
        assert_eq!(answers, self.expected, "what happens to memory and processes changes no token");
    }
}

impl Product<'_> {
    /// Loads a tenant, whose pod has this address, with more than its memory holds. Repeats the load if no peer
    /// lent memory in time, as on a busy machine. Does not use the API server.
    ///
    /// # Panics
    /// If it borrowed nothing, or if a token differs.
    pub async fn borrows(&self, tenant: &str, address: &str, load: &Load) {
        let moves = |metrics: &str| value(metrics, "sluice_moves_total", tenant, &[("reason", "borrow")]);
        let before = moves(&self.metrics(address).await);
        for _ in 0..TRIES {
            load.answered(self, tenant).await;
            if moves(&self.metrics(address).await) > before {
                return;
            }
        }
        panic!("{tenant} borrowed nothing in {TRIES} times\n{}", self.metrics(address).await);
    }

    /// Opens streams of `tokens` tokens, and waits for the first token of each.
    pub async fn streams(&self, tenant: &str, count: usize, tokens: u32) -> Streams {
        let begun = Arc::new(AtomicUsize::new(0));
        let request = || self.post(tenant, COMPLETIONS, &completion(tenant, PROMPT, tokens, true));
        let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(read(request(), Arc::clone(&begun)))).collect();
        let all = async || (begun.load(Ordering::Relaxed) == count).then_some(());
        eventually(&format!("{count} streams of {tenant} speak"), all).await;
        Streams(tasks)
    }

    /// Same as [`Product::streams`] on a node of ours, but stops the engine in the middle of them.
    ///
    /// # Panics
    /// If streams finish before the stop at every attempt: the machine is busy with other work.
    pub async fn held_streams(&self, tenant: &str, count: usize, tokens: u32) -> (Streams, Stopped) {
        let (streams, mut engines) = self.held_streams_of_all(tenant, count, tokens).await;
        assert_eq!(engines.len(), 1, "pods of {tenant}");
        (streams, engines.remove(0))
    }

    /// Same as [`Product::held_streams`] for a tenant of several slots: each slot has some of the streams, and all
    /// engines are stopped. The load balancer may not know a slot yet that has just become ready.
    pub async fn held_streams_of_all(
        &self,
        tenant: &str,
        count: usize,
        tokens: u32,
    ) -> (Streams, Vec<Stopped>) {
        let worker = |pod: &Value| container(pod, "engine").worker().expect("who is ready has an engine");
        let engines: Vec<_> = self.pods(tenant).iter().map(worker).collect();
        for _ in 0..TRIES {
            let streams = self.streams(tenant, count, tokens).await;
            let stopped = engines.iter().map(|engine| Stopped::stop(*engine)).collect();
            if streams.ended() == 0 && self.each_slot_is_asked(tenant).await {
                return (streams, stopped);
            }
            drop::<Vec<Stopped>>(stopped);
            streams.end().await;
        }
        panic!(
            "the first of {count} streams of {tenant} has always ended before the last has begun, or some slot had none"
        );
    }

    async fn each_slot_is_asked(&self, tenant: &str) -> bool {
        for pod in self.pods(tenant) {
            let address = pod["status"]["podIP"].as_str().expect("who is ready has an address");
            if value(&self.metrics(address).await, "sluice_open_requests", tenant, &[]) == 0.0 {
                return false;
            }
        }
        true
    }
}

/// Open streams, each read by a task.
pub struct Streams(Vec<JoinHandle<String>>);

impl Streams {
    /// Number of finished streams.
    pub fn ended(&self) -> usize {
        self.0.iter().filter(|task| task.is_finished()).count()
    }

    /// Waits for the ends of the streams. Ignores their text.
    async fn end(self) {
        for task in self.0 {
            task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
        }
    }

    /// Waits for the ends of the streams.
    ///
    /// # Panics
    /// If one was cut, or its text is not `expected`.
    pub async fn end_with(self, expected: &str) {
        for task in self.0 {
            let text = task.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            assert_eq!(text, expected);
        }
    }
}

async fn read(request: reqwest::RequestBuilder, begun: Arc<AtomicUsize>) -> String {
    let mut events = open(request).await;
    let first = events.next().await.unwrap();
    begun.fetch_add(1, Ordering::Relaxed);
    let text = first.as_ref().and_then(chunk_text).unwrap_or_default().to_owned();
    text + &text_of(events).await
}
