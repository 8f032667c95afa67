//! Tests of prompts and responses as text, with a SentencePiece tokenizer.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use sluice_agent::model::text::Text;
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_ports::sampling::TokenLogprobs;
use sluice_scheduler::Finish;

use super::harness::{Harness, HarnessConfig, ReceivedRequest};
use crate::text::folders::{DecoderKind, added, tokenizer, write};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}{{ m.tool_calls | tojson if m.tool_calls is defined }}\
    {% if m.content is defined %}={{ m.content }}{% endif %};{% endfor %}{% if add_generation_prompt %}A{% endif %}";

fn folder(folder: &Path, settings: &Value) -> (Text, u32) {
    write(folder, &tokenizer(DecoderKind::Pieces), settings);
    let text = Text::open(folder).expect("the folder is complete");
    let vocab = text.tokenizer().get_vocab_size(true) as u32;
    (text, vocab)
}

async fn world() -> Harness {
    let model = |path: &Path| folder(path, &json!({"chat_template": TEMPLATE, "eos_token": "</s>"}));
    Harness::start(HarnessConfig { model, ..HarnessConfig::default() }).await
}

/// Token ids of [`DecoderKind::Pieces`].
const UPON: u32 = 274;
const A: u32 = 276;
const fn byte(byte: u8) -> u32 {
    3 + byte as u32
}

/// Sends tokens, each with the same alternatives.
fn send_tokens(taken: &ReceivedRequest, tokens: &[u32], top: &[(u32, f32)]) {
    for token in tokens {
        let chosen = top.iter().find(|(id, _)| id == token).map_or(-9.0, |(_, logprob)| *logprob);
        let logprobs = Some(TokenLogprobs { chosen, top: top.to_vec() });
        taken.update(RequestUpdate::Token { token: *token, logprobs, at: Instant::now() });
    }
    taken.finish(Finish::Length);
}

#[tokio::test(flavor = "multi_thread")]
async fn first_space_is_kept_and_token_names_join_to_text() {
    let world = world().await;
    for stream in [false, true] {
        let body = json!({"prompt": "Once", "logprobs": 2, "stream": stream});
        let mut client = world.start_post("/v1/completions", &body).await;
        send_tokens(
            &world.scheduler.recv_request().await,
            &[UPON, A, byte(b',')],
            &[(UPON, -0.25), (A, -0.5)],
        );
        let answer = client.answer().await;
        let choices: Vec<Value> = match stream {
            false => vec![answer.json()["choices"][0].clone()],
            true => {
                let events = answer.body.split("\n\n").filter_map(|event| event.strip_prefix("data: {"));
                events
                    .map(|event| {
                        serde_json::from_str::<Value>(&format!("{{{event}")).unwrap()["choices"][0].clone()
                    })
                    .collect()
            }
        };
        let text: String = choices.iter().filter_map(|choice| choice["text"].as_str()).collect();
        let tokens = choices.iter().filter_map(|choice| choice["logprobs"]["tokens"].as_array()).flatten();
        let names: String = tokens.filter_map(Value::as_str).collect();
        assert_eq!((text.as_str(), names.as_str()), (" upon a,", " upon a,"), "stream {stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_token_texts_keep_all_alternatives() {
    let world = world().await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "Once", "logprobs": 5})).await;
    let comma = world_comma();
    // A word with and without its space, a character and its byte, and a token that the tokenizer does not have.
    let top = [(comma, -0.25), (byte(b','), -0.5), (A, -1.0), (byte(b'a'), -2.0), (4000, -3.0)];
    send_tokens(&world.scheduler.recv_request().await, &[comma, byte(0xf0)], &top);
    let found = client.answer().await.json()["choices"][0].clone();
    let alike = json!({",": -0.25, "token_id:47": -0.5, " a": -1.0, "a": -2.0, "token_id:4000": -3.0});
    let mut second = alike.clone();
    second["bytes:\\xf0"] = json!(-9.0);
    assert_eq!(found["logprobs"]["top_logprobs"], json!([alike, second]));
    assert_eq!((&found["text"], &found["logprobs"]["tokens"]), (&json!(","), &json!([",", "bytes:\\xf0"])));
}

/// Returns the id of `,` as a word of its own.
const fn world_comma() -> u32 {
    286
}

#[tokio::test(flavor = "multi_thread")]
async fn logprob_bytes_join_to_multibyte_text() {
    let world = world().await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 1});
    let mut client = world.start_post("/v1/chat/completions", &body).await;
    let party: Vec<u32> = "🎉".bytes().map(byte).collect();
    send_tokens(&world.scheduler.recv_request().await, &[&[A][..], &party].concat(), &[(4000, -0.5)]);
    let choice = client.answer().await.json()["choices"][0].clone();
    let content = choice["logprobs"]["content"].as_array().expect("a list");
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|token| token["bytes"].as_array().expect("bytes"))
        .map(|byte| byte.as_u64().expect("a byte") as u8)
        .collect();
    assert_eq!(
        (String::from_utf8(bytes).unwrap().as_str(), &choice["message"]["content"]),
        (" a🎉", &json!(" a🎉"))
    );
    // OpenAI's names of partial characters.
    let names: Vec<_> = content.iter().map(|token| token["token"].as_str().expect("a name")).collect();
    assert_eq!(names, [" a", "\\xf0", "\\x9f", "\\x8e", "\\x89"]);
    let unknown = json!({"token": "token_id:4000", "logprob": -0.5, "bytes": null});
    assert_eq!(content[0]["top_logprobs"], json!([unknown]));
}

/// Returns a tokenizer without a decoder, which puts a blank before each token, with one more added token.
fn blanks(folder: &Path) -> (Text, u32) {
    let mut file = tokenizer(DecoderKind::None);
    let x = added(&file, "<x>");
    file["added_tokens"].as_array_mut().expect("a list").push(x);
    write(folder, &file, &json!({}));
    let text = Text::open(folder).expect("the folder is complete");
    let vocab = text.tokenizer().get_vocab_size(true) as u32;
    (text, vocab)
}

#[tokio::test(flavor = "multi_thread")]
async fn spaces_between_special_tokens_can_be_disabled() {
    let world = Harness::start(HarnessConfig { model: blanks, ..HarnessConfig::default() }).await;
    // The last token of the vocabulary.
    let x = blanks(tempfile::tempdir().expect("a folder").path()).1 - 1;
    let a = byte(b'a');
    for (asked, text) in [
        (json!({"skip_special_tokens": false}), " <x> <x> <0x61>"),
        (json!({"skip_special_tokens": false, "spaces_between_special_tokens": true}), " <x> <x> <0x61>"),
        (json!({"skip_special_tokens": false, "spaces_between_special_tokens": false}), " <x><x> <0x61>"),
    ] {
        let mut body = asked.clone();
        body["prompt"] = json!([a]);
        let mut client = world.start_post("/v1/completions", &body).await;
        send_tokens(&world.scheduler.recv_request().await, &[x, x, a], &[]);
        assert_eq!(client.answer().await.json()["choices"][0]["text"], text, "{asked}");
    }
}

/// Returns the prompt of a chat as text.
async fn prompt(world: &Harness, body: Value) -> String {
    let mut client = world.start_post("/v1/chat/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    taken.finish(Finish::Length);
    assert_eq!(client.answer().await.head.status, 200, "{body}");
    let ids = &taken.request.prompt;
    let (folder, kept) = (tempfile::tempdir().expect("a folder"), ids.clone());
    let text = self::folder(folder.path(), &json!({})).0;
    text.tokenizer().decode(&kept, false).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn generation_prompt_can_be_disabled() {
    let world = world().await;
    let messages = json!([{"role": "user", "content": "x"}]);
    assert_eq!(prompt(&world, json!({"messages": messages})).await, "user=x;A");
    for (add, wanted) in [(json!(true), "user=x;A"), (json!(false), "user=x;"), (Value::Null, "user=x;A")] {
        assert_eq!(prompt(&world, json!({"messages": messages, "add_generation_prompt": add})).await, wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_call_without_content_reaches_template() {
    let world = world().await;
    // Literal JSON, because the order of fields matters.
    let call = r#"[{"id":"c","function":{"name":"f","arguments":"{\"z\":\"<é>\",\"a\":[1]}"}}]"#;
    let read = r#"[{"id": "c", "function": {"name": "f", "arguments": {"z": "<é>", "a": [1]}}}]"#;
    for (fields, wanted) in [
        (format!(r#""tool_calls":{call}"#), format!("assistant{read};")),
        (format!(r#""content":null,"tool_calls":{call}"#), format!("assistant{read}=None;")),
        (format!(r#""content":"","tool_calls":{call}"#), format!("assistant{read}=;")),
        (format!(r#""content":[],"tool_calls":{call}"#), format!("assistant{read}=;")),
        (r#""content":"x","tool_calls":null"#.into(), "assistant=x;".into()),
        (r#""content":"x","tool_calls":[]"#.into(), "assistant=x;".into()),
        (
            r#""tool_calls":[{"function":{"name":"f","arguments":""}},{"function":{"name":"g"}}]"#.into(),
            r#"assistant[{"function": {"name": "f", "arguments": {}}}, {"function": {"name": "g", "arguments": {}}}];"#
                .into(),
        ),
    ] {
        let body = format!(r#"{{"messages":[{{"role":"assistant",{fields}}}],"add_generation_prompt":false}}"#);
        let mut client = world.client().await;
        client.send("POST", "/v1/chat/completions", &[("content-type", "application/json")], body.as_bytes()).await;
        let taken = world.scheduler.recv_request().await;
        taken.finish(Finish::Length);
        assert_eq!(client.answer().await.head.status, 200, "{body}");
        let scratch = tempfile::tempdir().expect("a folder");
        let text = folder(scratch.path(), &json!({})).0;
        assert_eq!(text.tokenizer().decode(&taken.request.prompt, false).expect("text"), wanted, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_parts_are_joined_by_newline() {
    let world = world().await;
    let parts = json!([{"type": "text", "text": "The file is"}, {"type": "text", "text": "report.txt"}]);
    let messages = json!([{"role": "user", "content": parts}]);
    assert_eq!(prompt(&world, json!({"messages": messages})).await, "user=The file is\nreport.txt;A");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_template_fails_only_chats() {
    let model = |path: &Path| folder(path, &json!({"chat_template": "{% nonsense %}"}));
    let world = Harness::start(HarnessConfig { model, ..HarnessConfig::default() }).await;
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    let answer = world.post("/v1/chat/completions", &chat).await;
    let message = answer.error(400, "invalid_request_error", Some("messages"), None);
    assert!(
        message.contains("unknown statement nonsense") && message.contains("/v1/completions"),
        "{message}"
    );
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "Once"})).await;
    send_tokens(&world.scheduler.recv_request().await, &[UPON], &[]);
    assert_eq!(client.answer().await.json()["choices"][0]["text"], " upon");
}
