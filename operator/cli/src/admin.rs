//! The admin port of a sidecar on this machine.

use std::time::Duration;

use anyhow::{Context, bail};
use reqwest::header::CONTENT_TYPE;
use reqwest::{RequestBuilder, StatusCode};
use serde_json::Value;
use sluice_wire::State;
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::{Directive, Fence};

/// For one answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// For the end of falling asleep or of waking. The sidecar gives up after 60 s and says so.
const SLEEP_TIMEOUT: Duration = Duration::from_secs(65);

/// Asks sidecars, each with its own token.
#[derive(Clone, Debug)]
pub struct AdminClient(reqwest::Client);

/// Why a directive was not taken.
#[derive(Debug, thiserror::Error)]
pub enum DirectiveRejected {
    /// The sidecar will never take this one: it is wrong.
    #[error("{0}")]
    Invalid(String),
    /// It is not newer than the one in force.
    #[error("{problem}")]
    Stale {
        /// What the sidecar says.
        problem: String,
        /// Of the directive that stays.
        in_force: Fence,
    },
    /// Another attempt may help.
    #[error("{0:#}")]
    Failed(anyhow::Error),
}

impl AdminClient {
    /// A client that has asked nobody.
    ///
    /// # Errors
    /// No HTTP client can be made.
    pub fn new() -> anyhow::Result<Self> {
        // Sidecars are local: a proxy of the environment has no business between.
        Ok(AdminClient(reqwest::Client::builder().timeout(REQUEST_TIMEOUT).no_proxy().build()?))
    }

    /// `GET /v1/state`.
    ///
    /// # Errors
    /// No answer in time, another status than 200, a newer version than this reader knows.
    pub async fn state(&self, record: &SidecarRecord) -> anyhow::Result<State> {
        let request = self.0.get(format!("http://{}/v1/state", record.admin));
        let answer = with_token(request, record)?.send().await?;
        if !answer.status().is_success() {
            bail!("GET /v1/state: {}", answer.status());
        }
        Ok(State::from_json(&answer.bytes().await?)?)
    }

    /// `PUT /v1/directive`.
    ///
    /// # Errors
    /// As [`DirectiveRejected`] says.
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

    /// `POST /sleep`; returns when the tenant holds no device memory. `level` is 1 (KV goes to host memory) or 2.
    ///
    /// # Errors
    /// No answer in time, or the sidecar refuses.
    pub async fn sleep(&self, record: &SidecarRecord, level: u8) -> anyhow::Result<()> {
        self.post(record, &format!("sleep?level={level}")).await
    }

    /// `POST /wake_up`; returns when the tenant is awake.
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
            // Without a body that can be read, the status is the reason.
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
        // The caller names the tenant: its address says no more.
        let sent = request.body(serde_json::to_vec(directive)?).send().await;
        let answer = sent.map_err(reqwest::Error::without_url)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(reqwest::Error::without_url)?;
        // Whatever it is: the status has been said.
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }
}

fn with_token(request: RequestBuilder, record: &SidecarRecord) -> anyhow::Result<RequestBuilder> {
    let token = std::fs::read_to_string(&record.token_file)
        .with_context(|| record.token_file.display().to_string())?;
    Ok(request.bearer_auth(token.trim()))
}

/// The words of an error's body, behind the field that they are about.
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
