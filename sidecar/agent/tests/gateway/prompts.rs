//! Tests of prompts: each is checked against vocabulary and context, one that cannot fit is not tokenized, and a huge
//! one does not delay a small one.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use sluice_agent::gateway::limits::RequestLimiter;
use sluice_agent::metrics::Metrics;
use sluice_agent::model::text::Text;
use sluice_agent::model::token_bound::TokenBound;
use sluice_wire::config::{LimitsConfig, SloConfig};
use tokenizers::Tokenizer;

use super::client::TIMEOUT;
use super::harness::{Harness, HarnessConfig};
use super::tiny;
use super::tokenizers::{folders, texts};

const INVALID: &str = "invalid_request_error";
const TOO_LONG: Option<&str> = Some("context_length_exceeded");

fn chat(content: &str) -> Value {
    json!({"messages": [{"role": "user", "content": content}]})
}

/// Returns the tiny model with a tokenizer that has one token more than the model.
fn model_with_extra_token(folder: &Path) -> (Text, u32) {
    drop(tiny::text(folder));
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("just written")).expect("JSON");
    let more = json!({"id": tiny::VOCAB, "content": "<|im_start|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true});
    tokenizer["added_tokens"].as_array_mut().expect("a list").push(more);
    std::fs::write(&path, tokenizer.to_string()).expect("the folder can be written");
    (Text::open(folder).expect("the folder is complete"), tiny::VOCAB)
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_vocabulary_token_is_400() {
    let world =
        Harness::start(HarnessConfig { model: model_with_extra_token, ..HarnessConfig::default() }).await;
    let text = "hello <|im_start|>";
    for (path, body, param) in [
        ("/v1/chat/completions", chat(text), "messages"),
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        ("/v1/completions", json!({"prompt": ["a", text]}), "prompt"),
        ("/v1/completions", json!({"prompt": [1, 257]}), "prompt"),
        ("/v1/completions", json!({"prompt": [[1], [2, 257]]}), "prompt"),
    ] {
        let message = world.post(path, &body).await.error(400, INVALID, Some(param), None);
        let (what, _index) = message.rsplit_once(", at index ").expect("it says where");
        assert_eq!(what, "the vocabulary has no token 257 (`<|im_start|>`)", "{path} {body}");
    }
    let message = world.post("/v1/completions", &json!({"prompt": [1, 2, 4_294_967_295_u32]})).await;
    let message = message.error(400, INVALID, Some("prompt"), None);
    assert_eq!(message, "the vocabulary has no token 4294967295, at index 2");
    assert!(world.scheduler.next(Duration::ZERO).await.is_none(), "nothing reached the scheduler");
}

/// The error has OpenAI's wording, which gateways match: litellm's `context_window_fallbacks` match "model's maximum
/// context length is", langchain matches the code.
#[tokio::test(flavor = "multi_thread")]
async fn context_overflow_uses_openai_error() {
    let world = Harness::start(HarnessConfig { context: 20, ..HarnessConfig::default() }).await;
    // The template adds "user: ", a line break and "assistant:".
    let added = "user: \nassistant:".len();
    let long = "x".repeat(40);
    for (path, body, param, message) in [
        (
            "/v1/completions",
            json!({"prompt": [vec![1; 30]]}),
            "prompt",
            "your prompt has 30 tokens. Please reduce the length of the prompt.".to_owned(),
        ),
        (
            "/v1/completions",
            json!({"prompt": vec![1; 20], "max_tokens": 1}),
            "prompt",
            "your prompt has 20 tokens and an answer needs at least one more. Please reduce the length of the prompt."
                .into(),
        ),
        (
            "/v1/completions",
            json!({"prompt": vec![1; 19], "max_tokens": 2}),
            "max_tokens",
            "you requested 21 tokens (19 in the prompt, 2 in the completion). Please reduce the length of the prompt \
             or completion."
                .into(),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "xx"}], "max_completion_tokens": 9}),
            "max_completion_tokens",
            format!(
                "you requested {} tokens ({} in the messages, 9 in the completion). Please reduce the length of the \
                 messages or completion.",
                added + 11,
                added + 2
            ),
        ),
        (
            "/v1/chat/completions",
            chat(&long),
            "messages",
            // The lower bound by bytes: each token of the tiny model has one byte, except the end token with five.
            format!("your messages resulted in at least {} tokens. Please reduce the length of the messages.", (added + 40).div_ceil(5)),
        ),
    ] {
        let context = if body["messages"][0]["content"] == json!(long) { 10 } else { 20 };
        let world = if context == 10 { &Harness::start(HarnessConfig { context, ..HarnessConfig::default() }).await } else { &world };
        let found = world.post(path, &body).await.error(400, INVALID, Some(param), TOO_LONG);
        let wanted = format!("This model's maximum context length is {context} tokens. However, {message}");
        assert_eq!(found, wanted, "{body}");
    }
    let limits = LimitsConfig { max_prompt_tokens: Some(10), ..LimitsConfig::default() };
    let world = Harness::start(HarnessConfig { limits, ..HarnessConfig::default() }).await;
    for text in ["x".repeat(11), "x".repeat(900)] {
        world.post("/v1/completions", &json!({"prompt": text})).await.error(
            400,
            INVALID,
            Some("prompt"),
            None,
        );
        world.post("/v1/chat/completions", &chat(&text)).await.error(400, INVALID, Some("messages"), None);
    }
}

/// Compares the lower bound with the tokenizer's own count.
#[test]
fn token_lower_bound_holds_for_any_text() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: ProptestConfig::default().cases.max(300),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let (bounded, tight) = (Cell::new(0_u32), Cell::new(0_u32));
    // Parts for which many bounds are weak: steps that drop text, models that do not know all of it.
    let kinds = [
        "Strip\"",
        "Precompiled",
        "BertNormalizer",
        "StripAccents",
        "Nmt",
        "WhitespaceSplit",
        "CharDelimiterSplit",
        "UnicodeScripts",
        "Removed",
        "WordPiece",
        "WordLevel",
        "Unigram",
        "##",
    ];
    let by_kind = kinds.map(|kind| (kind, Cell::new(0_u32)));
    let cases = folders(512).prop_flat_map(|folder| {
        let texts = proptest::collection::vec(texts(folder.added.clone()), 8);
        (Just(folder), texts)
    });
    runner
        .run(&cases, |(folder, texts)| {
            let written = tempfile::tempdir().expect("a folder");
            std::fs::write(written.path().join("config.json"), "{}").expect("the folder can be written");
            folder.write(written.path());
            let read = Text::open(written.path()).expect("the folder is complete");
            for text in texts {
                let counted = read.encode_rendered(&text).expect("it reads every text").len() as u64;
                let least = read.token_bound().min_tokens(&text, u64::MAX);
                prop_assert!(least <= counted, "{text:?} has {counted} tokens, not at least {least}");
                let (enough, early) = (least / 2, read.token_bound().min_tokens(&text, least / 2));
                prop_assert!(
                    (enough..=least).contains(&early),
                    "{text:?}: {early} of {least}, {enough} asked"
                );
                bounded.set(bounded.get() + u32::from(least > 0));
                let named = folder.tokenizer.to_string();
                let found = by_kind.iter().filter(|(kind, _)| least > 1 && named.contains(kind));
                found.for_each(|(_, texts)| texts.set(texts.get() + 1));
                tight.set(tight.get() + u32::from(least > 0 && counted < 4 * least));
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    let (bounded, tight) = (bounded.get(), tight.get());
    assert!(
        bounded > 1000 && tight > 400,
        "the bound says something: {bounded} texts, {tight} of them within a quarter"
    );
    assert!(by_kind.iter().all(|(_, texts)| texts.get() > 0), "and of each kind: {by_kind:?}");
}

/// Uses 800 times "x ", in which each character is a token, with one part of the tokenizer changed.
#[test]
fn dropped_bytes_do_not_count_in_lower_bound() {
    let folder = tempfile::tempdir().unwrap();
    drop(tiny::text(folder.path()));
    let path = folder.path().join("tokenizer.json");
    let tiny: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let least = |change: &dyn Fn(&mut Value)| {
        let mut tokenizer = tiny.clone();
        change(&mut tokenizer);
        let tokenizer = Tokenizer::from_bytes(tokenizer.to_string()).expect("a sound tokenizer");
        TokenBound::of(&tokenizer).min_tokens(&"x ".repeat(800), u64::MAX)
    };
    assert_eq!(least(&|_| {}), 1600);
    let covered = |t: &mut Value| t["added_tokens"][0]["content"] = json!("x x x");
    assert_eq!(least(&covered), 320, "five of them may be a token");
    assert_eq!(
        least(&|t| t["added_tokens"][0]["rstrip"] = json!(true)),
        800,
        "blanks next to it cost nothing"
    );
    let drop_a_byte = |t: &mut Value| drop(t["model"]["vocab"].as_object_mut().unwrap().remove("x"));
    assert_eq!(least(&drop_a_byte), 800, "a byte without a token is dropped");
    for (part, value, tokens) in [
        ("normalizer", json!({"type": "NFC"}), 1600),
        ("normalizer", json!({"type": "NFKC"}), 1600),
        (
            "normalizer",
            json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": true, "lowercase": true}),
            1600,
        ),
        ("normalizer", json!({"type": "Strip", "strip_left": true, "strip_right": true}), 800),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}), 800),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": "x"}, "content": ""}), 800),
        ("normalizer", json!({"type": "Replace", "pattern": {"String": "x "}, "content": ""}), 0),
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": "x+"}, "content": ""}), 0),
        ("pre_tokenizer", json!({"type": "WhitespaceSplit"}), 800),
        // Blanks have no token of their own name.
        ("pre_tokenizer", Value::Null, 800),
        (
            "truncation",
            json!({"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}),
            0,
        ),
        // The model has words instead of characters.
        ("model", json!({"type": "WordLevel", "unk_token": "x", "vocab": {"x": 0}}), 0),
    ] {
        assert_eq!(least(&|t| t[part] = value.clone()), tokens, "{part}: {value}");
    }
    let words = |t: &mut Value| {
        t["pre_tokenizer"] = json!({"type": "WhitespaceSplit"});
        t["model"] = json!({"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"x": 0}});
    };
    assert_eq!(least(&words), 800);
    // Non-ASCII characters count by their bytes: two characters are composed into one of two bytes, which is two
    // tokens.
    let composed = Tokenizer::from_bytes({
        let mut tokenizer = tiny.clone();
        tokenizer["normalizer"] = json!({"type": "NFC"});
        tokenizer.to_string()
    });
    assert_eq!(TokenBound::of(&composed.unwrap()).min_tokens(&"e\u{301}".repeat(400), u64::MAX), 1200 / 40);
}

/// Parses six huge bodies that never finish, and smaller bodies of every size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_bodies_do_not_delay_small_ones() {
    let open = RequestLimiter::new(1, Arc::new(Metrics::new("tiny", &SloConfig::default())));
    for (huge, smaller) in
        [(4 << 20, vec![1, 10 << 10, 60 << 10, 400 << 10]), (500 << 10, vec![1, 10 << 10, 60 << 10])]
    {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = Arc::new(std::sync::Mutex::new(ended));
        let (begun, mut parsing) = tokio::sync::mpsc::unbounded_channel();
        let reading: Vec<_> = (0..6)
            .map(|_| {
                let (open, ended, begun) = (open.clone(), ended.clone(), begun.clone());
                let work = move || {
                    begun.send(()).expect("the test waits");
                    // Runs until the test has dropped the other end.
                    let _ = ended.lock().expect("no task panics").recv_timeout(TIMEOUT);
                    Ok(())
                };
                tokio::spawn(async move { open.parse(huge, work).await })
            })
            .collect();
        parsing.recv().await.expect("the first begins");
        for bytes in smaller {
            let read = tokio::time::timeout(TIMEOUT / 2, open.parse(bytes, || Ok(()))).await;
            assert!(read.is_ok(), "{bytes} bytes wait for {huge}");
        }
        drop(end);
        for one in reading {
            one.await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_body_thread_is_low_priority_and_panic_stays_local() {
    let open = RequestLimiter::new(1, Arc::new(Metrics::new("tiny", &SloConfig::default())));
    // Of this thread: Linux has a niceness per thread.
    let niceness = || rustix::process::getpriority_process(None).expect("every thread has one");
    let here = niceness();
    for (bytes, nicer) in [(1, 0), (60 << 10, 0), (100 << 10, 10), (4 << 20, 10)] {
        let niceness = open.parse(bytes, move || Ok(niceness())).await;
        assert_eq!(niceness.unwrap(), (here + nicer).min(19), "{bytes} bytes");
    }
    let reader = open.clone();
    let broken = tokio::spawn(async move { reader.parse::<()>(4 << 20, || panic!("broken")).await });
    assert!(broken.await.expect_err("it panics").is_panic());
    assert_eq!(open.parse(4 << 20, || Ok(7)).await.unwrap(), 7, "its turn is over");
}

/// A client that disconnects while its body is parsed keeps the permit until parsing ends; a client that disconnects in
/// the queue leaves it at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_client_holds_no_parser_permit() {
    let open = RequestLimiter::new(1, Arc::new(Metrics::new("tiny", &SloConfig::default())));
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begun, mut reading) = tokio::sync::mpsc::unbounded_channel();
    let work = move || {
        begun.send(()).expect("the test waits");
        let _ = ended.recv_timeout(TIMEOUT);
        Ok(())
    };
    let first = tokio::spawn({
        let open = open.clone();
        async move { open.parse(4 << 20, work).await }
    });
    reading.recv().await.expect("it begins");
    let queued = tokio::spawn({
        let open = open.clone();
        async move { open.parse::<()>(4 << 20, || panic!("no client waits for it")).await }
    });
    first.abort();
    assert!(first.await.expect_err("it is gone").is_cancelled());
    let next = open.parse(4 << 20, || Ok(()));
    tokio::pin!(next);
    queued.abort();
    assert!(queued.await.expect_err("it is gone").is_cancelled());
    let early = tokio::time::timeout(Duration::ZERO, &mut next).await;
    assert!(early.is_err(), "one is read at a time");
    drop(end);
    tokio::time::timeout(TIMEOUT, next).await.expect("its turn comes").unwrap();
}
