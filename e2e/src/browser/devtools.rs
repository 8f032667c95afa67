//! A small client of Chromium's DevTools protocol: JSON commands and responses over one WebSocket per page. The
//! small maintained clients depend on a build crate under the GPL, and these tests need only a dozen commands.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, WebSocket, client};

/// Limit for a response.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A connection to the browser or to one of its pages.
#[derive(Debug)]
pub struct Connection {
    socket: WebSocket<TcpStream>,
    last: u64,
    /// Requested URLs.
    pub urls: Vec<String>,
    /// Bytes received for these URLs.
    pub bytes: u64,
    /// Bytes received when the page was drawn. Its event stream continues as long as the page is open.
    pub bytes_when_drawn: u64,
}

impl Connection {
    /// Connects to `path` at a port of this machine.
    pub fn open(port: u16, path: &str) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("Chromium listens");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a socket takes a limit");
        let opened = client(format!("ws://127.0.0.1:{port}{path}"), stream);
        let (socket, _) = opened.expect("Chromium speaks its protocol");
        Connection { socket, last: 0, urls: Vec::new(), bytes: 0, bytes_when_drawn: 0 }
    }

    /// Runs a command. Handles the events that arrive before its response.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let command = json!({ "id": self.last, "method": method, "params": params });
        self.socket.send(Message::text(command.to_string())).expect("Chromium reads");
        loop {
            let text = match self.socket.read() {
                Ok(Message::Text(text)) => text,
                Ok(_) => continue,
                Err(error) => panic!("{method}: {error}"),
            };
            let mut message: Value = serde_json::from_str(&text).expect("Chromium writes JSON");
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.has_event(&message);
        }
    }

    /// Asks the browser to exit. Ignores the error of a browser that has already exited.
    pub fn end(&mut self) {
        let command = json!({ "id": self.last + 1, "method": "Browser.close" });
        let _ = self.socket.send(Message::text(command.to_string()));
    }

    fn has_event(&mut self, event: &Value) {
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = event["params"]["request"]["url"].as_str();
                self.urls.push(url.expect("a request has a URL").to_owned());
            }
            Some("Network.dataReceived") => {
                self.bytes += event["params"]["dataLength"].as_u64().expect("a length");
            }
            _ => {}
        }
    }
}
