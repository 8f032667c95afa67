//! Clients that mean harm, through a Service, beside some that do not: these must not notice them.

use reqwest::{RequestBuilder, StatusCode};
use sluice_e2e::files;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{CHAT, Rows};
use crate::installed::{COMPLETIONS, PROMPT, completion, text_of};

/// Heads that never end, at once.
const SLOW: usize = 200;
/// Clients that ask for streams and read nothing of them.
const NOT_READING: usize = 20;
/// Clients that all ask for a stream at the same time.
const STREAMS: usize = 10_000;

impl Rows<'_> {
    /// The containers have the memory that they were promised and no byte more: what hostile clients cost beyond that would end
    /// them.
    pub async fn hostile_clients_are_refused_and_no_token_is_lost(&self) {
        let lives = self.product.lives();
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let slow =
            self.send_raw_to_many(SLOW, "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ", b"").await;
        for (head, body, status) in [
            ("content-length: 10000000000", [b' '; 300_000].as_slice(), 413),
            ("content-length: 20", b"{\"prompt\": \"p\", oops}", 400),
            ("content-length: 16", b"{\"prompt\": \"\xff\xf0\"}", 400),
            ("content-length: 0", b"", 400),
        ] {
            assert_eq!(self.status(&asking(head), body).await, Some(status), "{head}");
        }
        let asked = completion(CHAT, PROMPT, 200, true).to_string();
        let head = asking(&format!("content-length: {}", asked.len()));
        let deaf = self.send_raw_to_many(NOT_READING, &head, asked.as_bytes()).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "beside them");
        drop((slow, deaf));
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "after them");
        assert_eq!(self.product.lives(), lives, "nothing was restarted");
    }

    /// More streams at once than a sidecar takes, and more than it may have files open until it asks for more.
    pub async fn of_ten_thousand_streams_each_is_answered_whole_or_refused(&self) {
        let Some(()) = files::raise_open_file_limit(STREAMS) else { return };
        let lives = self.product.lives();
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let asked = completion(CHAT, PROMPT, 8, true);
        let mut crowd: JoinSet<_> =
            (0..STREAMS).map(|_| outcome(self.product.post(CHAT, COMPLETIONS, &asked))).collect();
        let first = crowd.join_next().await.expect("a crowd").unwrap();
        assert!(!matches!(first, Outcome::Served(_)), "nobody computes: who hears something is refused");
        engine.go_on();
        let (mut served, mut told) = (0, 0);
        while let Some(one) = crowd.join_next().await {
            match one.unwrap() {
                Outcome::Served(text) => {
                    assert!(self.golden.starts_with(&text), "{text:?} is not of {:?}", self.golden);
                    served += 1;
                }
                Outcome::Rejected => told += 1,
                Outcome::Disconnected => {}
            }
        }
        eprintln!("of {STREAMS} streams {served} were served, {told} told to come later");
        // As many as may wait are served, and all that have a connection are told.
        assert!(served >= 1024 && served + told >= 3000, "{served} served, {told} told");
        streams.end_with(&self.golden).await;
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "after them");
        assert_eq!(self.product.lives(), lives, "nothing was restarted");
    }

    /// Opens so many connections, and says the same on each.
    async fn send_raw_to_many(&self, count: usize, head: &str, body: &[u8]) -> Vec<TcpStream> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.send_raw(head, body).await);
        }
        all
    }

    async fn send_raw(&self, head: &str, body: &[u8]) -> TcpStream {
        let url = self.product.url(CHAT);
        let mut socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        // Who is refused early may find the connection closed.
        let _ = socket.write_all(body).await;
        socket
    }

    /// The status of an answer; `None` = the connection was closed without one.
    async fn status(&self, head: &str, body: &[u8]) -> Option<u16> {
        let mut socket = self.send_raw(head, body).await;
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).await.ok()?;
        std::str::from_utf8(&begin).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
    }
}

/// What became of a stream.
enum Outcome {
    /// It said this, whole.
    Served(String),
    /// It was refused by 429 or 503.
    Rejected,
    /// It found too many connections: the 503 of these is lost where the request comes after the end of its connection.
    Disconnected,
}

async fn outcome(request: RequestBuilder) -> Outcome {
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => {
            assert!(!error.is_timeout(), "nobody is left without a word: {error}");
            return Outcome::Disconnected;
        }
    };
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status()) {
        return Outcome::Rejected;
    }
    assert_eq!(answer.status(), StatusCode::OK);
    let text = text_of(&answer.text().await.expect("who is let in is answered whole"));
    assert!(!text.is_empty(), "eight tokens");
    Outcome::Served(text)
}

/// The head of a request.
fn asking(length: &str) -> String {
    format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n")
}
