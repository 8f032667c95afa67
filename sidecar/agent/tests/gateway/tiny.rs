//! A text-only model folder: one token per byte (id = byte), and an end token. Shared with the examples.

use std::path::Path;

use serde_json::{Map, Value, json};
use sluice_agent::model::text::Text;

/// The token that ends a sequence.
pub const END: u32 = 256;
/// Size of the vocabulary.
pub const VOCAB: u32 = 257;

/// Returns GPT-2's name of a byte: a printable byte is its own name, the others are numbered from 256.
pub fn name_of(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + before).expect("all below the surrogates")
}

/// Writes the folder and opens it.
pub fn text(folder: &Path) -> Text {
    let vocab: Map<String, Value> =
        (0..=255_u8).map(|byte| (name_of(byte).to_string(), json!(byte))).collect();
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let end = json!({"id": END, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [end],
        "normalizer": null, "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []}});
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
    let write = |name: &str, value: &Value| {
        std::fs::write(folder.join(name), value.to_string()).expect("the folder can be written");
    };
    write("tokenizer.json", &tokenizer);
    write("tokenizer_config.json", &json!({"chat_template": template, "eos_token": "<end>"}));
    write("config.json", &json!({"eos_token_id": END}));
    Text::open(folder).expect("the folder is complete")
}
