//! Tests of chat templates: rendered as by transformers, and a model whose template does not parse.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use sluice_agent::model::text::ChatMessage;

use super::folders::{DecoderKind, ModelFolder, open, tokenizer, write};

/// A template and the result of transformers 5.24; `None` = an error.
#[derive(Deserialize)]
struct Case<'a> {
    name: String,
    template: String,
    #[serde(borrow)]
    messages: &'a RawValue,
    rendered: Option<String>,
}

fn with_template(template: &str) -> ModelFolder {
    let settings = json!({"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"});
    open(&tokenizer(DecoderKind::Pieces), &settings)
}

fn messages(json: &str) -> Vec<ChatMessage> {
    serde_json::from_str(json).expect("messages")
}

#[test]
fn templates_are_rendered_as_transformers_does() {
    let cases: Vec<Case<'_>> = serde_json::from_str(include_str!("templates.json")).expect("a table");
    assert!(cases.len() >= 20);
    let wrong = cases.iter().filter_map(|case| {
        let rendered = with_template(&case.template).text.render(&messages(case.messages.get()), true);
        let right = rendered.as_ref().ok() == case.rendered.as_ref();
        (!right).then(|| format!("{}:\n{rendered:?}\n{:?}\n", case.name, case.rendered))
    });
    assert_eq!(wrong.collect::<String>(), "");
}

#[test]
fn generation_prompt_is_added_on_request() {
    let folder = with_template("{{ messages[0].content }}{% if add_generation_prompt %} A:{% endif %}");
    let chat = messages(r#"[{"role": "user", "content": "x"}]"#);
    let rendered = |add| folder.text.render(&chat, add).expect("a prompt");
    assert_eq!((rendered(true).as_str(), rendered(false).as_str()), ("x A:", "x"));
}

#[test]
fn string_concatenating_template_accepts_missing_content() {
    // SmolLM2's template; transformers fails, vLLM uses an empty text.
    let folder =
        with_template("{% for m in messages %}{{ m['role'] + '=' + m['content'] + ';' }}{% endfor %}");
    let call = r#""tool_calls": [{"function": {"name": "f", "arguments": {}}}]"#;
    for content in ["", r#""content": null,"#, r#""content": "","#] {
        let json =
            format!(r#"[{{"role": "assistant", {content} {call}}}, {{"role": "user", "content": "x"}}]"#);
        assert_eq!(folder.text.render(&messages(&json), true).as_deref(), Ok("assistant=;user=x;"), "{json}");
    }
    // A template that tests for missing content gets none.
    let folder = with_template("{{ 'call' if messages[0].content is none else 'text' }}");
    let chat = messages(&format!(r#"[{{"role": "assistant", "content": null, {call}}}]"#));
    assert_eq!(folder.text.render(&chat, true).as_deref(), Ok("call"));
}

#[test]
fn invalid_template_refuses_only_chats() {
    let chat = messages(r#"[{"role": "user", "content": "x"}]"#);
    for (template, problem) in [
        (json!("{% for m in messages %}"), "tokenizer_config.json: chat_template: syntax error: "),
        (json!("{% nonsense %}"), "unknown statement nonsense"),
        (
            json!({"default": "x"}),
            "tokenizer_config.json: chat_template: must be a string or a list of named templates",
        ),
    ] {
        let folder = open(&tokenizer(DecoderKind::Pieces), &json!({"chat_template": template}));
        let message = folder.text.render(&chat, true).expect_err("refused");
        assert!(
            message.contains(problem) && message.contains("the chat template cannot be used"),
            "{message}"
        );
        assert!(folder.text.encode("Once").is_ok());
    }
    let none =
        open(&tokenizer(DecoderKind::Pieces), &json!({"chat_template": [{"name": "rag", "template": "x"}]}));
    assert!(none.text.render(&chat, true).expect_err("refused").contains("has no chat template"));
}

#[test]
fn non_text_template_refuses_chats() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &tokenizer(DecoderKind::Pieces), &json!({"chat_template": "good"}));
    std::fs::write(folder.path().join("chat_template.jinja"), b"\xff").expect("a file");
    let text = sluice_agent::model::text::Text::open(folder.path()).expect("the model is served");
    let message = text.render(&messages(r#"[{"role": "user"}]"#), true).expect_err("refused");
    assert!(message.contains("chat_template.jinja: invalid utf-8"), "{message}");
}
