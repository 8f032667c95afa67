//! Hostile clients through a Service, together with normal clients, which must not be affected.

use reqwest::{RequestBuilder, StatusCode};
use sluice_client::EventStream;
use sluice_e2e::files;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::{CHAT, Rows};
use crate::installed::{COMPLETIONS, PROMPT, completion, text_of};

/// Concurrent requests with an endless head.
const SLOW: usize = 200;
/// Clients that open streams and do not read them.
const NOT_READING: usize = 20;
/// Clients that open a stream at the same time.
const STREAMS: usize = 10_000;

impl Rows<'_> {
    /// The containers have exactly their memory limits: hostile clients that cost more would get them killed.
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
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "next to them");
        drop((slow, deaf));
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "after them");
        assert_eq!(self.product.lives(), lives, "nothing was restarted");
    }

    /// Opens more streams than a sidecar accepts, and more than its soft limit of open files.
    pub async fn of_ten_thousand_streams_each_is_answered_whole_or_refused(&self) {
        let Some(()) = files::raise_open_file_limit(STREAMS) else { return };
        let lives = self.product.lives();
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let asked = completion(CHAT, PROMPT, 8, true);
        let mut requests: JoinSet<_> =
            (0..STREAMS).map(|_| outcome(self.product.post(CHAT, COMPLETIONS, &asked))).collect();
        let first = requests.join_next().await.expect("a request").unwrap();
        assert!(
            !matches!(first, Outcome::Served(_)),
            "no stream is computed: a client that gets an answer is refused"
        );
        engine.go_on();
        let (mut served, mut rejected) = (0, 0);
        while let Some(one) = requests.join_next().await {
            match one.unwrap() {
                Outcome::Served(text) => {
                    assert!(self.golden.starts_with(&text), "{text:?} is not of {:?}", self.golden);
                    served += 1;
                }
                Outcome::Rejected => rejected += 1,
                Outcome::Disconnected => {}
            }
        }
        eprintln!("of {STREAMS} streams {served} were served, {rejected} refused for now");
        // The full queue is served, and every connected client gets an answer.
        assert!(served >= 1024 && served + rejected >= 3000, "{served} served, {rejected} refused");
        streams.end_with(&self.golden).await;
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "after them");
        assert_eq!(self.product.lives(), lives, "nothing was restarted");
    }

    /// Opens `count` connections and sends the same bytes on each.
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
        // A request that is refused early may find the connection closed.
        let _ = socket.write_all(body).await;
        socket
    }

    /// Returns the status of a response; `None` = the connection was closed without one.
    async fn status(&self, head: &str, body: &[u8]) -> Option<u16> {
        let mut socket = self.send_raw(head, body).await;
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).await.ok()?;
        std::str::from_utf8(&begin).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
    }
}

/// Result of a stream.
enum Outcome {
    /// It ended complete, with this text.
    Served(String),
    /// It was refused by 429 or 503.
    Rejected,
    /// Too many connections: the 503 is lost if the request is sent after the connection was closed.
    Disconnected,
}

async fn outcome(request: RequestBuilder) -> Outcome {
    let answer = match request.send().await {
        Ok(answer) => answer,
        Err(error) => {
            assert!(!error.is_timeout(), "no client is left without an answer: {error}");
            return Outcome::Disconnected;
        }
    };
    if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answer.status()) {
        return Outcome::Rejected;
    }
    assert_eq!(answer.status(), StatusCode::OK);
    let text = text_of(EventStream::new(answer)).await;
    assert!(!text.is_empty(), "eight tokens");
    Outcome::Served(text)
}

/// Returns the head of a request.
fn asking(length: &str) -> String {
    format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n")
}
