//! Requests over HTTP to sidecars of this machine, each on a connection of its own.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::error::ServedError;

/// Longest silence of a server: a request may wait for memory and for the GPU.
const SILENCE: Duration = Duration::from_secs(120);

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// The token that opens the admin port.
    pub(super) token: Option<&'a str>,
    /// JSON, or nothing.
    pub(super) body: &'a str,
}

impl Request<'_> {
    /// Sends it. Returns the lines of the answer's body as they come: of chunks also their lengths.
    pub(super) fn lines(self, to: SocketAddr) -> Result<BufReader<TcpStream>, ServedError> {
        let mut answer = self.send(to).map_err(|source| self.failed(source))?;
        let mut line = String::new();
        answer.read_line(&mut line).map_err(|source| self.failed(source))?;
        if !line.starts_with("HTTP/1.1 200 ") {
            return Err(self.refused(line.trim_end()));
        }
        while !line.trim_end().is_empty() {
            line.clear();
            answer.read_line(&mut line).map_err(|source| self.failed(source))?;
        }
        Ok(answer)
    }

    /// Sends it. Returns the body, which must have come in one piece.
    pub(super) fn text(self, to: SocketAddr) -> Result<String, ServedError> {
        let mut text = String::new();
        self.lines(to)?.read_to_string(&mut text).map_err(|source| self.failed(source))?;
        Ok(text)
    }

    fn send(self, to: SocketAddr) -> io::Result<BufReader<TcpStream>> {
        let Request { method, path, token, body } = self;
        let mut socket = TcpStream::connect_timeout(&to, SILENCE)?;
        socket.set_read_timeout(Some(SILENCE))?;
        socket.set_nodelay(true)?;
        let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: sluice\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{token}\r\n"
        );
        socket.write_all((head + body).as_bytes())?;
        Ok(BufReader::new(socket))
    }

    /// The error of a connection.
    pub(super) fn failed(self, source: io::Error) -> ServedError {
        ServedError::Request { request: self.name(), source }
    }

    /// The error of an answer.
    pub(super) fn refused(self, answer: impl Into<String>) -> ServedError {
        ServedError::Answer { request: self.name(), answer: answer.into() }
    }

    fn name(self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers one request. Returns the request once it is answered.
    fn answering(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().expect("a client");
            let (mut request, mut piece) = (String::new(), [0; 4096]);
            while !request.ends_with("{}") {
                let length = socket.read(&mut piece).expect("a request");
                request += std::str::from_utf8(&piece[..length]).expect("text");
            }
            socket.write_all(answer.as_bytes()).expect("it reads");
            request
        });
        (address, serving)
    }

    #[test]
    fn a_request_has_its_token_and_its_body_and_gives_the_answer_s_body() {
        let (address, serving) = answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{\n}");
        let request = Request { method: "PUT", path: "/v1/directive", token: Some("secret"), body: "{}" };
        assert_eq!(request.text(address).expect("an answer"), "{\n}");
        let sent = serving.join().expect("it answers");
        for part in
            ["PUT /v1/directive HTTP/1.1\r\n", "authorization: Bearer secret\r\n", "content-length: 2\r\n"]
        {
            assert!(sent.contains(part), "{part} in {sent}");
        }
    }

    #[test]
    fn a_refusal_names_the_request_and_the_status() {
        let (address, serving) = answering("HTTP/1.1 503 Service Unavailable\r\n\r\n");
        let request = Request { method: "GET", path: "/ready", token: None, body: "{}" };
        let error = request.text(address).expect_err("it is refused").to_string();
        assert_eq!(error, "GET /ready: answered: HTTP/1.1 503 Service Unavailable");
        serving.join().expect("it answers");
    }
}
