//! Text-only model folders. Every tokenizer has a token for each byte and a few words.

use std::path::Path;

use serde_json::{Map, Value, json};
use sluice_agent::model::text::Text;
use tempfile::TempDir;

/// Words of the tokenizers, in SentencePiece's spelling.
pub const WORDS: [&str; 8] = ["▁Once", "▁upon", "▁a", "▁time", "▁é", ",", "<", ">"];

/// A folder and its opened text parts.
pub struct ModelFolder {
    pub text: Text,
    _folder: TempDir,
}

/// How the texts of tokens are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderKind {
    /// As Llama 2: `▁` is a space, `<0xNN>` a byte, and the first space is dropped.
    Pieces,
    /// The library's decoder of this name: `▁` is a space, except the first one.
    Metaspace,
    /// As GPT-2: each character of a token is a byte.
    ByteLevel,
    /// No decoder: a space between tokens.
    None,
}

impl DecoderKind {
    pub const ALL: [DecoderKind; 4] =
        [DecoderKind::Pieces, DecoderKind::Metaspace, DecoderKind::ByteLevel, DecoderKind::None];

    fn decoder(self) -> Value {
        match self {
            DecoderKind::Pieces => json!({"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}),
            DecoderKind::Metaspace => {
                json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
            }
            DecoderKind::ByteLevel => {
                json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
            }
            DecoderKind::None => Value::Null,
        }
    }
}

/// Returns GPT-2's names of bytes, in byte order.
fn names_of_bytes() -> Vec<char> {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut others = 0x100..;
    let name = |byte| Some(byte).filter(printable).or_else(|| others.next()).and_then(char::from_u32);
    (0..=0xff).map(name).collect::<Option<_>>().expect("all are characters")
}

/// Returns `word` in the characters of `kind`.
fn spelled(kind: DecoderKind, word: &str) -> String {
    match kind {
        DecoderKind::ByteLevel => {
            let names = names_of_bytes();
            word.replace('▁', " ").bytes().map(|byte| names[usize::from(byte)]).collect()
        }
        _ => word.to_owned(),
    }
}

/// Returns every prefix of every word, and the merges that build the word from its characters.
fn words(kind: DecoderKind) -> (Vec<String>, Vec<[String; 2]>) {
    let (mut pieces, mut merges) = (Vec::new(), Vec::new());
    for word in WORDS.map(|word| spelled(kind, word)) {
        let mut grown = String::new();
        for letter in word.chars() {
            if !grown.is_empty() {
                merges.push([grown.clone(), letter.to_string()]);
            }
            grown.push(letter);
            pieces.push(letter.to_string());
            pieces.push(grown.clone());
        }
    }
    (pieces, merges)
}

/// Returns `tokenizer.json`: `<unk>`, `<s>` and `</s>`, then the bytes, then the words.
pub fn tokenizer(kind: DecoderKind) -> Value {
    let bytes = names_of_bytes();
    let byte = |byte: usize| match kind {
        DecoderKind::ByteLevel => bytes[byte].to_string(),
        _ => format!("<0x{byte:02X}>"),
    };
    let (pieces, merges) = words(kind);
    let mut vocab = Map::new();
    let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
    for token in special.iter().cloned().chain((0..256).map(byte)).chain(pieces) {
        let next = vocab.len();
        vocab.entry(token).or_insert(json!(next));
    }
    let added = special.iter().enumerate().map(|(id, content)| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let spaces = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let level = matches!(kind, DecoderKind::ByteLevel);
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": if level { Value::Null } else { spaces },
        "pre_tokenizer": if level { kind.decoder() } else { Value::Null },
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": kind.decoder(),
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": !level, "ignore_merges": false,
            "vocab": vocab, "merges": merges}})
}

/// Returns an added token that is not special.
pub fn added(tokenizer: &Value, content: &str) -> Value {
    let id = tokenizer["model"]["vocab"].as_object().expect("a vocabulary").len();
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false})
}

/// Writes a folder and opens it.
pub fn open(tokenizer: &Value, settings: &Value) -> ModelFolder {
    open_with(tokenizer, settings, &[])
}

/// As [`open`], with more files: names and contents.
pub fn open_with(tokenizer: &Value, settings: &Value, files: &[(&str, &Value)]) -> ModelFolder {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), tokenizer, settings);
    for (name, content) in files {
        std::fs::write(folder.path().join(name), content.to_string()).expect("the folder can be written");
    }
    ModelFolder { text: Text::open(folder.path()).expect("the folder is complete"), _folder: folder }
}

/// Writes the files that [`Text::open`] reads.
pub fn write(folder: &Path, tokenizer: &Value, settings: &Value) {
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.join(name), value.to_string()).expect("the folder can be written");
    };
    write("tokenizer.json", tokenizer);
    write("tokenizer_config.json", settings);
    write("config.json", &json!({"eos_token_id": 2}));
}
