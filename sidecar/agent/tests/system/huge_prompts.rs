//! Huge prompts beside a small one: through a socket, the real gateway and a real engine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::isolation::{SHAPE, TIMEOUT, TestServer, VOCAB, tenant_config};
use crate::models::generate;
use crate::support::Tenant;
use crate::tokenizers::ModelFolder;

/// Huge prompts at one time.
const HUGE: usize = 6;
/// Bytes of a prompt that no context of this test takes.
const HUGE_BYTES: usize = 700_000;
/// Times that a small prompt is sent alone, and beside huge ones, in each round.
const TIMES: usize = 12;
const ROUNDS: usize = 4;
/// Tries, of which one has to do: a machine that runs many tests is busy with others meanwhile.
const TRIES: usize = 3;
/// What the clock and the scheduler of the machine may be wrong by.
const NOISE: Duration = Duration::from_millis(1);

/// No small request waits for a huge one that is read whole, which takes seconds.
const QUEUED: Duration = Duration::from_millis(200);

/// Bytes by GPT-2's names behind `normalizers`.
fn tokenizer(normalizers: &[Value]) -> Value {
    const { assert!(crate::tiny::VOCAB <= VOCAB, "the model has an embedding for each token") };
    let folder = tempfile::tempdir().unwrap();
    drop(crate::tiny::text(folder.path()));
    let bytes = std::fs::read(folder.path().join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&bytes).unwrap();
    tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
    tokenizer
}

/// The bytes of a request for one token after `prompt`.
fn request(prompt: &str) -> Vec<u8> {
    let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    let length = body.len();
    let head =
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json";
    format!("{head}\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

/// Sends a request, and reads until the first line of its answer.
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

/// How long a request takes to its first token.
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Times to the first token, of each small request.
struct Times {
    alone: Vec<Vec<Duration>>,
    concurrent: Vec<Vec<Duration>>,
    /// The huge ones ended before the small ones had been sent.
    ended_early: bool,
}

/// Sends each of `small` alone and beside six of `huge`, in turns. Huge ones come again while `again`.
fn measure(address: SocketAddr, small: &[Vec<u8>], huge: &[u8], again: bool) -> Times {
    let none = || vec![Vec::new(); small.len()];
    let mut found = Times { alone: none(), concurrent: none(), ended_early: false };
    let time = |into: &mut Vec<Vec<Duration>>| {
        for (times, request) in into.iter_mut().zip(small) {
            times.push(first_token(address, request));
        }
    };
    for _ in 0..ROUNDS {
        (0..TIMES).for_each(|_| time(&mut found.alone));
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

/// What the times are, in words; an error where a small request is held up.
fn check_delay(times: &Times, small: &[Vec<u8>]) -> Result<String, String> {
    let (mut words, mut late) = (String::new(), times.ended_early);
    for ((alone, beside), request) in times.alone.iter().zip(&times.concurrent).zip(small) {
        let worst = beside.iter().max().copied().unwrap_or_default();
        let (alone, beside) = (median(alone.clone()), median(beside.clone()));
        late |= beside > 2 * alone + NOISE || worst > 2 * alone + QUEUED;
        words +=
            &format!("{} bytes: {alone:?} alone, {beside:?} beside, at worst {worst:?}; ", request.len());
    }
    if late { Err(words) } else { Ok(words) }
}

/// The first token of a small request beside six of `huge` comes at most twice as late as alone.
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

/// The second is a large body, for one of the lanes: blanks around it are stripped.
fn small() -> [String; 2] {
    ["The sky is blue.".into(), format!("{}The sky is blue.", " ".repeat(12 << 10))]
}

fn strip() -> Value {
    json!({"type": "Strip", "strip_left": true, "strip_right": true})
}

#[test]
fn six_huge_prompts_do_not_delay_small_prompt() {
    // Nothing is known of a text before this one, so that it has to be read whole.
    let unknown = json!({"type": "Replace", "pattern": {"Regex": "x(?=y)"}, "content": ""});
    assert_not_delayed(&[strip(), unknown], &"word ".repeat(HUGE_BYTES / 5), false);
}

#[test]
fn repeated_huge_prompts_do_not_delay_small_prompt() {
    assert_not_delayed(&[strip()], &"word ".repeat(HUGE_BYTES / 5), true);
}
