//! Generators of random tokenizers and chat templates, in the format of model folders.

use std::path::Path;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::tiny::name_of;

/// A tokenizer and a template.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// The chat template.
    pub template: String,
    /// Contents of the added tokens.
    pub added: Vec<String>,
}

impl ModelFolder {
    /// Writes the files into `folder`.
    pub fn write(&self, folder: &Path) {
        let write = |name: &str, value: &Value| {
            std::fs::write(folder.join(name), value.to_string()).expect("the folder can be written");
        };
        write("tokenizer.json", &self.tokenizer);
        write("tokenizer_config.json", &json!({"chat_template": self.template}));
    }
}

/// How the model splits a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelKind {
    /// Bytes, by GPT-2's names.
    Bytes,
    /// Characters; characters without a token become bytes.
    Fallback,
    /// Characters; a run of other characters is one unknown token.
    Unknown,
    /// Words; other words are unknown.
    Words,
    /// Beginnings and ends of words; a word with other parts is unknown.
    WordPieces,
    /// Bytes, by GPT-2's names; some bytes have no token and are dropped.
    SomeBytes,
    /// Characters, in four forms by their position in a word.
    Affixed,
    /// The likeliest pieces; other characters are unknown or become bytes.
    Unigram { fallback: bool },
}

/// Bytes without a token in [`ModelKind::SomeBytes`]: as in SmolLM2, some control bytes and some first bytes of
/// characters, and a letter.
const DROPPED: [u8; 6] = [0x04, 0x13, 0xc0, 0xc3, 0xf0, b'7'];

fn base(sort: ModelKind) -> Vec<String> {
    match sort {
        ModelKind::Bytes => (0..=255_u8).map(|byte| name_of(byte).to_string()).collect(),
        ModelKind::Fallback => {
            let bytes = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>"));
            ["<unk>"]
                .map(str::to_owned)
                .into_iter()
                .chain(bytes)
                .chain(["a", "b", "c", "▁"].map(str::to_owned))
                .collect()
        }
        ModelKind::Unknown => ["<unk>", "a", "b", "c", "▁"].map(str::to_owned).to_vec(),
        ModelKind::Words => ["<unk>", "a", "abba", "cab"].map(str::to_owned).to_vec(),
        ModelKind::WordPieces => {
            ["<unk>", "a", "b", "c", "##a", "##b", "##c", "##bba", "7"].map(str::to_owned).to_vec()
        }
        ModelKind::SomeBytes => {
            let bytes = (0..=255_u8).filter(|byte| !DROPPED.contains(byte));
            bytes.map(|byte| name_of(byte).to_string()).collect()
        }
        ModelKind::Affixed => {
            let ways = |c: &str| [c.to_owned(), format!("##{c}"), format!("{c}</w>"), format!("##{c}</w>")];
            // "b" has a token in some positions only.
            ["<unk>", "b", "##b", "ab", "ab##", "abb</w>", "##b</w>"]
                .map(str::to_owned)
                .into_iter()
                .chain(["a", "c", "▁"].into_iter().flat_map(ways))
                .collect()
        }
        ModelKind::Unigram { fallback: true } => base(ModelKind::Fallback),
        ModelKind::Unigram { fallback: false } => base(ModelKind::Unknown),
    }
}

/// Returns a model of `sort` with up to `vocab` tokens. Each merge joins two existing tokens.
fn model(sort: ModelKind, picks: &[(u16, u16)], fuse: bool, vocab: usize) -> Value {
    let mut tokens = base(sort);
    let (mut merges, joins) = (Vec::new(), tokens.len());
    // Letters and blanks of the texts below, so that merges are used.
    let common: Vec<usize> = match sort {
        ModelKind::Bytes | ModelKind::SomeBytes => {
            let place = |letter: &str| tokens.iter().position(|token| token == letter).expect("a letter");
            ["a", "b", "c", "Ġ"].map(place).to_vec()
        }
        _ => (joins - 4..joins).collect(),
    };
    let joined_by_picks = !matches!(sort, ModelKind::Words | ModelKind::WordPieces | ModelKind::Affixed);
    for (left, right) in picks.iter().filter(|_| joined_by_picks) {
        let all: Vec<usize> = common.iter().copied().chain(joins..tokens.len()).collect();
        let pick = |number: u16| tokens[all[usize::from(number) % all.len()]].clone();
        let (left, right) = (pick(*left), pick(*right));
        let joined = format!("{left}{right}");
        if tokens.len() < vocab && !tokens.contains(&joined) && joined.len() < 200 {
            merges.push(json!([left, right]));
            tokens.push(joined);
        }
    }
    if let ModelKind::Unigram { fallback } = sort {
        // Longer tokens are likelier.
        let score = |token: &String| -8.0 + (token.chars().count() as f64) / 4.0;
        let pieces: Vec<_> = tokens.iter().map(|token| json!([token, score(token)])).collect();
        return json!({"type": "Unigram", "unk_id": 0, "byte_fallback": fallback, "vocab": pieces});
    }
    let affixed = sort == ModelKind::Affixed;
    if affixed {
        merges = vec![json!(["a", "##b"]), json!(["ab", "##b</w>"])];
    }
    let vocab: Map<String, Value> = tokens.into_iter().enumerate().map(|(id, t)| (t, json!(id))).collect();
    let bytes = matches!(sort, ModelKind::Bytes | ModelKind::SomeBytes);
    match sort {
        ModelKind::Words => json!({"type": "WordLevel", "unk_token": "<unk>", "vocab": vocab}),
        ModelKind::WordPieces => {
            json!({"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 20, "vocab": vocab})
        }
        _ => {
            json!({"type": "BPE", "dropout": null, "continuing_subword_prefix": affixed.then_some("##"),
                "end_of_word_suffix": affixed.then_some("</w>"), "unk_token": (!bytes).then_some("<unk>"),
                "fuse_unk": fuse && !bytes, "byte_fallback": sort == ModelKind::Fallback, "vocab": vocab, "merges": merges})
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
        Just(json!({"type": "Replace", "pattern": {"Regex": "\\s{2,}"}, "content": ""})),
        Just(json!({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"})),
        Just(json!({"type": "Prepend", "prepend": "▁"})),
        Just(json!({"type": "Nmt"})),
        any::<[bool; 4]>().prop_map(|[clean, chinese, accents, lower]| {
            json!({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents,
                "lowercase": lower})
        }),
        precompiled(),
        precompiled(),
    ];
    vec(one, 0..3)
}

/// Generates SentencePiece's normalizer, from pairs of text and replacement.
fn precompiled() -> impl Strategy<Value = Value> {
    let entries = [
        ("a", "b"),
        ("c", ""),
        ("A", "a"),
        (" ", "▁"),
        ("\n", " "),
        ("é", "e"),
        ("e\u{301}", "é"),
        ("e\u{301}\u{301}", ""),
        ("\u{301}", ""),
        ("\u{600}", ""),
        ("\u{3000}", " "),
        ("ﷺ", "abba"),
        ("🎉", ""),
        ("가", "\u{1100}\u{1161}"),
        ("7", "\u{301}"),
    ];
    proptest::sample::subsequence(entries.to_vec(), 0..=entries.len()).prop_map(
        |entries| json!({"type": "Precompiled", "precompiled_charsmap": base64(&charsmap(&entries))}),
    )
}

/// Returns a double array (darts-clone) whose nodes have 256 units each, followed by the texts that its values refer
/// to.
fn charsmap(entries: &[(&str, &str)]) -> Vec<u8> {
    let (mut units, mut texts) = (vec![0_u32; 512], Vec::new());
    // The root is unit 0, and its children are in the second block.
    units[0] = 256 << 10;
    for (from, to) in entries {
        let (mut node, mut block) = (0, 256);
        for byte in from.bytes() {
            node = block ^ usize::from(byte);
            if units[node] == 0 {
                let base = units.len();
                units.resize(base + 256, 0);
                units[node] = ((node ^ base) as u32) << 10 | u32::from(byte);
            }
            block = node ^ (units[node] >> 10) as usize;
        }
        units[node] |= 1 << 8;
        units[block] = texts.len() as u32;
        texts.extend(to.bytes().chain([0]));
    }
    let trie: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [&(trie.len() as u32).to_le_bytes()[..], &trie, &texts].concat()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |three: &[u8]| {
        let bits = (0..3).fold(0_u32, |bits, place| bits << 8 | u32::from(*three.get(place).unwrap_or(&0)));
        let digit = |place: usize| match place <= three.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]),
            false => '=',
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(group).collect()
}

fn splits() -> impl Strategy<Value = Vec<Value>> {
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let patterns =
        [json!({"String": " "}), json!({"String": "ab"}), json!({"Regex": "\\s+"}), json!({"Regex": "[ab]"})];
    let split = (proptest::sample::select(behaviors.to_vec()), proptest::sample::select(patterns.to_vec()), 0..4)
        .prop_map(|(behavior, pattern, invert)| {
            json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert == 0})
        });
    let one = prop_oneof![
        split,
        Just(json!({"type": "Digits", "individual_digits": true})),
        Just(json!({"type": "Punctuation", "behavior": "Isolated"})),
        Just(json!({"type": "Whitespace"})),
        Just(json!({"type": "WhitespaceSplit"})),
        Just(json!({"type": "BertPreTokenizer"})),
        Just(json!({"type": "CharDelimiterSplit", "delimiter": "b"})),
        Just(json!({"type": "Punctuation", "behavior": "Removed"})),
        Just(json!({"type": "UnicodeScripts"})),
        Just(json!({"type": "FixedLength", "length": 5})),
    ];
    vec(one, 0..2)
}

/// Generates added tokens: names, and ids of which some are beyond `vocab`.
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

const TEMPLATES: [&str; 6] = [
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<end>\n{% endfor %}",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m.content | trim }}{{ m.content }} {% endfor %}a",
    "{% for m in messages %}{% if 'b' in m.content %}{{ raise_exception('no b') }}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% endfor %}",
    // Does not parse.
    "{% for m in messages %}{{ m.content }}",
];

/// Generates folders for a model with `vocab` tokens.
pub fn folders(vocab: u32) -> impl Strategy<Value = ModelFolder> {
    let sort = prop_oneof![
        3 => Just(ModelKind::Bytes),
        2 => Just(ModelKind::SomeBytes),
        3 => Just(ModelKind::Fallback),
        1 => Just(ModelKind::Unknown),
        1 => Just(ModelKind::Words),
        1 => Just(ModelKind::WordPieces),
        1 => Just(ModelKind::Affixed),
        2 => any::<bool>().prop_map(|fallback| ModelKind::Unigram { fallback }),
    ];
    let picks = prop_oneof![1 => Just(Vec::new()), 2 => vec(any::<(u16, u16)>(), 0..60)];
    let metaspace = option::of(Just(
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}),
    ));
    let template = proptest::sample::select(TEMPLATES.to_vec());
    let added = prop_oneof![1 => Just(Vec::new()), 2 => added(vocab)];
    (sort, (picks, any::<bool>()), normalizer(), splits(), metaspace, added, template).prop_map(
        move |(sort, (picks, fuse), mut normalizers, mut splits, metaspace, added, template)| {
            // Added tokens have the last ids.
            let model = model(sort, &picks, fuse, vocab as usize - 5);
            match sort {
                ModelKind::Bytes | ModelKind::SomeBytes => splits.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                    "use_regex": false})),
                // Without a split at blanks, the whole text is one word.
                ModelKind::Words | ModelKind::WordPieces if fuse => splits.push(json!({"type": "WhitespaceSplit"})),
                _ => match metaspace {
                    Some(metaspace) => splits.push(metaspace),
                    None => normalizers.push(json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})),
                },
            }
            let decoder = match sort {
                ModelKind::Bytes | ModelKind::SomeBytes => json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}),
                _ => json!({"type": "Sequence", "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}),
            };
            let names = added.iter().filter_map(|token| token["content"].as_str().map(str::to_owned)).collect();
            let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
                "normalizer": {"type": "Sequence", "normalizers": normalizers},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
                "post_processor": null, "decoder": decoder, "model": model});
            ModelFolder { tokenizer, template: template.to_owned(), added: names }
        },
    )
}

/// Generates texts of repeated pieces that such tokenizers join, drop, change or do not know.
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
        "\u{301}",
        "\u{600}",
        "\u{4}",
        "<unk>",
        "x y",
        "中文",
    ];
    let pieces: Vec<String> = known.iter().map(|piece| (*piece).to_owned()).chain(added.clone()).collect();
    let run = (proptest::sample::select(pieces), prop_oneof![4 => 1..4_usize, 1 => 1..200_usize])
        .prop_map(|(piece, times)| piece.repeat(times));
    // Only pieces that a normal form shortens.
    let shrinking =
        ["\u{1d400}", "\u{212a}", "e\u{301}", "\u{1100}\u{1161}\u{11a8}", "bbbb"].map(str::to_owned).to_vec();
    let shrinking =
        (proptest::sample::select(shrinking), 1..300_usize).prop_map(|(piece, times)| piece.repeat(times));
    // A token that may absorb the blanks around it.
    let names = if added.is_empty() { vec!["Ab".to_owned()] } else { added };
    let blanks =
        (proptest::sample::select(names), 1..300_usize).prop_map(|(name, times)| name + &" ".repeat(times));
    prop_oneof![4 => vec(run, 0..12).prop_map(|runs| runs.concat()), 2 => shrinking, 1 => blanks]
}
