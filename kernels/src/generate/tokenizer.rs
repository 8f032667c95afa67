//! A byte-level tokenizer of any size: two special tokens, the 256 bytes, then merges of lower-case letters, shortest
//! first (`aa`, `ab`, ... `zz`, `aaa`, ...). Every id decodes to text, and any text can be encoded.

use serde_json::{Map, Value, json};

/// Id of `<s>`.
pub const BOS: u32 = 0;
/// Id of `</s>`.
pub const EOS: u32 = 1;
/// Special tokens and bytes.
pub const SMALLEST_VOCAB: u32 = 258;

const LETTERS: usize = 26;

/// Returns the printable character for each byte in byte-level BPE (GPT-2's table): the byte itself if it is printable,
/// else the next character from U+0100 on.
fn byte_chars() -> Vec<char> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    let stand_in = |byte: u32| {
        let code = if printable(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        char::from_u32(code).expect("codes below U+0200 are characters")
    };
    (0..256).map(stand_in).collect()
}

/// Returns the `index`-th word of `length` letters in alphabetical order.
fn word(mut index: usize, length: u32) -> String {
    let mut letters = vec![b'a'; length as usize];
    for letter in letters.iter_mut().rev() {
        *letter += (index % LETTERS) as u8;
        index /= LETTERS;
    }
    String::from_utf8(letters).expect("letters are text")
}

/// Returns the first `count` words of two or more letters.
fn words(count: usize) -> impl Iterator<Item = String> {
    (2..).flat_map(|length: u32| (0..LETTERS.pow(length)).map(move |index| word(index, length))).take(count)
}

pub(super) fn tokenizer(vocab: u32) -> Value {
    let mut ids = Map::new();
    let mut merges = Vec::new();
    let specials = ["<s>", "</s>"].map(str::to_owned);
    let bytes = byte_chars().into_iter().map(String::from);
    let added = (vocab - SMALLEST_VOCAB) as usize;
    for (id, token) in specials.into_iter().chain(bytes).chain(words(added)).enumerate() {
        if id >= SMALLEST_VOCAB as usize {
            let (head, tail) = token.split_at(token.len() - 1);
            merges.push(json!([head, tail]));
        }
        ids.insert(token, json!(id));
    }
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(BOS, "<s>"), special(EOS, "</s>")],
        "normalizer": null,
        "pre_tokenizer": byte_level(),
        "post_processor": begin_with_bos(),
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": ids,
            "merges": merges,
        },
    })
}

fn special(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

fn byte_level() -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true })
}

fn begin_with_bos() -> Value {
    let bos = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    let sequence = |id: &str, type_id: u32| json!({ "Sequence": { "id": id, "type_id": type_id } });
    json!({
        "type": "TemplateProcessing",
        "single": [bos, sequence("A", 0)],
        "pair": [bos, sequence("A", 0), sequence("B", 1)],
        "special_tokens": { "<s>": { "id": "<s>", "ids": [BOS], "tokens": ["<s>"] } },
    })
}
