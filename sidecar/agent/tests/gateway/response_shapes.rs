//! Tests of the shape of responses.

use serde_json::{Value, json};
use sluice_agent::scheduler_handle::RequestUpdate;
use sluice_ports::sampling::TokenLogprobs;
use sluice_scheduler::Finish;

use super::client::Answer;
use super::harness::{Harness, HarnessConfig};
use super::tiny::END;

/// Checks and removes the fields that differ between runs.
fn chunk(event: &str, object: &str, prefix: &str) -> Value {
    let mut chunk: Value = serde_json::from_str(event).unwrap_or_else(|e| panic!("{e}: {event}"));
    let map = chunk.as_object_mut().expect("an object");
    assert!(map.remove("id").expect("an id").as_str().expect("a text").starts_with(prefix));
    assert!(map.remove("created").expect("a time").as_u64().expect("a number") > 1_700_000_000);
    assert_eq!(map.remove("object"), Some(json!(object)));
    assert_eq!(map.remove("model"), Some(json!("tiny")));
    chunk
}

/// Returns the text and the finish reason of a completion with one choice.
fn shown(answer: &Answer, stream: bool) -> (String, Value) {
    let bodies: Vec<Value> = match stream {
        true => events(&answer.body),
        false => vec![answer.json()],
    };
    let text = bodies.iter().map(|body| body["choices"][0]["text"].as_str().expect("text")).collect();
    (text, bodies[bodies.len() - 1]["choices"][0]["finish_reason"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn completion_stream_event_order() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"model": "tiny", "prompt": "Once", "stream": true, "max_tokens": 3,
        "stream_options": {"include_usage": true}});
    let mut client = world.start_post("/v1/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    assert_eq!((taken.prompt().as_str(), taken.request.max_tokens), ("Once", 3));
    taken.token(u32::from(b'a'));
    let head = client.head().await;
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
    let mut events = vec![client.next_event().await];
    taken.token(u32::from(b'b'));
    events.push(client.next_event().await);
    taken.token(END);
    taken.finish(Finish::Stop);
    events.extend(client.events().await.into_iter().map(|(_, event)| event));
    let done = events.pop();
    let chunks: Vec<_> = events.iter().map(|event| chunk(event, "text_completion", "cmpl-")).collect();
    let text = |text: &str, reason: Value| json!({"choices": [{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}], "usage": null});
    let usage =
        json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}});
    let wanted = [
        text("a", Value::Null),
        text("b", Value::Null),
        text("", Value::Null),
        text("", json!("stop")),
        usage,
    ];
    assert_eq!(chunks, wanted);
    assert_eq!(done.as_deref(), Some("[DONE]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_stream_event_order() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body =
        json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "stream": true});
    let mut client = world.start_post("/v1/chat/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    assert_eq!(taken.prompt(), "user: Hi\nassistant:");
    assert_eq!(
        taken.request.max_tokens,
        1000 - taken.request.prompt.len() as u32,
        "a chat may fill the context"
    );
    taken.send_text("yo");
    taken.finish(Finish::Length);
    assert_eq!(client.head().await.status, 200);
    let mut events: Vec<_> = client.events().await.into_iter().map(|(_, event)| event).collect();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let chunks: Vec<_> = events.iter().map(|e| chunk(e, "chat.completion.chunk", "chatcmpl-")).collect();
    let delta = |delta: Value, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]});
    assert_eq!(chunks[0], delta(json!({"role": "assistant", "content": ""}), Value::Null));
    assert_eq!(chunks[chunks.len() - 1], delta(json!({}), json!("length")));
    let middle = &chunks[1..chunks.len() - 1];
    let text: String = middle.iter().map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "yo");
}

#[tokio::test(flavor = "multi_thread")]
async fn full_response_has_usage() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "abc", "seed": 5})).await;
    let taken = world.scheduler.recv_request().await;
    assert_eq!((taken.request.max_tokens, taken.request.sampling.seed), (16, 5));
    taken.send_text("xy");
    taken.finish(Finish::Length);
    let answer = client.answer().await;
    assert_eq!(answer.head.header("content-type"), Some("application/json"));
    let wanted = json!({"choices": [{"index": 0, "text": "xy", "logprobs": null, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}});
    assert_eq!(chunk(&answer.body, "text_completion", "cmpl-"), wanted);

    let body = json!({"messages": [{"role": "user", "content": "Hi"}]});
    let mut client = world.start_post("/v1/chat/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("z");
    taken.token(END);
    taken.finish(Finish::Stop);
    let message = json!({"role": "assistant", "content": "z", "refusal": null});
    let prompt = taken.request.prompt.len();
    let wanted = json!({"choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": 2, "total_tokens": prompt + 2}});
    assert_eq!(chunk(&client.answer().await.body, "chat.completion", "chatcmpl-"), wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_choice_is_a_request_with_own_seed() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client =
        world.start_post("/v1/completions", &json!({"prompt": ["p", "q"], "n": 2, "seed": 7})).await;
    for (index, (prompt, seed)) in [("p", 7), ("p", 8), ("q", 7), ("q", 8)].into_iter().enumerate() {
        let taken = world.scheduler.recv_request().await;
        assert_eq!((taken.prompt().as_str(), taken.request.sampling.seed), (prompt, seed));
        taken.send_text(&index.to_string());
        taken.finish(Finish::Length);
    }
    let answer = client.answer().await.json();
    let choices = answer["choices"].as_array().unwrap();
    let choices: Vec<_> =
        choices.iter().map(|c| (c["index"].as_u64().unwrap(), c["text"].as_str().unwrap())).collect();
    assert_eq!(choices, [(0, "0"), (1, "1"), (2, "2"), (3, "3")]);
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6});
    assert_eq!(answer["usage"], usage, "each prompt counts once");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_counts_prompt_once() {
    let world = Harness::start(HarnessConfig::default()).await;
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"prompt": "abc", "n": 2, "stream": true, "stream_options": options});
    let mut client = world.start_post("/v1/completions", &body).await;
    let both = [world.scheduler.recv_request().await, world.scheduler.recv_request().await];
    for taken in &both {
        taken.send_text("x");
        taken.finish(Finish::Length);
    }
    let answer = client.answer().await;
    let events = events(&answer.body);
    let usage = |completion: u32| json!({"prompt_tokens": 3, "completion_tokens": completion, "total_tokens": 3 + completion});
    let of_tokens = events.iter().filter(|event| event["choices"][0]["text"] == "x");
    assert!(of_tokens.map(|event| &event["usage"]).eq([&usage(1); 2]), "{events:?}");
    assert_eq!(events.last().map(|event| &event["usage"]), Some(&usage(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_choice_does_not_block_running_choice() {
    let world = Harness::start(HarnessConfig::default()).await;
    let mut client =
        world.start_post("/v1/completions", &json!({"prompt": "p", "n": 2, "stream": true})).await;
    let (first, second) = (world.scheduler.recv_request().await, world.scheduler.recv_request().await);
    second.send_text("b");
    assert_eq!(client.head().await.status, 200);
    assert_eq!(chunk(&client.next_event().await, "text_completion", "cmpl-")["choices"][0]["index"], 1);
    second.finish(Finish::Length);
    first.send_text("a");
    first.finish(Finish::Length);
    let events = client.events().await;
    assert_eq!(events.iter().filter(|(_, e)| e.contains("\"finish_reason\":\"length\"")).count(), 2);
    assert_eq!(events.last().map(|(_, e)| e.as_str()), Some("[DONE]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_are_written_whole() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"prompt": "p", "stream": true, "stream_options": {"include_usage": true}});
    let mut client = world.start_post("/v1/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    taken.send_text("é€");
    // The response ends inside a character, which is not shown.
    taken.token(0xf0);
    taken.finish(Finish::Length);
    assert_eq!(client.head().await.status, 200);
    let events = client.events().await;
    let text =
        |e: &str| serde_json::from_str::<Value>(e).ok()?["choices"][0]["text"].as_str().map(str::to_owned);
    let shown: String = events.iter().filter_map(|(_, e)| text(e)).collect();
    assert_eq!(shown, "é€");
    assert!(events[events.len() - 2].1.contains("\"completion_tokens\":6"), "{events:?}");
}

/// Returns the JSON of each event of a stream.
fn events(body: &str) -> Vec<Value> {
    let event = |text: &str| serde_json::from_str(text.strip_prefix("data: ")?).ok();
    body.split("\n\n").filter_map(event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_string_across_tokens_is_hidden_and_ends_request() {
    for stream in [true, false] {
        let world = Harness::start(HarnessConfig::default()).await;
        let body = json!({"prompt": "p", "stream": stream, "stop": ["</s>", "nope"], "max_tokens": 100});
        let mut client = world.start_post("/v1/completions", &body).await;
        let taken = world.scheduler.recv_request().await;
        taken.send_text("ab<c</");
        // The request is not cancelled before the stop string is complete.
        assert_eq!(world.scheduler.cancelled(std::time::Duration::from_millis(50)).await, None);
        taken.send_text("s>more");
        assert_eq!(world.scheduler.cancelled(super::client::TIMEOUT).await, Some(taken.request.id));
        assert_eq!(shown(&client.answer().await, stream), ("ab<c".into(), json!("stop")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_stop_applies_with_ignore_eos() {
    let world = Harness::start(HarnessConfig::default()).await;
    for (ignore, ends) in [(false, vec![END, 122]), (true, vec![122])] {
        let body = json!({"prompt": "p", "stop_token_ids": [122], "ignore_eos": ignore});
        let mut client = world.start_post("/v1/completions", &body).await;
        let taken = world.scheduler.recv_request().await;
        let sampling = &taken.request.sampling;
        assert_eq!((&sampling.stop_tokens, sampling.ignore_stop), (&ends, false));
        taken.send_text("az");
        taken.finish(Finish::Stop);
        let answer = client.answer().await.json();
        assert_eq!(answer["choices"][0]["text"], "a", "what ends the answer is not shown");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn min_tokens_suppresses_eos() {
    let world = Harness::start(HarnessConfig::default()).await;
    for (min_tokens, barred) in [(2, vec![END]), (0, vec![])] {
        let body = json!({"prompt": "p", "ignore_eos": true, "min_tokens": min_tokens, "skip_special_tokens": false});
        let mut client = world.start_post("/v1/completions", &body).await;
        let taken = world.scheduler.recv_request().await;
        let sampling = &taken.request.sampling;
        assert_eq!((sampling.min_tokens, &sampling.stop_tokens), (min_tokens, &barred));
        assert!(sampling.ignore_stop || barred.is_empty(), "it ends nothing");
        taken.send_text("ab");
        taken.token(END);
        taken.send_text("c");
        taken.finish(Finish::Length);
        assert_eq!(shown(&client.answer().await, false), ("ab<end>c".into(), json!("length")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn min_tokens_hold_back_stop_strings() {
    for stream in [false, true] {
        let world = Harness::start(HarnessConfig::default()).await;
        let body = json!({"prompt": "p", "stop": ["z"], "min_tokens": 3, "stream": stream});
        let mut client = world.start_post("/v1/completions", &body).await;
        let taken = world.scheduler.recv_request().await;
        taken.send_text("azb");
        taken.send_text("czd");
        assert_eq!(world.scheduler.cancelled(super::client::TIMEOUT).await, Some(taken.request.id));
        assert_eq!(shown(&client.answer().await, stream), ("azbc".into(), json!("stop")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn logprobs_match_endpoint_shape() {
    let world = Harness::start(HarnessConfig::default()).await;
    let logprobs = || Some(TokenLogprobs { chosen: -0.5, top: vec![(97, -0.5), (98, -2.0)] });
    let say = |taken: &super::harness::ReceivedRequest| {
        for token in [97, 0xc3] {
            taken.update(RequestUpdate::Token { token, logprobs: logprobs(), at: std::time::Instant::now() });
        }
        taken.finish(Finish::Length);
    };
    let mut client = world.start_post("/v1/completions", &json!({"prompt": "p", "logprobs": 2})).await;
    let taken = world.scheduler.recv_request().await;
    assert_eq!(taken.request.sampling.logprobs, Some(2));
    say(&taken);
    let found = client.answer().await.json()["choices"][0]["logprobs"].clone();
    // OpenAI's reference: the chosen token is always included, even if it is not one of the most likely.
    let top = [json!({"a": -0.5, "b": -2.0}), json!({"bytes:\\xc3": -0.5, "a": -0.5, "b": -2.0})];
    assert_eq!(
        found,
        json!({"tokens": ["a", "bytes:\\xc3"], "token_logprobs": [-0.5, -0.5], "top_logprobs": top,
        "text_offset": [0, 1]})
    );

    let body = json!({"messages": [{"role": "user", "content": "x"}], "logprobs": true, "top_logprobs": 2});
    let mut client = world.start_post("/v1/chat/completions", &body).await;
    say(&world.scheduler.recv_request().await);
    let found = client.answer().await.json()["choices"][0]["logprobs"]["content"].clone();
    let a = json!({"token": "a", "logprob": -0.5, "bytes": [97]});
    assert_eq!(found[0]["top_logprobs"], json!([a, {"token": "b", "logprob": -2.0, "bytes": [98]}]));
    assert_eq!((&found[0]["token"], &found[0]["bytes"]), (&json!("a"), &json!([97])));
    assert_eq!((&found[1]["token"], &found[1]["bytes"]), (&json!("\\xc3"), &json!([0xc3])));
}

#[tokio::test(flavor = "multi_thread")]
async fn models_are_listed_under_all_served_names() {
    let world = Harness::start(HarnessConfig::default()).await;
    let list = world.get("/v1/models").await.json();
    assert_eq!((&list["object"], list["data"].as_array().map(Vec::len)), (&json!("list"), Some(2)));
    assert_eq!(list["data"][0]["max_model_len"], 1000);
    assert_eq!(world.get("/v1/models/org/tiny").await.json()["id"], "org/tiny");
    world.get("/v1/models/other").await.error(
        404,
        "invalid_request_error",
        Some("model"),
        Some("model_not_found"),
    );
}
