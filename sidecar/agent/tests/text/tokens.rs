//! Tests of tokenizers: training settings in the file that must have no effect, and the exact bytes of tokens. Expected
//! ids and texts are those of transformers 5.24.

use serde_json::{Value, json};
use sluice_agent::model::text::Text;

use super::folders::{DecoderKind, ModelFolder, added, open, tokenizer};

pub const PROMPT: &str = "Once upon a time <x>, a é🎉";
/// Tokens of [`PROMPT`] in [`DecoderKind::Pieces`].
const IDS: [u32; 16] = [1, 267, 274, 276, 283, 259, 287, 123, 288, 286, 276, 285, 243, 162, 145, 140];
/// Tokens of [`PROMPT`] if `<x>` is a token.
const WITH_X: [u32; 15] = [1, 267, 274, 276, 283, 259, 289, 259, 286, 276, 285, 243, 162, 145, 140];

pub fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut tokenizer = tokenizer(DecoderKind::Pieces);
    change(&mut tokenizer);
    tokenizer
}

/// Returns the tokenizer with `<x>` as an added token, special or not.
pub fn with_x(special: bool) -> Value {
    with(|file| {
        let mut x = added(file, "<x>");
        x["special"] = json!(special);
        file["added_tokens"].as_array_mut().expect("a list").push(x);
    })
}

pub fn shown(text: &Text, ids: &[u32]) -> String {
    text.tokenizer().decode(ids, true).expect("text")
}

#[test]
fn settings_of_a_training_run_change_no_prompt() {
    let padding = |strategy: Value, multiple: Value| {
        json!({"strategy": strategy, "direction": "Right", "pad_to_multiple_of": multiple, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<unk>"})
    };
    let cut = |direction: &str, most: u32| json!({"direction": direction, "max_length": most, "strategy": "LongestFirst", "stride": 0});
    let files = [
        ("as it is", with(|_| {})),
        ("cut at the right", with(|file| file["truncation"] = cut("Right", 4))),
        ("cut at the left", with(|file| file["truncation"] = cut("Left", 4))),
        ("cut to nothing", with(|file| file["truncation"] = cut("Right", 1))),
        ("filled up", with(|file| file["padding"] = padding(json!({"Fixed": 64}), Value::Null))),
        ("filled up in steps", with(|file| file["padding"] = padding(json!("BatchLongest"), json!(32)))),
        ("merges left out", with(|file| file["model"]["dropout"] = json!(1.0))),
    ];
    let wrong = files.iter().filter_map(|(name, file)| {
        let ids = open(file, &json!({})).text.encode(PROMPT).unwrap();
        (ids != IDS).then_some((*name, ids))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), []);
}

#[test]
fn added_tokens_follow_configuration() {
    let like = |special: bool, strip: bool| {
        json!({"289": {"content": "<x>", "single_word": false, "lstrip": strip, "rstrip": strip, "normalized": false,
            "special": special}})
    };
    let stripped = [&WITH_X[..5], &WITH_X[6..]].concat();
    let (hidden, visible) = ("Once upon a time  , a é🎉", "Once upon a time <x> , a é🎉");
    let cases = [
        (with_x(false), json!({}), &WITH_X[..], visible),
        (with_x(true), json!({}), &WITH_X[..], hidden),
        (with_x(false), json!({"eos_token": "<x>"}), &WITH_X[..], hidden),
        (
            with_x(false),
            json!({"pad_token": {"content": "<x>", "__type": "AddedToken"}}),
            &WITH_X[..],
            hidden,
        ),
        (
            with_x(false),
            json!({"added_tokens_decoder": like(false, true)}),
            &stripped[..],
            "Once upon a time<x> , a é🎉",
        ),
        (with(|_| {}), json!({"added_tokens_decoder": like(true, false)}), &WITH_X[..], hidden),
        (with_x(true), json!({"split_special_tokens": true}), &IDS[..], "Once upon a time <x>, a é🎉"),
        (with(|_| {}), json!({"eos_token": "▁time"}), &IDS[..], "Once upon a <x>, a é🎉"),
    ];
    let wrong = cases.into_iter().filter_map(|(file, settings, ids, text)| {
        let folder = open(&file, &settings);
        let found = folder.text.encode(PROMPT).unwrap();
        let shown = shown(&folder.text, &found);
        ((&found[..], shown.as_str()) != (ids, text)).then_some((settings, found, shown))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), []);
}

#[test]
fn token_ids_stay_within_vocabulary() {
    let elsewhere = json!({"added_tokens_decoder": {"400": {"content": "<x>"}}});
    for settings in [json!({"eos_token": "<x>"}), elsewhere] {
        let folder = open(&tokenizer(DecoderKind::Pieces), &settings);
        assert_eq!(folder.text.encode(PROMPT).unwrap(), IDS, "{settings}");
    }
}

fn id(folder: &ModelFolder, token: &str) -> u32 {
    folder.text.tokenizer().token_to_id(token).unwrap_or_else(|| panic!("{token} is a token"))
}

#[test]
fn every_byte_has_a_token() {
    for kind in [DecoderKind::Pieces, DecoderKind::ByteLevel] {
        let folder = open(&tokenizer(kind), &json!({}));
        for byte in 0..=u8::MAX {
            assert_eq!(folder.text.bytes_of(3 + u32::from(byte)), Some(vec![byte]), "{kind:?}");
        }
        assert_eq!(folder.text.bytes_of(2), Some(b"</s>".to_vec()), "{kind:?}");
        assert_eq!(folder.text.bytes_of(400), None, "{kind:?}");
    }
    for (kind, token, bytes) in [
        (DecoderKind::Pieces, "▁Once", " Once"),
        (DecoderKind::Pieces, "▁", " "),
        (DecoderKind::Pieces, "▁é", " é"),
        (DecoderKind::Metaspace, "▁Once", " Once"),
        (DecoderKind::Metaspace, "▁", " "),
        (DecoderKind::Metaspace, ",", ","),
        (DecoderKind::ByteLevel, "ĠOnce", " Once"),
        (DecoderKind::ByteLevel, "ĠÃ©", " é"),
        (DecoderKind::None, ",", " ,"),
    ] {
        let folder = open(&tokenizer(kind), &json!({}));
        let id = id(&folder, token);
        assert_eq!(folder.text.bytes_of(id), Some(bytes.as_bytes().to_vec()), "{kind:?} {token}");
    }
    let level = open(&tokenizer(DecoderKind::ByteLevel), &json!({}));
    assert_eq!(level.text.bytes_of(id(&level, "ĠÃ")), Some(b" \xc3".to_vec()), "a space and the half of é");
}
