//! Clients of a soak: each repeats its request until it has an answer, and reports a wrong one.

use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::finding::{Finding, Findings};
use super::plan::Visit;
use super::tenant::SoakTenant;
use crate::support::Answer;
use crate::support::http::{CLIENT, Stream};

/// A client without a timeout: the watchdog detects stuck requests.
pub static SLOW_CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // It installs the TLS provider for all clients.
    LazyLock::force(&CLIENT);
    Client::builder().pool_max_idle_per_host(0).build().unwrap()
});

/// How an attempt ended.
enum Attempt {
    /// With an answer.
    Whole(Answer),
    /// The client disconnected after this part of the answer.
    Disconnected(Answer),
    /// It failed after this part of the answer.
    Failed(Answer, String),
}

/// Repeats a request until it has an answer, and compares it with `expected`. Returns how often it was cut off.
pub async fn visit(
    member: &SoakTenant,
    visit: &Visit,
    body: &Value,
    expected: &Answer,
    findings: &Findings,
) -> u32 {
    let mut cut = 0;
    member.open.fetch_add(1, Ordering::Relaxed);
    loop {
        let before = member.kills();
        match attempt(member, visit, body).await {
            Attempt::Whole(answer) => {
                differ(member, visit, &answer, expected, findings);
                break;
            }
            Attempt::Disconnected(answer) => {
                starts(member, visit, &answer, expected, findings);
                break;
            }
            Attempt::Failed(answer, why) => {
                starts(member, visit, &answer, expected, findings);
                if !before.excuse(member.kills()) {
                    findings.add(Finding::Failed(format!("{} {visit:?}: {why}", member.name)));
                    break;
                }
                cut += 1;
                tokio::time::sleep(super::PAUSE).await;
            }
        }
    }
    member.open.fetch_sub(1, Ordering::Relaxed);
    member.beats.fetch_add(1, Ordering::Relaxed);
    cut
}

fn differ(member: &SoakTenant, visit: &Visit, answer: &Answer, expected: &Answer, findings: &Findings) {
    if answer != expected {
        let at = answer.tokens.iter().zip(&expected.tokens).position(|(a, b)| a != b);
        let text =
            format!("{} {visit:?}: from token {at:?} on: {answer:?}, alone: {expected:?}", member.name);
        findings.add(Finding::Answer(text));
    }
}

/// The part of an answer before a cut must be right, too.
fn starts(member: &SoakTenant, visit: &Visit, answer: &Answer, expected: &Answer, findings: &Findings) {
    let same = expected.tokens.starts_with(&answer.tokens) && expected.text.starts_with(&answer.text);
    if !same {
        let text = format!("{} {visit:?}, cut off: {answer:?}, alone: {expected:?}", member.name);
        findings.add(Finding::Answer(text));
    }
}

async fn attempt(member: &SoakTenant, visit: &Visit, body: &Value) -> Attempt {
    let failed = |why: String| Attempt::Failed(Answer::default(), why);
    let mut body = body.clone();
    body["stream"] = visit.streams.into();
    let url = member.locate().await.url("/v1/completions");
    let response = match SLOW_CLIENT.post(url).json(&body).send().await {
        Ok(response) => response,
        Err(error) => return failed(format!("{error:?}")),
    };
    let status = response.status();
    if status == StatusCode::OK && visit.streams {
        return read(member, Stream::of(response), visit.leaves_after).await;
    }
    match response.bytes().await {
        Err(error) => failed(format!("{error:?}")),
        Ok(text) if status == StatusCode::OK => {
            Attempt::Whole(Answer::whole(&serde_json::from_slice(&text).unwrap()))
        }
        Ok(text) => failed(format!("{status}: {}", String::from_utf8_lossy(&text))),
    }
}

async fn read(member: &SoakTenant, mut stream: Stream, leaves_after: Option<usize>) -> Attempt {
    loop {
        if leaves_after.is_some_and(|tokens| stream.answer.tokens.len() >= tokens) {
            return Attempt::Disconnected(stream.answer);
        }
        match stream.next().await {
            Ok(true) => member.beats.fetch_add(1, Ordering::Relaxed),
            Ok(false) => return Attempt::Whole(stream.answer),
            Err(why) => return Attempt::Failed(stream.answer, format!("{why:?}")),
        };
    }
}
