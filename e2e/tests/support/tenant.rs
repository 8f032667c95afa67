//! A serving tenant: requests to it, and its state.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sluice_client::RequestError;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;

use super::answer::Answer;
use super::http::{self, CLIENT, Stream};
use super::wait::eventually;

/// Where it is.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// `host:port` of the API, from the ready line.
    pub address: String,
    /// Its record, as of the ready line.
    pub record: SidecarRecord,
    /// Its runtime folder.
    pub folder: PathBuf,
}

impl Tenant {
    /// The tenant of `folder` at `address`.
    pub fn new(address: &str, folder: &Path) -> Tenant {
        let tenant = Tenant::find(folder).unwrap();
        assert_eq!(tenant.address, address, "the ready line and the record agree");
        tenant
    }

    /// The tenant of `folder`; `None` = it has no record yet.
    pub fn find(folder: &Path) -> Option<Tenant> {
        let record: SidecarRecord =
            serde_json::from_slice(&std::fs::read(folder.join("sidecar.json")).ok()?).unwrap();
        Some(Tenant { address: record.serve.to_string(), record, folder: folder.to_owned() })
    }

    /// URL of a path of the API.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Opens a stream.
    pub async fn stream(&self, body: &Value) -> Stream {
        Stream::open(&self.url("/v1/completions"), body).await.unwrap()
    }

    /// Sends a request without a stream.
    pub async fn complete(&self, body: &Value) -> Result<Answer, RequestError> {
        let response = http::post(&self.url("/v1/completions"), body, None).await?;
        let text = response.bytes().await?;
        Ok(Answer::whole(&serde_json::from_slice(&text).unwrap()))
    }

    /// Status, body and Retry-After of a request that must be refused.
    pub async fn refusal(&self, body: &Value) -> (u16, Value, Option<String>) {
        match self.complete(body).await {
            Err(RequestError::Refused { status, body, retry_after }) => {
                (status.as_u16(), body["error"].clone(), retry_after)
            }
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Returns the state by the admin port; `None` while it does not answer.
    pub async fn try_state(&self) -> Option<State> {
        let token = std::fs::read_to_string(&self.record.token_file).ok()?;
        let url = format!("http://{}/v1/state", self.record.admin);
        let response = CLIENT.get(url).bearer_auth(token).send().await.ok()?;
        State::from_json(&response.error_for_status().ok()?.bytes().await.ok()?).ok()
    }

    /// The state.
    pub async fn state(&self) -> State {
        self.try_state().await.expect("the admin port answers")
    }

    /// Waits until the state matches.
    pub async fn until(&self, what: &str, wanted: impl Fn(&State) -> bool) -> State {
        eventually(what, async || self.try_state().await.filter(&wanted)).await
    }

    /// Process id of the engine, once one is attached.
    pub async fn engine(&self) -> u32 {
        self.until("an engine is attached", |state| state.engine.pid.is_some()).await.engine.pid.unwrap()
    }

    /// Status of the probe for readiness.
    pub async fn readiness(&self) -> Option<u16> {
        http::get_status(&format!("http://{}/ready", self.record.probes)).await.map(|status| status.as_u16())
    }
}

/// A greedy request over token ids that shows its tokens and runs to its limit.
pub fn greedy(prompt: &[u32], max_tokens: usize) -> Value {
    json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 0, "ignore_eos": true})
}

/// Returns a prompt of `tokens` ids, different for every `seed`.
pub fn prompt(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| (at * 37 + seed * 101 + at * at * 3) % 250).collect()
}
