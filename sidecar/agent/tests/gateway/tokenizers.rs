//! Random tokenizers and chat templates, as model folders hold them.

use std::path::Path;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::tiny::name_of;

/// A tokenizer and a template.
#[derive(Clone, Debug)]
pub struct Folder {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// The chat template.
    pub template: String,
    /// Contents of the added tokens.
    pub added: Vec<String>,
}

impl Folder {
    /// Writes it beside whatever is in `folder`.
    pub fn write(&self, folder: &Path) {
        let write = |name: &str, value: &Value| {
            std::fs::write(folder.join(name), value.to_string()).expect("the folder can be written");
        };
        write("tokenizer.json", &self.tokenizer);
        write("tokenizer_config.json", &json!({"chat_template": self.template}));
    }
}

/// How the model sees a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// Bytes by GPT-2's names.
    Bytes,
    /// Characters, and bytes of those that have no token.
    Fallback,
    /// Characters; a run of others is one unknown token.
    Unknown,
    /// Words; others are unknown.
    Words,
}

fn base(sort: Sort) -> Vec<String> {
    match sort {
        Sort::Bytes => (0..=255_u8).map(|byte| name_of(byte).to_string()).collect(),
        Sort::Fallback => {
            let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
            ["<unk>"]
                .map(str::to_owned)
                .into_iter()
                .chain(bytes)
                .chain(["a", "b", "c", "▁"].map(str::to_owned))
                .collect()
        }
        Sort::Unknown => ["<unk>", "a", "b", "c", "▁"].map(str::to_owned).to_vec(),
        Sort::Words => ["<unk>", "a", "abba", "cab"].map(str::to_owned).to_vec(),
    }
}

/// A model of `sort` with up to `vocab` tokens: merges take pairs of tokens that are there already.
fn model(sort: Sort, picks: &[(u16, u16)], vocab: usize) -> Value {
    let mut tokens = base(sort);
    let (mut merges, joins) = (Vec::new(), tokens.len());
    // Letters and blanks of the texts below, so that merges are used.
    let common: Vec<usize> = match sort {
        Sort::Bytes => [b'a', b'b', b'c', b' '].map(usize::from).to_vec(),
        _ => (joins - 4..joins).collect(),
    };
    for (left, right) in picks.iter().filter(|_| sort != Sort::Words) {
        let all: Vec<usize> = common.iter().copied().chain(joins..tokens.len()).collect();
        let pick = |number: u16| tokens[all[usize::from(number) % all.len()]].clone();
        let (left, right) = (pick(*left), pick(*right));
        let joined = format!("{left}{right}");
        if tokens.len() < vocab && !tokens.contains(&joined) && joined.len() < 200 {
            merges.push(json!([left, right]));
            tokens.push(joined);
        }
    }
    let vocab: Map<String, Value> = tokens.into_iter().enumerate().map(|(id, t)| (t, json!(id))).collect();
    match sort {
        Sort::Words => json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}),
        _ => {
            json!({"type": "BPE", "dropout": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "unk_token": (sort != Sort::Bytes).then_some("<unk>"), "fuse_unk": sort != Sort::Bytes,
            "byte_fallback": sort == Sort::Fallback, "vocab": vocab, "merges": merges})
        }
    }
}

fn normalizer() -> impl Strategy<Value = Vec<Value>> {
    let one = prop_oneof![
        Just(json!({"type": "NFC"})),
        Just(json!({"type": "NFD"})),
        Just(json!({"type": "NFKC"})),
        Just(json!({"type": "NFKD"})),
        Just(json!({"type": "Lowercase"})),
        Just(json!({"type": "Strip", "strip_left": true, "strip_right": true})),
        Just(json!({"type": "StripAccents"})),
        Just(json!({"type": "Replace", "pattern": {"String": "bbbb"}, "content": "a"})),
        Just(json!({"type": "Replace", "pattern": {"String": "c"}, "content": ""})),
        Just(json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "})),
    ];
    vec(one, 0..3)
}

fn splits() -> impl Strategy<Value = Vec<Value>> {
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let split = proptest::sample::select(behaviors.to_vec()).prop_map(
        |behavior| json!({"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": false}),
    );
    let one = prop_oneof![
        split,
        Just(json!({"type": "Digits", "individual_digits": true})),
        Just(json!({"type": "Punctuation", "behavior": "Isolated"})),
        Just(json!({"type": "Whitespace"})),
        Just(json!({"type": "WhitespaceSplit"})),
    ];
    vec(one, 0..2)
}

/// Added tokens: names, and ids of which some lie beyond `vocab`.
fn added(vocab: u32) -> impl Strategy<Value = Vec<Value>> {
    let names =
        proptest::sample::subsequence(vec!["<s>", "<|im_start|>", "<end>", "Ab", "<tool call>"], 0..5);
    (names, vec(any::<[bool; 5]>(), 5)).prop_map(move |(names, flags)| {
        let token =
            |(place, (name, [lstrip, rstrip, normalized, special, beyond])): (usize, (&str, [bool; 5]))| {
                let id = if beyond { vocab + place as u32 } else { vocab - 1 - place as u32 };
                json!({"id": id, "content": name, "single_word": false, "lstrip": lstrip, "rstrip": rstrip,
                "normalized": normalized, "special": special})
            };
        names.into_iter().zip(flags).enumerate().map(token).collect()
    })
}

const TEMPLATES: [&str; 5] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content | trim }}{{ m.content }} {% endfor %}a",
    "{% for m in messages %}{% if 'b' in m.content %}{{ raise_exception('no b') }}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% endfor %}",
];

/// Folders for a model with `vocab` tokens.
pub fn folders(vocab: u32) -> impl Strategy<Value = Folder> {
    let sort = prop_oneof![3 => Just(Sort::Bytes), 3 => Just(Sort::Fallback), 1 => Just(Sort::Unknown), 1 => Just(Sort::Words)];
    let picks = prop_oneof![1 => Just(Vec::new()), 2 => vec(any::<(u16, u16)>(), 0..60)];
    let metaspace = option::of(Just(
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
    ));
    let template = proptest::sample::select(TEMPLATES.to_vec());
    let added = prop_oneof![1 => Just(Vec::new()), 2 => added(vocab)];
    (sort, picks, normalizer(), splits(), metaspace, added, template).prop_map(
        move |(sort, picks, mut normalizers, mut splits, metaspace, added, template)| {
            // Added tokens take the last ids.
            let model = model(sort, &picks, vocab as usize - 5);
            match sort {
                Sort::Bytes => splits.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": false})),
                _ => match metaspace {
                    Some(metaspace) => splits.push(metaspace),
                    None => normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})),
                },
            }
            let decoder = match sort {
                Sort::Bytes => json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
                _ => json!({"type": "Sequence", "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
            };
            let names = added.iter().filter_map(|token| token["content"].as_str().map(str::to_owned)).collect();
            let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
                "normalizer": {"type": "Sequence", "normalizers": normalizers},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
                "post_processor": null, "decoder": decoder, "model": model});
            Folder { tokenizer, template: template.to_owned(), added: names }
        },
    )
}

/// Texts of pieces that such tokenizers join, drop, change or do not know, each repeated.
pub fn texts(added: Vec<String>) -> impl Strategy<Value = String> {
    let known = [
        "a",
        "b",
        "c",
        "abba",
        "ab cab",
        "bbbb",
        " ",
        "\n",
        "\u{3000}",
        "é",
        "e\u{301}",
        "ᾂ",
        "\u{1d400}",
        "\u{212a}",
        "ﷺ",
        "가",
        "\u{1100}\u{1161}\u{11a8}",
        "🎉",
        "Ab",
        "7",
    ];
    let pieces: Vec<String> = known.iter().map(|piece| (*piece).to_owned()).chain(added.clone()).collect();
    let run = (proptest::sample::select(pieces), prop_oneof![4 => 1..4_usize, 1 => 1..200_usize])
        .prop_map(|(piece, times)| piece.repeat(times));
    // Nothing but what a normal form makes shorter.
    let shrinking =
        ["\u{1d400}", "\u{212a}", "e\u{301}", "\u{1100}\u{1161}\u{11a8}", "bbbb"].map(str::to_owned).to_vec();
    let shrinking =
        (proptest::sample::select(shrinking), 1..300_usize).prop_map(|(piece, times)| piece.repeat(times));
    // A token that may cover the blanks beside it.
    let names = if added.is_empty() { vec!["Ab".to_owned()] } else { added };
    let blanks =
        (proptest::sample::select(names), 1..300_usize).prop_map(|(name, times)| name + &" ".repeat(times));
    prop_oneof![4 => vec(run, 0..12).prop_map(|runs| runs.concat()), 2 => shrinking, 1 => blanks]
}
