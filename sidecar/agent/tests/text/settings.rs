//! Tests of the precedence of `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`. Expected ids,
//! texts and prompts are those of transformers 5.24.

use serde_json::{Value, json};
use sluice_agent::model::text::ChatMessage;

use super::folders::open_with;
use super::tokens::{PROMPT, shown, with, with_x};

/// Renders some of the named tokens.
const TEMPLATE: &str = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ image_token }}";

/// Result of one folder for [`PROMPT`]: its tokens, their text without special ones, and [`TEMPLATE`].
type Observed = (Vec<u32>, String, String);

#[derive(Clone)]
struct Case {
    name: &'static str,
    /// Whether `tokenizer.json` has `<x>` as an added token that is not special.
    x: bool,
    config: Value,
    /// `special_tokens_map.json`.
    map: Option<Value>,
    /// `added_tokens.json`.
    added: Option<Value>,
    found: (&'static [u32], &'static str, &'static str),
}

fn found(case: &Case) -> Observed {
    let tokenizer = if case.x { with_x(false) } else { with(|_| {}) };
    let mut config = case.config.clone();
    config["chat_template"] = json!(TEMPLATE);
    let older = [("special_tokens_map.json", &case.map), ("added_tokens.json", &case.added)];
    let files: Vec<_> = older.iter().filter_map(|(name, file)| Some((*name, file.as_ref()?))).collect();
    let folder = open_with(&tokenizer, &config, &files);
    let ids = folder.text.encode(PROMPT).expect("tokens");
    let chat: Vec<ChatMessage> =
        serde_json::from_str(r#"[{"role": "user", "content": "x"}]"#).expect("a message");
    let prompt = folder.text.render(&chat, true).expect("a prompt");
    (ids.clone(), shown(&folder.text, &ids), prompt)
}

/// `<x>` is a token.
const ADDED: &[u32] = &[1, 267, 274, 276, 283, 259, 289, 259, 286, 276, 285, 243, 162, 145, 140];
/// `<x>` is a token that matches normalized text.
const NORMAL: &[u32] = &[1, 267, 274, 276, 283, 289, 286, 276, 285, 243, 162, 145, 140];
/// `,` is a special token.
const COMMA: &[u32] = &[1, 267, 274, 276, 283, 259, 287, 123, 288, 286, 259, 276, 285, 243, 162, 145, 140];
/// `<` is a special token.
const LESS: &[u32] = &[1, 267, 274, 276, 283, 259, 287, 259, 123, 288, 286, 276, 285, 243, 162, 145, 140];
/// No token is added.
const PLAIN: &[u32] = &[1, 267, 274, 276, 283, 259, 287, 123, 288, 286, 276, 285, 243, 162, 145, 140];

const SHOWN: &str = "Once upon a time <x> , a é🎉";
const HIDDEN: &str = "Once upon a time  , a é🎉";
const NO_COMMA: &str = "Once upon a time <x>  a é🎉";

fn token(content: &str, strip: bool) -> Value {
    json!({"content": content, "lstrip": strip, "rstrip": strip, "normalized": false, "single_word": false})
}

fn case(
    name: &'static str,
    x: bool,
    config: Value,
    map: Option<Value>,
    added: Option<Value>,
    found: (&'static [u32], &'static str, &'static str),
) -> Case {
    Case { name, x, config, map, added, found }
}

/// Returns cases of which file names a token.
fn names() -> Vec<Case> {
    vec![
        case(
            "named by the older file",
            true,
            json!({}),
            Some(json!({"eos_token": "<x>"})),
            None,
            (ADDED, HIDDEN, "|<x>||"),
        ),
        case(
            "the older file counts before the newer",
            true,
            json!({"eos_token": "</s>"}),
            Some(json!({"eos_token": "<x>", "pad_token": token("<unk>", false)})),
            None,
            (ADDED, HIDDEN, "|<x>|<unk>|"),
        ),
        case(
            "it can take a name away",
            true,
            json!({"eos_token": "<x>"}),
            Some(json!({"eos_token": null})),
            None,
            (ADDED, SHOWN, "|||"),
        ),
        case(
            "neither is read where the newer lists the added tokens",
            true,
            json!({"eos_token": "</s>", "added_tokens_decoder": {"289": {"content": "<x>", "special": false}}}),
            Some(json!({"eos_token": "<x>"})),
            Some(json!({"<y>": 290})),
            (NORMAL, "Once upon a time <x>, a é🎉", "|</s>||"),
        ),
    ]
}

/// Returns cases of special tokens that no other file adds.
fn extra() -> Vec<Case> {
    vec![
        case(
            "more special tokens",
            false,
            json!({}),
            Some(json!({"additional_special_tokens": ["<"]})),
            None,
            (LESS, "Once upon a time  x>, a é🎉", "|||"),
        ),
        case(
            "one that is added already stays as it is",
            true,
            json!({}),
            Some(json!({"additional_special_tokens": ["<x>"]})),
            None,
            (ADDED, SHOWN, "|||"),
        ),
        case(
            "a list takes the place of the newer one",
            false,
            json!({"additional_special_tokens": [","]}),
            Some(json!({"additional_special_tokens": ["<"]})),
            None,
            (LESS, "Once upon a time  x>, a é🎉", "|||"),
        ),
        case(
            "lists of the newer name are joined",
            false,
            json!({"extra_special_tokens": [","]}),
            Some(json!({"extra_special_tokens": ["<"]})),
            None,
            (
                &[1, 267, 274, 276, 283, 259, 287, 259, 123, 288, 286, 259, 276, 285, 243, 162, 145, 140],
                "Once upon a time  x>  a é🎉",
                "|||",
            ),
        ),
        case(
            "names of the model in a dictionary",
            false,
            json!({"extra_special_tokens": {"image_token": ","}}),
            None,
            None,
            (COMMA, NO_COMMA, "|||,"),
        ),
        case(
            "a name of the model",
            false,
            json!({"image_token": ","}),
            None,
            None,
            (COMMA, NO_COMMA, "|||,"),
        ),
        case(
            "no name",
            false,
            json!({"image": ","}),
            None,
            None,
            (PLAIN, "Once upon a time <x>, a é🎉", "|||"),
        ),
        case(
            "a named token that covers the blanks next to it",
            false,
            json!({}),
            Some(json!({"eos_token": token(",", true)})),
            None,
            (PLAIN, "Once upon a time <x> a é🎉", "|,||"),
        ),
    ]
}

/// Returns cases of tokens in `added_tokens.json`.
fn listed() -> Vec<Case> {
    let listed = || Some(json!({"<x>": 289}));
    vec![
        case("listed", false, json!({}), None, listed(), (NORMAL, "Once upon a time <x>, a é🎉", "|||")),
        case(
            "listed and named",
            false,
            json!({"eos_token": "<x>"}),
            None,
            listed(),
            (ADDED, HIDDEN, "|<x>||"),
        ),
        case(
            "listed and special",
            false,
            json!({"extra_special_tokens": ["<x>"]}),
            None,
            listed(),
            (ADDED, HIDDEN, "|||"),
        ),
        case(
            "listed, and described by tokenizer.json",
            true,
            json!({}),
            None,
            listed(),
            (ADDED, SHOWN, "|||"),
        ),
        case(
            "listed, of the vocabulary",
            false,
            json!({}),
            None,
            Some(json!({"▁a": 276})),
            (PLAIN, "Once upon  a time <x>,  a é🎉", "|||"),
        ),
    ]
}

#[test]
fn the_older_files_count_as_in_transformers() {
    let cases = [names(), extra(), listed()].concat();
    let wrong: Vec<_> = cases
        .iter()
        .filter_map(|case| {
            let (ids, text, prompt) = found(case);
            let right = (&ids[..], text.as_str(), prompt.as_str()) == case.found;
            (!right).then(|| format!("{}: {ids:?} {text:?} {prompt:?}, not {:?}", case.name, case.found))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_older_file_that_is_no_json_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    super::folders::write(folder.path(), &with(|_| {}), &json!({}));
    for name in ["special_tokens_map.json", "added_tokens.json"] {
        let path = folder.path().join(name);
        std::fs::write(&path, "[").expect("the folder can be written");
        let error = sluice_agent::model::text::Text::open(folder.path()).expect_err("refused").to_string();
        assert!(error.contains(name), "{error}");
        std::fs::remove_file(path).expect("it is there");
    }
}
