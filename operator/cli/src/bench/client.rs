//! Sends one streamed completion and records when its chunks arrive at the client.

use std::fmt::{Display, Formatter};
use std::io::ErrorKind;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use sluice_client::{EventStream, RequestError, send};

use super::args::BenchArgs;
use super::requests::BenchRequest;

/// The result of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    /// Send time, from the start of the run.
    pub sent_at: Duration,
    /// Time of the complete answer, from the start of the run.
    pub ended_at: Duration,
    /// From sending to the first chunk with tokens.
    pub ttft: Option<Duration>,
    /// Gaps between chunks with tokens, as they arrived. A server may put several tokens into one chunk.
    pub inter_chunk_gaps: Vec<Duration>,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the answer, as the server counts them.
    pub output_tokens: u64,
    /// The answer.
    pub text: String,
    /// Why it failed.
    pub error: Option<String>,
}

/// A connection pool and the parameters that all requests share.
pub struct BenchClient {
    http: reqwest::Client,
    url: String,
    model: String,
    api_key: Option<String>,
    ignore_eos: bool,
}

/// The model and the address of the server.
impl Display for BenchClient {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at {}", self.model, self.url)
    }
}

impl BenchClient {
    /// Connects to the server. Asks it for its model if none is named.
    pub async fn connect(args: &BenchArgs) -> anyhow::Result<Self> {
        let timeout = Duration::from_secs(args.timeout);
        let http = reqwest::Client::builder().timeout(timeout).pool_max_idle_per_host(usize::MAX).build()?;
        let url = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let mut client = BenchClient {
            http,
            url,
            model: String::new(),
            api_key: args.api_key.clone(),
            ignore_eos: !args.respect_eos,
        };
        client.model = match &args.model {
            Some(model) => model.clone(),
            None => client.first_model().await?,
        };
        Ok(client)
    }

    async fn first_model(&self) -> anyhow::Result<String> {
        let url = format!("{}/v1/models", self.url);
        let request = self.with_api_key(self.http.get(&url));
        let answer = request.send().await.map_err(|error| self.no_answer(error))?;
        // The context names the URL, so the errors do not.
        let read = async || answer.error_for_status()?.json().await;
        let models: Value = read().await.map_err(reqwest::Error::without_url).context(url)?;
        models["data"][0]["id"]
            .as_str()
            .map(str::to_owned)
            .context("the server lists no model at /v1/models; name one with --model")
    }

    /// Reports a request without an answer, with its first cause alone: the errors that contain it repeat the URL.
    fn no_answer(&self, error: reqwest::Error) -> anyhow::Error {
        if !error.is_connect() {
            return anyhow::Error::from(error);
        }
        let error = anyhow::Error::from(error);
        let cause = error.root_cause();
        let cause = match cause.downcast_ref::<std::io::Error>() {
            Some(refused) if refused.kind() == ErrorKind::ConnectionRefused => refused.kind().to_string(),
            _ => cause.to_string(),
        };
        anyhow!(
            "no server answers at {}: {cause}; start one with `sluice up` or name another with --url",
            self.url
        )
    }

    fn with_api_key(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// Sends one request and measures its tokens. A failure becomes part of the record.
    pub async fn send(&self, start: Instant, job: &BenchRequest) -> RequestRecord {
        let mut record = RequestRecord {
            sent_at: start.elapsed(),
            prompt_tokens: job.prompt.len() as u64,
            ..RequestRecord::default()
        };
        if let Err(error) = self.stream(job, &mut record).await {
            record.error = Some(format!("{:#}", anyhow::Error::from(error)));
        }
        record.ended_at = start.elapsed();
        record
    }

    async fn stream(&self, job: &BenchRequest, record: &mut RequestRecord) -> Result<(), RequestError> {
        let body = json!({
            "model": self.model, "prompt": job.prompt, "max_tokens": job.max_tokens, "temperature": 0,
            "ignore_eos": self.ignore_eos, "stream": true, "stream_options": {"include_usage": true},
        });
        let sent = Instant::now();
        let request = self.with_api_key(self.http.post(format!("{}/v1/completions", self.url)).json(&body));
        let mut events = EventStream::new(send(request).await?);
        let mut last = None;
        while let Some(chunk) = events.next().await? {
            record.record_chunk(&chunk, sent, &mut last);
        }
        Ok(())
    }
}

impl RequestRecord {
    /// Returns the number of chunks with tokens.
    pub fn chunks(&self) -> usize {
        usize::from(self.ttft.is_some()) + self.inter_chunk_gaps.len()
    }

    fn record_chunk(&mut self, chunk: &Value, sent: Instant, last: &mut Option<Instant>) {
        if let Some(tokens) = chunk["usage"]["completion_tokens"].as_u64() {
            self.output_tokens = tokens;
        }
        let Some(choice) = chunk["choices"].get(0) else { return };
        let text = choice["text"].as_str().unwrap_or_default();
        // A chunk that carries only the finish reason is not a token.
        if text.is_empty() && !choice["finish_reason"].is_null() {
            return;
        }
        let now = Instant::now();
        match last.replace(now) {
            None => self.ttft = Some(now - sent),
            Some(before) => self.inter_chunk_gaps.push(now - before),
        }
        self.text.push_str(text);
    }
}
