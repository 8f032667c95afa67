//! Clients that mean harm, through a Service, beside some that do not: these must not notice them.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{CHAT, Rows};
use crate::installed::{COMPLETIONS, PROMPT, completion};

/// Heads that never end, at once.
const SLOW: usize = 200;
/// Clients that ask for streams and read nothing of them.
const DEAF: usize = 20;

impl Rows<'_> {
    /// The containers have the memory that they were promised and no byte more: what hostile clients cost beyond that would end
    /// them.
    pub async fn hostile_clients_are_refused_and_cost_nobody_a_token(&self) {
        let lives = self.product.lives();
        let (streams, engine) = self.product.held_streams(CHAT, 5, 200).await;
        let slow = self.say_to_many(SLOW, "POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ", b"").await;
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
        let deaf = self.say_to_many(DEAF, &head, asked.as_bytes()).await;
        engine.go_on();
        streams.end_with(&self.golden).await;
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "beside them");
        drop((slow, deaf));
        assert_eq!(self.product.complete(CHAT, 200).await, self.golden, "after them");
        assert_eq!(self.product.lives(), lives, "nothing was restarted");
    }

    /// Opens so many connections, and says the same on each.
    async fn say_to_many(&self, count: usize, head: &str, body: &[u8]) -> Vec<TcpStream> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(self.say(head, body).await);
        }
        all
    }

    async fn say(&self, head: &str, body: &[u8]) -> TcpStream {
        let url = self.product.url(CHAT);
        let mut socket = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
        socket.write_all(head.as_bytes()).await.unwrap();
        // Who is refused early may find the connection closed.
        let _ = socket.write_all(body).await;
        socket
    }

    /// The status of an answer; `None` = the connection was closed without one.
    async fn status(&self, head: &str, body: &[u8]) -> Option<u16> {
        let mut socket = self.say(head, body).await;
        let mut begin = [0; 12];
        socket.read_exact(&mut begin).await.ok()?;
        std::str::from_utf8(&begin).ok()?.strip_prefix("HTTP/1.1 ")?.parse().ok()
    }
}

/// The head of a request.
fn asking(length: &str) -> String {
    format!("POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{length}\r\n\r\n")
}
