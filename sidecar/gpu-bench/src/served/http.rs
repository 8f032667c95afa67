//! Requests over HTTP to sidecars of this machine, each on a connection of its own.

use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::blocking::{Client, Response};
use reqwest::{Method, StatusCode};

use super::error::ServedError;

/// Longest silence of a server: a request may wait for memory and for the GPU.
const SILENCE: Duration = Duration::from_secs(120);

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // The library wants a provider of TLS though no address here has TLS. The program may have installed one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(SILENCE);
    client.build().expect("a client without certificates")
});

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// The token that opens the admin port.
    pub(super) token: Option<&'a str>,
    /// JSON, or nothing.
    pub(super) body: String,
}

impl<'a> Request<'a> {
    /// A request without a body.
    pub(super) fn get(path: &'static str, token: Option<&'a str>) -> Request<'a> {
        Request { method: Method::GET, path, token, body: String::new() }
    }

    /// Sends it. Returns the body of the answer as it comes.
    pub(super) fn stream(&self, to: SocketAddr) -> Result<BufReader<Response>, ServedError> {
        self.send(to).map(BufReader::new)
    }

    /// Sends it. Returns the body of the answer.
    pub(super) fn text(&self, to: SocketAddr) -> Result<String, ServedError> {
        self.send(to)?.text().map_err(|source| self.failed(source))
    }

    fn send(&self, to: SocketAddr) -> Result<Response, ServedError> {
        let mut request = CLIENT.request(self.method.clone(), format!("http://{to}{}", self.path));
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if !self.body.is_empty() {
            request = request.header("content-type", "application/json").body(self.body.clone());
        }
        let response = request.send().map_err(|source| self.failed(source))?;
        match response.status() {
            StatusCode::OK => Ok(response),
            status => Err(self.refused(status.to_string())),
        }
    }

    /// The error of a connection.
    pub(super) fn failed(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ServedError {
        ServedError::Request { request: self.name(), source: source.into() }
    }

    /// The error of an answer.
    pub(super) fn refused(&self, answer: impl Into<String>) -> ServedError {
        ServedError::Answer { request: self.name(), answer: answer.into() }
    }

    fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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
        let (address, serving) = answering("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{\n}");
        let request = Request {
            method: Method::PUT,
            path: "/v1/directive",
            token: Some("secret"),
            body: "{}".to_owned(),
        };
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
        let (address, serving) = answering("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
        let request = Request { method: Method::GET, path: "/ready", token: None, body: "{}".to_owned() };
        let error = request.text(address).expect_err("it is refused").to_string();
        assert_eq!(error, "GET /ready: answered: 503 Service Unavailable");
        serving.join().expect("it answers");
    }
}
