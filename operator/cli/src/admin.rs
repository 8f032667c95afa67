//! A client of the admin port of a sidecar on this machine.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, StatusCode};
use serde_json::Value;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence};

/// Timeout of one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Limit for falling asleep or waking. The sidecar gives up after 60 s and reports it.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(65);

/// HTTP client for admin ports. Each request carries the token of its sidecar.
#[derive(Clone, Debug)]
pub struct AdminClient(reqwest::Client);

/// Why the sidecar did not accept a directive.
#[derive(Debug, thiserror::Error)]
pub enum DirectiveRejected {
    /// The directive is invalid: a retry cannot succeed.
    #[error("{0}")]
    Invalid(String),
    /// The directive is not newer than the one in force.
    #[error("{problem}")]
    Stale {
        /// The sidecar's message.
        problem: String,
        /// Fence of the directive that remains in force.
        in_force: Fence,
    },
    /// A transient failure: a retry may succeed.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl AdminClient {
    /// Creates a client without connections.
    ///
    /// # Errors
    /// The HTTP client cannot be created.
    pub fn new() -> anyhow::Result<Self> {
        // Sidecars are local, so a proxy from the environment must not be used.
        Ok(AdminClient(reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy().build()?))
    }

    /// Sends `GET /v1/state` and returns the state.
    ///
    /// # Errors
    /// No answer in time, a status other than 200, or a state of a newer version than this reader supports.
    pub async fn state(&self, record: &SidecarRecord) -> anyhow::Result<State> {
        let request = self.0.get(format!("http://{}/v1/state", record.admin));
        let answer = with_token(request, record)?.send().await?;
        if !answer.status().is_success() {
            bail!("GET /v1/state: {}", answer.status());
        }
        Ok(State::from_json(&answer.bytes().await?)?)
    }

    /// Sends `PUT /v1/directive`.
    ///
    /// # Errors
    /// See [`DirectiveRejected`].
    pub async fn put_directive(
        &self,
        record: &SidecarRecord,
        directive: &Directive,
    ) -> Result<(), DirectiveRejected> {
        let (status, body) = self.put(record, directive).await.map_err(DirectiveRejected::Failed)?;
        let in_force = serde_json::from_value(body["current"].clone());
        match (status, in_force) {
            (StatusCode::OK, _) => Ok(()),
            (StatusCode::CONFLICT, Ok(in_force)) => {
                Err(DirectiveRejected::Stale { problem: error_message(status, &body), in_force })
            }
            (StatusCode::CONFLICT | StatusCode::UNPROCESSABLE_ENTITY, _) => {
                Err(DirectiveRejected::Invalid(error_message(status, &body)))
            }
            _ => Err(DirectiveRejected::Failed(anyhow::anyhow!(error_message(status, &body)))),
        }
    }

    /// Sends `POST /sleep` and returns once the tenant holds no device memory. `level` is 1 (KV moves to host memory)
    /// or 2.
    ///
    /// # Errors
    /// No answer in time, or the sidecar refuses.
    pub async fn sleep(&self, record: &SidecarRecord, level: u8) -> anyhow::Result<()> {
        self.post(record, &format!("sleep?level={level}")).await
    }

    /// Sends `POST /wake_up` and returns once the tenant is awake.
    ///
    /// # Errors
    /// No answer in time, or the sidecar refuses.
    pub async fn wake_up(&self, record: &SidecarRecord) -> anyhow::Result<()> {
        self.post(record, "wake_up").await
    }

    async fn post(&self, record: &SidecarRecord, path: &str) -> anyhow::Result<()> {
        let request = self.0.post(format!("http://{}/{path}", record.admin)).timeout(SLEEP_TIMEOUT);
        let answer = with_token(request, record)?.send().await?;
        let status = answer.status();
        if !status.is_success() {
            // If the error document cannot be read, the status is the reason.
            bail!(error_message(status, &serde_json::from_slice(&answer.bytes().await?).unwrap_or_default()));
        }
        Ok(())
    }

    async fn put(
        &self,
        record: &SidecarRecord,
        directive: &Directive,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let request = self.0.put(format!("http://{}/v1/directive", record.admin));
        let request = with_token(request, record)?.header(CONTENT_TYPE, "application/json");
        // The caller names the tenant in its message.
        let sent = request.body(serde_json::to_vec(directive)?).send().await;
        let answer = sent.map_err(reqwest::Error::without_url)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(reqwest::Error::without_url)?;
        // Any body: the status is returned.
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

fn with_token(request: RequestBuilder, record: &SidecarRecord) -> anyhow::Result<RequestBuilder> {
    let token = std::fs::read_to_string(&record.token_file)
        .with_context(|| record.token_file.display().to_string())?;
    Ok(request.bearer_auth(token.trim()))
}

/// Returns the message of an error document, after the field that it is about.
fn error_message(status: StatusCode, body: &Value) -> String {
    let text = |field: &str| body["error"][field].as_str();
    match (text("param"), text("message")) {
        (Some(field), Some(message)) if !message.contains(field) => format!("{field}: {message}"),
        (_, Some(message)) => message.to_owned(),
        _ => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_message_names_field_once() {
        let said = |error: Value| error_message(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "error": error }));
        let whole = json!({"message": "`policy`: unknown", "param": "policy"});
        assert_eq!(said(whole), "`policy`: unknown");
        assert_eq!(said(json!({"message": "missing", "param": "policy"})), "policy: missing");
        assert_eq!(said(json!({"message": "not newer", "param": null})), "not newer");
        assert_eq!(said(json!("?")), "422 Unprocessable Entity");
    }
}
