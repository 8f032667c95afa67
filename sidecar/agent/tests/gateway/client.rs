//! A client with raw HTTP/1.1 on a socket, so that tests see every byte.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

/// Longest wait in a test.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection.
pub struct Client<S = TcpStream> {
    socket: BufReader<S>,
    chunked: bool,
    left: usize,
    text: String,
}

/// Head of a response.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub head: Head,
    pub body: String,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("no JSON ({e}): {self:?}"))
    }

    /// Asserts that this is an error in OpenAI's shape with these values, and returns its message.
    #[track_caller]
    pub fn error(&self, status: u16, kind: &str, param: Option<&str>, code: Option<&str>) -> String {
        assert_eq!(self.head.status, status, "{self:?}");
        let json = self.json();
        let error = json["error"].as_object().expect("an error object");
        let keys: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["code", "message", "param", "type"]);
        assert_eq!(
            (error["type"].as_str(), error["param"].as_str(), error["code"].as_str()),
            (Some(kind), param, code)
        );
        error["message"].as_str().expect("a message").to_owned()
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        Client::new(TcpStream::connect(address).await.expect("a server listens"))
    }

    /// Connects with a very small receive buffer.
    pub async fn connect_small_buffer(address: SocketAddr) -> Client {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a small buffer");
        Client::new(socket.connect(address).await.expect("a server listens"))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub fn new(socket: S) -> Client<S> {
        Client { socket: BufReader::new(socket), chunked: false, left: 0, text: String::new() }
    }

    pub async fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.get_mut().write_all(bytes).await
    }

    pub async fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: sluice\r\ncontent-length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        let whole = [head.as_bytes(), b"\r\n", body].concat();
        // A server that refuses early may close before it has read the whole body.
        let _ = self.raw(&whole).await;
    }

    pub async fn post(&mut self, path: &str, body: &Value) {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await;
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(TIMEOUT, self.socket.read_line(&mut line)).await;
        read.expect("a line in time").expect("a connection");
        line.trim_end().to_owned()
    }

    pub async fn head(&mut self) -> Head {
        let status = self.line().await;
        let code = status.split(' ').nth(1).unwrap_or_else(|| panic!("no status line: {status:?}"));
        let mut head = Head { status: code.parse().expect("a number"), headers: Vec::new() };
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(':') else { break };
            head.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        self.chunked = head.header("transfer-encoding") == Some("chunked");
        self.left = head.header("content-length").map_or(0, |n| n.parse().expect("a number"));
        head
    }

    /// Returns the next bytes of the body; `None` at its end. Fails if the connection breaks.
    pub async fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let size = if self.chunked {
            let mut line = String::new();
            if self.socket.read_line(&mut line).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            usize::from_str_radix(line.trim(), 16).expect("the size of a chunk")
        } else {
            std::mem::take(&mut self.left)
        };
        let mut bytes = vec![0; size + if self.chunked { 2 } else { 0 }];
        self.socket.read_exact(&mut bytes).await?;
        bytes.truncate(size);
        Ok((size > 0).then(|| String::from_utf8(bytes).expect("UTF-8")))
    }

    pub async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let mut body = String::new();
        while let Some(piece) =
            tokio::time::timeout(TIMEOUT, self.chunk()).await.expect("in time").expect("all of it")
        {
            body.push_str(&piece);
        }
        Answer { head, body }
    }

    /// Returns the data of the next event; `None` at the end of the body. Fails if the connection breaks.
    pub async fn event(&mut self) -> std::io::Result<Option<String>> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data =
                    event.strip_prefix("data: ").unwrap_or_else(|| panic!("no data: {event:?}")).to_owned();
                self.text = rest.to_owned();
                return Ok(Some(data));
            }
            match tokio::time::timeout(TIMEOUT, self.chunk()).await.expect("an event in time")? {
                Some(piece) => self.text.push_str(&piece),
                None => return Ok(None),
            }
        }
    }

    /// Returns the data of the next event, which must exist.
    pub async fn next_event(&mut self) -> String {
        self.event().await.expect("not cut").expect("not the end")
    }

    /// Returns all remaining events, with the time at which each was read.
    pub async fn events(&mut self) -> Vec<(Instant, String)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await.expect("a whole stream") {
            events.push((Instant::now(), event));
        }
        events
    }

    /// Returns all bytes until the connection ends in any way.
    pub async fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        // A broken connection also ends the data.
        let _ = tokio::time::timeout(TIMEOUT, self.socket.read_to_end(&mut rest)).await.expect("an end");
        rest
    }

    /// Whether the server closes within `time`.
    pub async fn closes_within(&mut self, time: Duration) -> bool {
        let mut rest = Vec::new();
        tokio::time::timeout(time, self.socket.read_to_end(&mut rest)).await.is_ok()
    }
}
