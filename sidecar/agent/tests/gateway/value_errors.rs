//! Tests that errors describe values in terms of JSON, not of the parser's library.

use serde_json::{Value, json};
use sluice_scheduler::Finish;

use super::harness::{Harness, HarnessConfig};

const INVALID: &str = "invalid_request_error";
/// Terms of serde and Rust that clients do not know.
const RUST_TERMS: [&str; 15] = [
    "untagged",
    "enum",
    "variant",
    "u32",
    "i32",
    "i64",
    "f32",
    "usize",
    "struct",
    "sequence",
    "map",
    "floating point",
    "invalid type",
    "Prompt",
    "0.0000000000",
];

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn with(path: &str, name: &str, value: &Value) -> Value {
    let mut body = match path {
        CHAT => json!({"messages": [{"role": "user", "content": "x"}]}),
        _ => json!({"prompt": "p"}),
    };
    body[name] = value.clone();
    body
}

type WrongValue = (&'static str, Value, String);

const COUNT: &str = "an integer from 0 to 4294967295";

fn wrong_in_completions() -> Vec<WrongValue> {
    let prompts = "a string, an array of strings, an array of token ids, or an array of arrays of token ids";
    let item = "a string, a token id (an integer from 0 to 4294967295) or an array of token ids";
    vec![
        ("prompt", json!([-1]), format!("`prompt[0]` must be {item}, not -1")),
        ("prompt", json!([1, 1.5]), format!("`prompt[1]` must be {item}, not 1.5")),
        ("prompt", json!([1, null]), format!("`prompt[1]` must be {item}, not null")),
        ("prompt", json!([[1, "a"]]), format!("`prompt[0][1]` must be {COUNT}, not the string \"a\"")),
        ("prompt", json!([4_294_967_296_u64]), format!("`prompt[0]` must be {item}, not 4294967296")),
        ("prompt", json!(["a", 1]), format!("`prompt` must be {prompts}, not an array of several kinds")),
        ("prompt", json!({"a": 1}), format!("`prompt` must be {prompts}, not an object")),
        ("prompt", json!(5), format!("`prompt` must be {prompts}, not 5")),
        ("stop", json!(5), "`stop` must be a string or an array of strings, not 5".into()),
        ("stop", json!(["a", 5]), "`stop[1]` must be a string, not 5".into()),
        ("max_tokens", json!("5"), format!("`max_tokens` must be {COUNT}, not the string \"5\"")),
        ("n", json!(-1), format!("`n` must be {COUNT}, not -1")),
        ("stream", json!("yes"), "`stream` must be a boolean, not the string \"yes\"".into()),
        ("temperature", json!("hot"), "`temperature` must be a number, not the string \"hot\"".into()),
        ("temperature", json!(3), "`temperature` must be a number from 0 to 2, not 3".into()),
        ("top_p", json!(0), "`top_p` must be a number above 0 and at most 1, not 0".into()),
        ("seed", json!(1.5), "`seed` must be an integer, not 1.5".into()),
        ("logit_bias", json!({"1": "a"}), "`logit_bias.1` must be a number, not the string \"a\"".into()),
        ("logit_bias", json!([1]), "`logit_bias` must be an object, not an array".into()),
        ("model", json!(7), "`model` must be a string, not 7".into()),
        ("logprobs", json!(true), format!("`logprobs` must be {COUNT}, not true")),
    ]
}

fn wrong_in_chats() -> Vec<WrongValue> {
    let part = r#"`content[0]` must be an object such as {"type": "text", "text": "..."}, not"#;
    let content = |content: Value| json!([{"role": "user", "content": content}]);
    vec![
        ("max_completion_tokens", json!(2.5), format!("`max_completion_tokens` must be {COUNT}, not 2.5")),
        (
            "repetition_penalty",
            json!(0),
            "`repetition_penalty` must be a number above 0 and at most 10, not 0".into(),
        ),
        ("logprobs", json!(5), "`logprobs` must be a boolean, not 5".into()),
        ("messages", json!("x"), "`messages` must be an array, not the string \"x\"".into()),
        ("messages", json!(["x"]), "`messages[0]` must be an object, not the string \"x\"".into()),
        ("messages", content(json!(["Hi"])), format!("messages[0]: {part} the string \"Hi\"")),
        ("messages", content(json!([null])), format!("messages[0]: {part} null")),
        (
            "messages",
            content(json!([{"text": "a"}])),
            "messages[0]: `content[0]` needs a string `type`".into(),
        ),
        ("stream_options", json!(true), "`stream_options` must be an object, not true".into()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn value_errors_use_json_types() {
    let world = Harness::start(HarnessConfig::default()).await;
    for (path, all) in [(COMPLETIONS, wrong_in_completions()), (CHAT, wrong_in_chats())] {
        for (name, value, wanted) in all {
            let message =
                world.post(path, &with(path, name, &value)).await.error(400, INVALID, Some(name), None);
            assert_eq!(message, wanted, "{name}: {value}");
        }
    }
    let missing = world.post(CHAT, &json!({})).await.error(400, INVALID, Some("messages"), None);
    assert_eq!(missing, "`messages` is missing");
}

/// Sends every parameter with a value of every kind; each error must be free of Rust terms.
#[tokio::test(flavor = "multi_thread")]
async fn value_errors_contain_no_rust_terms() {
    let world = Harness::start(HarnessConfig::default()).await;
    let names = [
        "model",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "min_tokens",
        "ignore_eos",
        "skip_special_tokens",
        "priority",
        "cache_salt",
        "user",
        "prompt",
        "messages",
        "logprobs",
        "top_logprobs",
        "best_of",
        "tools",
        "response_format",
    ];
    let values = [
        json!(true),
        json!(-1),
        json!(1.5),
        json!(1e300),
        json!(u64::MAX),
        json!("x"),
        json!([]),
        json!([null]),
        json!([1.5]),
        json!([-1]),
        json!([["a"]]),
        json!(["a", 1]),
        json!({"a": "b"}),
        json!({"include_usage": 1}),
        json!({"x": true}),
    ];
    let mut refused = 0;
    for path in [COMPLETIONS, CHAT] {
        for (name, value) in names.iter().flat_map(|name| values.iter().map(move |value| (*name, value))) {
            let mut client = world.start_post(path, &with(path, name, value)).await;
            // An accepted request is not answered here.
            let answer = tokio::select! {
                answer = client.answer() => answer,
                taken = world.scheduler.recv_request() => {
                    taken.finish(Finish::Length);
                    continue;
                }
            };
            assert!([400, 404].contains(&answer.head.status), "{name}: {value}: {answer:?}");
            let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
            let foreign = RUST_TERMS.iter().find(|word| message.contains(*word));
            assert_eq!(foreign, None, "{path}, {name}: {value}: {message}");
            assert!(!message.is_empty() && message.len() < 300, "{path}, {name}: {value}: {message}");
            refused += 1;
        }
    }
    assert!(refused > 600, "{refused} were refused");
}

/// PHP, R and Lua write 2.0 for 2.
#[tokio::test(flavor = "multi_thread")]
async fn integral_floats_are_accepted_as_integers() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"prompt": [[1.0, 2.0]], "max_tokens": 7.0, "n": 1.0, "stop_token_ids": [5.0], "top_k": 3.0,
        "seed": 4.0, "min_tokens": 2.0, "priority": -6.0, "logprobs": 2.0, "best_of": 1.0, "temperature": 1});
    let _client = world.start_post(COMPLETIONS, &body).await;
    let taken = world.scheduler.recv_request().await;
    let (request, sampling) = (&taken.request, &taken.request.sampling);
    assert_eq!((request.prompt.as_slice(), request.max_tokens, request.priority), ([1, 2].as_slice(), 7, -6));
    assert_eq!((sampling.top_k, sampling.seed, sampling.min_tokens, sampling.logprobs), (3, 4, 2, Some(2)));
    assert_eq!(sampling.stop_tokens.last(), Some(&5));
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 3.0,
        "max_completion_tokens": 2.0});
    let _client = world.start_post(CHAT, &body).await;
    let taken = world.scheduler.recv_request().await;
    assert_eq!((taken.request.sampling.logprobs, taken.request.max_tokens), (Some(3), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn encoded_body_is_415() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body = br#"{"prompt": "p"}"#;
    for coding in ["gzip", "br", "identity, zstd"] {
        let mut client = world.client().await;
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        client.send("POST", COMPLETIONS, &headers, body).await;
        let answer = client.answer().await;
        let message = answer.error(415, INVALID, None, None);
        assert!(message.contains(&format!("content-encoding `{coding}`")), "{message}");
        assert_eq!(answer.head.header("accept-encoding"), Some("identity"));
    }
    for coding in ["identity", "Identity", ""] {
        let mut client = world.client().await;
        let headers = [("content-type", "application/json"), ("content-encoding", coding)];
        client.send("POST", COMPLETIONS, &headers, body).await;
        world.scheduler.recv_request().await.finish(Finish::Length);
        assert_eq!(client.answer().await.head.status, 200, "{coding}");
    }
}
