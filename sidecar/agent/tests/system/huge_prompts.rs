//! Tests that huge prompts do not delay a small one, with sockets, the real gateway and a real engine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluice_common::statistics::percentile;

use crate::isolation::{SHAPE, TIMEOUT, TestServer, VOCAB, tenant_config};
use crate::models::generate;
use crate::support::Tenant;
use crate::tokenizers::ModelFolder;

/// Number of concurrent huge prompts.
const HUGE: usize = 6;
/// Size of a prompt that exceeds every context of this test, bytes.
const HUGE_BYTES: usize = 700_000;
/// How often a small prompt is sent alone and with huge ones, per round.
const TIMES: usize = 12;
const ROUNDS: usize = 4;
/// Attempts, of which one must succeed, because other tests may keep the machine busy.
const TRIES: usize = 3;
/// Tolerance for the machine's clock and scheduler.
const NOISE: Duration = Duration::from_millis(1);

/// Tolerance below the time to tokenize a huge prompt, which is seconds: no small request may wait for one.
const QUEUED: Duration = Duration::from_millis(200);

/// Returns a tokenizer with one token per byte (GPT-2's names) after `normalizers`.
fn tokenizer(normalizers: &[Value]) -> Value {
    const { assert!(crate::tiny::VOCAB <= VOCAB, "the model has an embedding for each token") };
    let folder = tempfile::tempdir().unwrap();
    drop(crate::tiny::text(folder.path()));
    let bytes = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&bytes).unwrap();
    tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    tokenizer
}

/// Returns the bytes of a request for one token after `prompt`.
fn request(prompt: &str) -> Vec<u8> {
    let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    let length = body.len();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Sends a request and reads up to the first line of its response.
fn ask(address: SocketAddr, request: &[u8]) -> (u16, BufReader<TcpStream>) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.write_all(request).unwrap();
    let mut answer = BufReader::new(socket);
    let mut line = String::new();
    answer.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

/// Returns the time of a request to its first token.
fn first_token(address: SocketAddr, request: &[u8]) -> Duration {
    let begun = Instant::now();
    let (status, mut answer) = ask(address, request);
    let taken = begun.elapsed();
    let mut rest = String::new();
    answer.read_to_string(&mut rest).unwrap();
    assert_eq!(status, 200, "{rest}");
    taken
}

fn too_long(address: SocketAddr, request: &[u8]) {
    let (status, mut answer) = ask(address, request);
    let mut rest = String::new();
    answer.read_to_string(&mut rest).unwrap();
    assert!(status == 400 && rest.contains("context_length_exceeded"), "{status} {rest}");
}

/// Times to first token, per small request.
struct Times {
    unloaded: Vec<Vec<Duration>>,
    concurrent: Vec<Vec<Duration>>,
    /// Whether the huge requests ended before the small ones were sent.
    ended_early: bool,
}

/// Sends each of `small` alone and with six of `huge`, alternately. Huge requests are repeated if `again`.
fn measure(address: SocketAddr, small: &[Vec<u8>], huge: &[u8], again: bool) -> Times {
    let none = || vec![Vec::new(); small.len()];
    let mut found = Times { unloaded: none(), concurrent: none(), ended_early: false };
    let time = |into: &mut Vec<Vec<Duration>>| {
        for (times, request) in into.iter_mut().zip(small) {
            times.push(first_token(address, request));
        }
    };
    for _ in 0..ROUNDS {
        (0..TIMES).for_each(|_| time(&mut found.unloaded));
        let enough = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let send = || loop {
                too_long(address, huge);
                if !again || enough.load(Ordering::Relaxed) {
                    return;
                }
            };
            let huge: Vec<_> = (0..HUGE).map(|_| scope.spawn(send)).collect();
            for _ in 0..TIMES {
                time(&mut found.concurrent);
                found.ended_early |= huge.iter().all(|one| one.is_finished());
            }
            enough.store(true, Ordering::Relaxed);
        });
    }
    found
}

/// Formats the times; fails if a small request is delayed.
fn check_delay(times: &Times, small: &[Vec<u8>]) -> Result<String, String> {
    let (mut words, mut late) = (String::new(), times.ended_early);
    let median = |times: &Vec<Duration>| percentile(&mut times.clone(), 500).expect("there are times");
    for ((unloaded, concurrent), request) in times.unloaded.iter().zip(&times.concurrent).zip(small) {
        let worst = concurrent.iter().max().copied().unwrap_or_default();
        let (unloaded, concurrent) = (median(unloaded), median(concurrent));
        late |= concurrent > 2 * unloaded + NOISE || worst > 2 * unloaded + QUEUED;
        words += &format!(
            "{} bytes: {unloaded:?} alone, {concurrent:?} next to others, at worst {worst:?}; ",
            request.len()
        );
    }
    if late { Err(words) } else { Ok(words) }
}

/// Asserts that the first token of a small request takes at most twice as long with six of `huge` as alone.
fn assert_not_delayed(normalizers: &[Value], huge: &str, again: bool) {
    let model = generate(&SHAPE);
    let tenant = Tenant::start(tenant_config(model.path()));
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(model.path().join("config.json"), folder.path().join("config.json")).unwrap();
    let written =
        ModelFolder { tokenizer: tokenizer(normalizers), template: String::new(), added: Vec::new() };
    written.write(folder.path());
    let served = TestServer::start(&tenant, folder.path());
    let address = served.address;
    let (small, huge) = (small().map(|prompt| request(&prompt)), request(huge));
    let mut tries = Vec::new();
    while tries.len() < TRIES && !tries.iter().any(Result::is_ok) {
        tries.push(check_delay(&measure(address, &small, &huge, again), &small));
    }
    eprintln!("{tries:?}");
    served.shutdown();
    assert!(tries.iter().any(Result::is_ok), "held up in every try: {tries:#?}");
}

/// Returns two small prompts. The body of the second one is large, for a parser permit; its blanks are stripped.
fn small() -> [String; 2] {
    ["The sky is blue.".into(), format!("{}The sky is blue.", " ".repeat(12 << 10))]
}

fn strip() -> Value {
    json!({"type": "Strip", "strip_left": true, "strip_right": true})
}

#[test]
fn six_huge_prompts_do_not_delay_small_prompt() {
    // The lower bound ignores a text before this normalizer, so that the text must be tokenized.
    let unknown = json!({"type": "Replace", "pattern": {"Regex": "x(?=y)"}, "content": ""});
    assert_not_delayed(&[strip(), unknown], &"word ".repeat(HUGE_BYTES / 5), false);
}

#[test]
fn repeated_huge_prompts_do_not_delay_small_prompt() {
    assert_not_delayed(&[strip()], &"word ".repeat(HUGE_BYTES / 5), true);
}
