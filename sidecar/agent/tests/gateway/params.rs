//! Tests of parameters: which are accepted, which are refused, and the name in the error.

use serde_json::{Value, json};
use sluice_scheduler::Finish;

use super::harness::{Harness, HarnessConfig};

const INVALID: &str = "invalid_request_error";

fn completion(name: &str, value: &Value) -> Value {
    let mut body = json!({"prompt": "p"});
    body[name] = value.clone();
    body
}

fn chat(name: &str, value: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
    body[name] = value.clone();
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_params_are_refused_by_name() {
    let world = Harness::start(HarnessConfig::default()).await;
    let unsupported = [
        ("best_of", json!(2)),
        ("echo", json!(true)),
        ("use_beam_search", json!(true)),
        ("include_stop_str_in_output", json!(true)),
        ("store", json!(true)),
        ("continue_final_message", json!(true)),
        ("suffix", json!("x")),
        ("response_format", json!({"type": "json_object"})),
        ("tools", json!([{"type": "function"}])),
        ("functions", json!([{"name": "f"}])),
        ("tool_choice", json!("required")),
        ("function_call", json!({"name": "f"})),
        ("modalities", json!(["audio"])),
        ("metadata", json!({"a": "b"})),
        ("chat_template_kwargs", json!({"a": 1})),
        ("service_tier", json!("flex")),
        ("length_penalty", json!(0.5)),
        ("audio", json!({})),
        ("prediction", json!({})),
        ("reasoning_effort", json!("low")),
        ("web_search_options", json!({})),
        ("verbosity", json!("low")),
        ("guided_json", json!({})),
        ("guided_regex", json!("a")),
        ("guided_choice", json!(["a"])),
        ("guided_grammar", json!("a")),
        ("structured_outputs", json!({})),
        ("prompt_logprobs", json!(1)),
        ("truncate_prompt_tokens", json!(1)),
        ("chat_template", json!("x")),
        ("documents", json!([])),
    ];
    for (name, value) in unsupported {
        for (path, body) in
            [("/v1/completions", completion(name, &value)), ("/v1/chat/completions", chat(name, &value))]
        {
            let answer = world.post(path, &body).await;
            let message = answer.error(400, INVALID, Some(name), Some("unsupported_parameter"));
            assert!(message.contains(name), "{message}");
        }
    }
    let both = json!({"prompt": "p", "max_tokens": 3, "max_completion_tokens": 4});
    world.post("/v1/completions", &both).await.error(400, INVALID, Some("max_tokens"), None);
    // A completion has no generation prompt.
    for value in [true, false] {
        let body = completion("add_generation_prompt", &json!(value));
        world.post("/v1/completions", &body).await.error(400, INVALID, Some("add_generation_prompt"), None);
    }
    let answer = world.post("/v1/completions", &completion("tempreature", &json!(1))).await;
    assert!(answer.error(400, INVALID, Some("tempreature"), None).contains("is not a parameter"));
    assert!(world.scheduler.next(std::time::Duration::ZERO).await.is_none(), "nothing reached the scheduler");
}

#[tokio::test(flavor = "multi_thread")]
async fn noop_values_are_accepted() {
    let mut world = Harness::start(HarnessConfig::default()).await;
    world.answer_all("ok");
    let body = json!({"messages": [{"role": "user", "content": "x"}], "best_of": 1, "echo": false, "suffix": "",
        "response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "parallel_tool_calls": true,
        "modalities": ["text"], "metadata": {}, "service_tier": "auto", "length_penalty": 1.0, "guided_json": null,
        "logit_bias": {}, "user": "me", "n": 1, "store": false, "made_up": null});
    let answer = world.post("/v1/chat/completions", &body).await;
    assert_eq!((answer.head.status, &answer.json()["choices"][0]["message"]["content"]), (200, &json!("ok")));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_out_of_range_are_refused_by_name() {
    let world = Harness::start(HarnessConfig::default()).await;
    let wrong = [
        ("temperature", json!(2.1)),
        ("temperature", json!("hot")),
        ("temperature", json!(1e39)),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("min_p", json!(-0.1)),
        ("presence_penalty", json!(3)),
        ("frequency_penalty", json!(-3)),
        ("repetition_penalty", json!(0)),
        ("logit_bias", json!({"a": 1})),
        ("logit_bias", json!({"257": 1})),
        ("logit_bias", json!({"1": 101})),
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("min_tokens", json!(17)),
        ("n", json!(0)),
        ("n", json!(9)),
        ("stop", json!([""])),
        ("stop", json!(5)),
        ("stop_token_ids", json!([257])),
        ("stream", json!("yes")),
        ("stream_options", json!({"include_usage": true})),
        ("seed", json!(1.5)),
        ("logprobs", json!(21)),
        ("spaces_between_special_tokens", json!("no")),
        ("prompt", json!("")),
        ("prompt", json!([])),
        ("prompt", json!([257])),
        ("prompt", json!({"a": 1})),
    ];
    for (name, value) in wrong {
        let answer = world.post("/v1/completions", &completion(name, &value)).await;
        answer.error(400, INVALID, Some(name), None);
    }
    let answer = world.post("/v1/completions", &json!({"max_tokens": 1})).await;
    assert!(answer.error(400, INVALID, Some("prompt"), None).contains("missing"));
    for messages in [
        json!([]),
        json!([{"content": "x"}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": 1}]),
        json!([{"role": "user", "content": null}]),
        json!([{"role": "user", "tool_calls": [{"id": "a"}]}]),
        json!([{"role": "assistant"}]),
        json!([{"role": "assistant", "content": null, "tool_calls": []}]),
        json!([{"role": "assistant", "content": null, "tool_calls": "a"}]),
        json!([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]),
        json!([{"role": "user", "content": [{"type": "image_url"}]}]),
        json!("x"),
    ] {
        let answer = world.post("/v1/chat/completions", &chat("messages", &messages)).await;
        answer.error(400, INVALID, Some("messages"), None);
    }
    let answer = world.post("/v1/chat/completions", &chat("top_logprobs", &json!(3))).await;
    answer.error(400, INVALID, Some("top_logprobs"), None);
    assert!(world.scheduler.next(std::time::Duration::ZERO).await.is_none(), "nothing reached the scheduler");
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_params_reach_scheduler() {
    let world = Harness::start(HarnessConfig::default()).await;
    let body = json!({"prompt": [1, 2, 3], "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.25,
        "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.5, "logit_bias": {"5": -2}, "seed": -1,
        "min_tokens": 2, "max_completion_tokens": 9, "priority": 3, "cache_salt": "s", "ignore_eos": true,
        "stop_token_ids": [11]});
    let _client = world.start_post("/v1/completions", &body).await;
    let taken = world.scheduler.recv_request().await;
    let sampling = &taken.request.sampling;
    assert_eq!(
        (taken.request.prompt.as_slice(), taken.request.max_tokens, taken.request.priority),
        ([1, 2, 3].as_slice(), 9, 3)
    );
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (0.5, 0.9, 7, 0.25));
    assert_eq!(
        (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty),
        (1.0, -1.0, 1.5)
    );
    assert_eq!(
        (sampling.logit_bias.as_slice(), sampling.seed, sampling.min_tokens),
        ([(5, -2.0)].as_slice(), u64::MAX, 2)
    );
    assert_eq!((sampling.stop_tokens.as_slice(), sampling.ignore_stop), ([11].as_slice(), false));
    let _other = world.start_post("/v1/completions", &json!({"prompt": "p", "cache_salt": "t"})).await;
    let other = world.scheduler.recv_request().await;
    assert_ne!(other.request.salt, taken.request.salt, "salts keep prefixes apart");
    other.finish(Finish::Length);
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_model_is_404() {
    let world = Harness::start(HarnessConfig::default()).await;
    let answer = world.post("/v1/completions", &json!({"prompt": "p", "model": "gpt"})).await;
    answer.error(404, INVALID, Some("model"), Some("model_not_found"));
    world.get("/v2/x").await.error(404, INVALID, None, None);
    world.get("/v1/completions").await.error(405, INVALID, None, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_type_is_415() {
    let world = Harness::start(HarnessConfig::default()).await;
    for headers in [&[("content-type", "text/plain")][..], &[]] {
        let mut client = world.client().await;
        client.send("POST", "/v1/completions", headers, br#"{"prompt": "p"}"#).await;
        client.answer().await.error(415, INVALID, None, None);
    }
}
