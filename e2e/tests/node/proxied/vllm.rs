//! `vllm serve` as far as a tenant of its kind needs it: a server of OpenAI's API without a model. The test that
//! puts it into an image compiles it, without a crate and without a library.
//!
//! It answers with the requested number of words, one every 20 ms, and implements sleep and wake-up. A request
//! during its sleep fails, as with an engine whose weights are offloaded.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PACE: Duration = Duration::from_millis(20);

static ASLEEP: AtomicBool = AtomicBool::new(false);

/// `SIGTERM` on Linux.
const SIGTERM: i32 = 15;

unsafe extern "C" {
    fn signal(number: i32, action: extern "C" fn(i32)) -> usize;
    fn _exit(status: i32) -> !;
}

/// The process with id 1 of a container ignores a signal that it does not handle.
extern "C" fn end(_signal: i32) {
    // SAFETY: `_exit` takes any status, and a handler of a signal may call it.
    unsafe { _exit(0) }
}

fn main() {
    // SAFETY: the handler calls nothing but `_exit`.
    unsafe { signal(SIGTERM, end) };
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).unwrap_or_else(|| panic!("{flag} in {args:?}"));
        args[at + 1].clone()
    };
    assert_eq!(args[1], "serve");
    assert!(std::fs::read_dir(&args[2]).is_ok_and(|mut files| files.next().is_some()), "a model in {args:?}");
    let listener =
        TcpListener::bind(format!("{}:{}", after("--host"), after("--port"))).expect("its port is free");
    let model = after("--served-model-name");
    for socket in listener.incoming().flatten() {
        let model = model.clone();
        thread::spawn(move || answer(&socket, &model));
    }
}

/// Answers one request per connection.
fn answer(socket: &TcpStream, model: &str) -> Option<()> {
    let mut reader = BufReader::new(socket);
    let mut head = String::new();
    reader.read_line(&mut head).ok()?;
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).ok()? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let path = head.split(' ').nth(1)?.split('?').next()?;
    route(socket, path, &String::from_utf8(body).ok()?, model)
}

fn route(socket: &TcpStream, path: &str, body: &str, model: &str) -> Option<()> {
    let asleep = ASLEEP.load(Ordering::SeqCst);
    match path {
        "/sleep" | "/wake_up" => {
            ASLEEP.store(path == "/sleep", Ordering::SeqCst);
            respond(socket, 200, "text/plain", "")
        }
        "/is_sleeping" => respond(socket, 200, JSON, &format!("{{\"is_sleeping\": {asleep}}}")),
        "/v1/models" => respond(
            socket,
            200,
            JSON,
            &format!("{{\"object\": \"list\", \"data\": [{{\"id\": \"{model}\"}}]}}"),
        ),
        "/metrics" => respond(socket, 200, "text/plain", "vllm:num_requests_waiting{engine=\"0\"} 0.0\n"),
        "/health" => respond(socket, 200, "text/plain", ""),
        "/v1/completions" | "/v1/chat/completions" if asleep => {
            respond(socket, 500, JSON, "{\"error\": \"asleep\"}")
        }
        "/v1/completions" | "/v1/chat/completions" => stream_tokens(socket, body, path.contains("chat")),
        _ => respond(socket, 404, "text/plain", ""),
    }
}

const JSON: &str = "application/json";

fn respond(mut socket: &TcpStream, status: u16, kind: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    socket.write_all(head.as_bytes()).ok()
}

fn stream_tokens(mut socket: &TcpStream, body: &str, chat: bool) -> Option<()> {
    let plain: String = body.chars().filter(|c| !c.is_whitespace()).collect();
    let count = plain.split("\"max_tokens\":").nth(1)?;
    let count: u32 = count.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    let word = |at: u32| format!(" w{at}");
    let usage = format!(
        "\"usage\": {{\"prompt_tokens\": 4, \"completion_tokens\": {count}, \"total_tokens\": {}}}",
        count + 4
    );
    if !plain.contains("\"stream\":true") {
        let text: String = (0..count).map(word).collect();
        thread::sleep(PACE * count);
        let said = match chat {
            true => format!("\"message\": {{\"role\": \"assistant\", \"content\": \"{text}\"}}"),
            false => format!("\"text\": \"{text}\""),
        };
        let choice = format!("{{\"index\": 0, {said}, \"finish_reason\": \"length\"}}");
        return respond(socket, 200, JSON, &format!("{{\"id\": \"a\", \"choices\": [{choice}], {usage}}}"));
    }
    socket
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        .ok()?;
    for at in 0..count {
        thread::sleep(PACE);
        let said = match chat {
            true => format!("\"delta\": {{\"content\": \"{}\"}}", word(at)),
            false => format!("\"text\": \"{}\"", word(at)),
        };
        let end = if at + 1 == count { "\"length\"" } else { "null" };
        let choice = format!("{{\"index\": 0, {said}, \"finish_reason\": {end}}}");
        socket.write_all(format!("data: {{\"id\": \"a\", \"choices\": [{choice}]}}\n\n").as_bytes()).ok()?;
    }
    if plain.contains("\"include_usage\":true") {
        socket.write_all(format!("data: {{\"id\": \"a\", \"choices\": [], {usage}}}\n\n").as_bytes()).ok()?;
    }
    socket.write_all(b"data: [DONE]\n\n").ok()
}
