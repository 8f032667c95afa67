//! One exchange over HTTP, on a connection of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Longest silence: of a response that is computed first, and of a connection that is not accepted.
const LIMIT: Duration = Duration::from_secs(60);

/// What `GET path` answers.
///
/// # Errors
/// No answer, or one that is not 200.
pub fn get(address: SocketAddr, path: &str) -> Result<String> {
    exchange(address, &format!("GET {path}"), "", "").with_context(|| path.to_owned())
}

/// What `POST path` answers to JSON, with the token that opens it.
///
/// # Errors
/// As [`get`].
pub fn post(address: SocketAddr, path: &str, token: Option<&str>, body: &str) -> Result<String> {
    let token = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
    let length = body.len();
    let headers = format!("content-type: application/json\r\ncontent-length: {length}\r\n{token}");
    exchange(address, &format!("POST {path}"), &headers, body).with_context(|| path.to_owned())
}

fn exchange(address: SocketAddr, request: &str, headers: &str, body: &str) -> Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, LIMIT)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.set_nodelay(true)?;
    let head = format!("{request} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n{headers}\r\n");
    socket.write_all((head + body).as_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 "), "{}", answer.lines().next().unwrap_or("no answer"));
    Ok(answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What it was sent, after it has answered with `answer`.
    fn answering(answer: &'static str) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let (mut request, mut piece) = (String::new(), [0; 4096]);
            while !request.ends_with("\r\n\r\n") && !request.ends_with('}') {
                let length = socket.read(&mut piece).unwrap();
                request += std::str::from_utf8(&piece[..length]).unwrap();
            }
            socket.write_all(answer.as_bytes()).unwrap();
            request
        });
        (address, serving)
    }

    #[test]
    fn an_exchange_sends_what_it_says_and_gives_the_body() {
        let (address, serving) = answering("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\na\r\n\r\n");
        assert_eq!(get(address, "/metrics").unwrap(), "a\r\n\r\n");
        let expected = "GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n";
        assert_eq!(serving.join().unwrap(), expected);
        let (address, serving) = answering("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(post(address, "/sleep", Some("secret"), "{}").unwrap(), "");
        let request = serving.join().unwrap();
        for part in ["POST /sleep HTTP/1.1\r\n", "content-length: 2\r\n", "authorization: Bearer secret\r\n"]
        {
            assert!(request.contains(part), "{request}");
        }
    }

    #[test]
    fn a_refusal_is_an_error_that_names_path_and_status() {
        let (address, serving) = answering("HTTP/1.1 409 Conflict\r\n\r\nno");
        let error = format!("{:#}", post(address, "/sleep", None, "{}").unwrap_err());
        assert_eq!(error, "/sleep: HTTP/1.1 409 Conflict");
        assert!(!serving.join().unwrap().contains("authorization"));
    }
}
