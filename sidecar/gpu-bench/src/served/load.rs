//! [`Load`]: requests to a sidecar in a closed loop, and what its clients see.

use std::fmt;
use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use reqwest::Method;
use serde_json::{Value, json};
use sluice_common::random::Rng;
use sluice_common::statistics::percentile_of_sorted;

use super::error::ServedError;
use super::http::Request;

/// Name by which clients ask for the model.
pub(super) const MODEL_NAME: &str = "bench";

/// Requests of one length, some of them open at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests.
    pub requests: u32,
    /// Requests open at a time.
    pub concurrency: u32,
    /// Tokens of a prompt.
    pub prompt: u32,
    /// Tokens of an answer.
    pub output: u32,
}

/// What the clients of a load saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadFigures {
    /// Tokens of all answers.
    pub tokens: u64,
    /// Time from the first request until the last answer has ended, seconds.
    pub seconds: f64,
    /// Times to the first token, ascending, milliseconds.
    pub ttft_ms: Vec<f64>,
    /// Most requests in the batch at a time, as far as was seen; 0 if nothing looked.
    pub most_running: u32,
}

impl fmt::Display for Load {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { requests, concurrency, prompt, output } = self;
        write!(out, "{requests} requests, {concurrency} at a time, {prompt} tokens in and {output} out")
    }
}

impl Load {
    /// Tokens of a request with its answer.
    pub const fn context(&self) -> u32 {
        self.prompt + self.output
    }

    /// Sends the load. Requests of equal seeds have equal prompts, whose tokens are below `vocab`.
    pub fn send(&self, to: SocketAddr, vocab: u32, seed: u64) -> Result<LoadFigures, ServedError> {
        let (next, start) = (AtomicU32::new(0), Instant::now());
        let client = || -> Result<Vec<f64>, ServedError> {
            let mut ttft_ms = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.requests {
                    return Ok(ttft_ms);
                }
                ttft_ms.push(self.ask(to, vocab, seed << 32 | u64::from(number))?);
            }
        };
        let answered: Result<Vec<Vec<f64>>, ServedError> = thread::scope(|scope| {
            let clients: Vec<_> = (0..self.concurrency).map(|_| scope.spawn(client)).collect();
            let joined = clients.into_iter().map(|client| client.join());
            joined.map(|times| times.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        let seconds = start.elapsed().as_secs_f64();
        let mut ttft_ms = answered?.concat();
        ttft_ms.sort_by(f64::total_cmp);
        let tokens = u64::from(self.requests) * u64::from(self.output);
        Ok(LoadFigures { tokens, seconds, ttft_ms, most_running: 0 })
    }

    /// Sends one request and reads its answer. Returns the time to the first token, milliseconds.
    fn ask(&self, to: SocketAddr, vocab: u32, seed: u64) -> Result<f64, ServedError> {
        let mut rng = Rng::new(seed);
        // Below are the special tokens.
        let prompt: Vec<u64> = (0..self.prompt).map(|_| rng.between(2, u64::from(vocab) - 1)).collect();
        let body = json!({
            "model": MODEL_NAME, "prompt": prompt, "max_tokens": self.output, "ignore_eos": true, "temperature": 0.0,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let (method, body) = (Method::POST, body.to_string());
        let request = Request { method, path: "/v1/completions", token: None, body };
        let start = Instant::now();
        let (mut first_ms, mut tokens) = (None, 0);
        for line in request.stream(to)?.lines() {
            let line = line.map_err(|source| request.failed(source))?;
            // The last event is not JSON.
            let Some(event) = line.strip_prefix("data: {") else { continue };
            first_ms.get_or_insert_with(|| start.elapsed().as_secs_f64() * 1000.0);
            tokens = completion_tokens(&format!("{{{event}")).unwrap_or(tokens);
        }
        match first_ms {
            Some(first_ms) if tokens == u64::from(self.output) => Ok(first_ms),
            _ => Err(request.refused(format!("{tokens} tokens in place of {}", self.output))),
        }
    }
}

/// Returns the tokens of an answer, by its last event.
fn completion_tokens(event: &str) -> Option<u64> {
    let event: Value = serde_json::from_str(event).ok()?;
    event["usage"]["completion_tokens"].as_u64()
}

impl LoadFigures {
    /// Tokens per second.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }

    /// A percentile of the times to the first token, milliseconds.
    ///
    /// # Panics
    /// If there was no request.
    pub fn ttft_ms(&self, permille: u64) -> f64 {
        percentile_of_sorted(&self.ttft_ms, permille).expect("a load has requests")
    }

    /// Joins loads that followed each other.
    pub fn joined(parts: &[LoadFigures]) -> LoadFigures {
        let mut ttft_ms: Vec<f64> = parts.iter().flat_map(|part| part.ttft_ms.iter().copied()).collect();
        ttft_ms.sort_by(f64::total_cmp);
        LoadFigures {
            tokens: parts.iter().map(|part| part.tokens).sum(),
            seconds: parts.iter().map(|part| part.seconds).sum(),
            ttft_ms,
            most_running: parts.iter().map(|part| part.most_running).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Serves `answers` answers of two tokens whose usage says `tokens`.
    fn server(answers: u32, tokens: u32) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for _ in 0..answers {
                let (mut socket, _) = listener.accept().expect("a client");
                let (mut request, mut piece) = (String::new(), [0; 4096]);
                while !request.ends_with('}') {
                    let length = socket.read(&mut piece).expect("a request");
                    request += std::str::from_utf8(&piece[..length]).expect("text");
                }
                let event = "29\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\n\n\r\n".repeat(2);
                let usage = format!("40\r\ndata: {{\"usage\":{{\"completion_tokens\":{tokens}}}}}\n\n\r\n");
                let answer =
                    format!("HTTP/1.1 200 OK\r\n\r\n{event}{usage}d\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
                socket.write_all(answer.as_bytes()).expect("it reads");
            }
        });
        address
    }

    #[test]
    fn every_request_of_a_load_has_a_first_token() {
        let load = Load { requests: 5, concurrency: 2, prompt: 3, output: 2 };
        let figures = load.send(server(5, 2), 300, 1).expect("it is answered");
        assert_eq!((figures.tokens, figures.ttft_ms.len()), (10, 5));
        assert!(figures.ttft_ms.is_sorted() && figures.tokens_per_s() > 0.0);
        let twice = LoadFigures::joined(&[figures.clone(), figures.clone()]);
        assert_eq!((twice.tokens, twice.ttft_ms(1000)), (20, figures.ttft_ms(1000)));
    }

    #[test]
    fn an_answer_with_too_few_tokens_is_an_error() {
        let load = Load { requests: 1, concurrency: 1, prompt: 3, output: 2 };
        let error = load.send(server(1, 1), 300, 1).expect_err("a token is missing").to_string();
        assert_eq!(error, "POST /v1/completions: answered: 1 tokens in place of 2");
    }
}
