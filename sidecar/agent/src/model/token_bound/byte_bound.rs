//! Bound by the bytes of a text and the bytes of the longest token.
//!
//! The bound is the maximum number of bytes of a text that one token covers. It exists only for tokenizers that map
//! every byte of a text to a token: those of bytes (GPT-2's alphabet), and those with byte fallback, behind steps that
//! drop nothing.

use serde_json::Value;
use tokenizers::normalizer::NormalizedString;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model, ModelWrapper, Normalizer, Tokenizer};

/// Maximum bytes of a text per byte of its Unicode normal form. Each character becomes at least one character and has
/// at most 4 bytes, and at most 4 characters are composed into one. A composition of 3 or 4 has at least 2 bytes (UAX
/// 15).
const NORMAL_FORM_SHRINKS: u64 = 8;
/// The same for lower case: each character of at most 4 bytes becomes at least one of at least one byte.
const LOWERCASE_SHRINKS: u64 = 4;

/// The byte bound of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteBound {
    /// Maximum bytes of a text that a token covers.
    bytes_per_token: u64,
    /// Some tokens also cover all adjacent white space, which therefore does not count.
    strips_whitespace: bool,
}

impl ByteBound {
    /// Returns the minimum number of tokens of `text`.
    pub fn min_tokens(&self, text: &str) -> u64 {
        let blank = |c: &char| c.is_whitespace() || c.is_control();
        let bytes = match self.strips_whitespace {
            false => text.len(),
            true => text.chars().filter(|c| !blank(c)).map(char::len_utf8).sum(),
        };
        (bytes as u64).div_ceil(self.bytes_per_token)
    }
}

/// Returns the bound of a tokenizer. `None` if some text may disappear.
pub fn byte_bound(tokenizer: &Tokenizer) -> Option<ByteBound> {
    let (normalizer, pre_tokenizer) = (tokenizer.get_normalizer(), tokenizer.get_pre_tokenizer());
    let normalizer_json = normalizer.map_or(Value::Null, json);
    let pre_tokenizer_json = pre_tokenizer.map_or(Value::Null, json);
    if tokenizer.get_truncation().is_some() || !is_lossless(&pre_tokenizer_json) {
        return None;
    }
    let shrinks = max_shrink(&normalizer_json)?;
    let bytes = outputs_bytes(&normalizer_json) || outputs_bytes(&pre_tokenizer_json);
    let mut longest = longest_token(tokenizer.get_model(), bytes)?;
    let mut strips = false;
    for token in tokenizer.get_added_tokens_decoder().values() {
        longest = longest.max(token.content.len());
        strips |= token.lstrip || token.rstrip;
        if let Some(normalizer) = normalizer.filter(|_| token.normalized) {
            if token.lstrip || token.rstrip {
                // White space of the normal form may be any text before normalization.
                return None;
            }
            let mut content = NormalizedString::from(token.content.as_str());
            normalizer.normalize(&mut content).ok()?;
            longest = longest.max(content.get().len());
        }
    }
    Some(ByteBound {
        bytes_per_token: (longest.max(1) as u64).checked_mul(shrinks)?,
        strips_whitespace: strips,
    })
}

/// Returns a part of a tokenizer as JSON, as in its file.
pub fn json(part: &impl serde::Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_else(|_| Value::String("unreadable".into()))
}

/// Returns the maximum bytes of text per byte of the normal form. `None` if text may disappear or the step is not
/// known.
fn max_shrink(normalizer: &Value) -> Option<u64> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Some(1),
        Some("Sequence") => {
            let all = normalizer["normalizers"].as_array()?;
            // Steps after the byte names would change them.
            let bytes_last = all.iter().rev().skip(1).all(|one| !outputs_bytes(one));
            all.iter()
                .filter(|_| bytes_last)
                .try_fold(1_u64, |product, one| product.checked_mul(max_shrink(one)?))
                .filter(|_| bytes_last)
        }
        Some("NFC" | "NFD" | "NFKC" | "NFKD") => Some(NORMAL_FORM_SHRINKS),
        Some("Lowercase") => Some(LOWERCASE_SHRINKS),
        Some("Prepend" | "ByteLevel") => Some(1),
        Some("Replace") => {
            let (from, to) = (normalizer["pattern"]["String"].as_str()?, normalizer["content"].as_str()?);
            (!to.is_empty() || from.is_empty()).then(|| (from.len().div_ceil(to.len().max(1)) as u64).max(1))
        }
        _ => None,
    }
}

/// Whether every character reaches the model.
fn is_lossless(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer["type"].as_str() {
        None => pre_tokenizer.is_null(),
        Some("Sequence") => {
            pre_tokenizer["pretokenizers"].as_array().is_some_and(|all| all.iter().all(is_lossless))
        }
        Some("ByteLevel" | "Metaspace" | "Digits") => true,
        Some("Split" | "Punctuation") => matches!(
            pre_tokenizer["behavior"].as_str(),
            Some("Isolated" | "MergedWithPrevious" | "MergedWithNext" | "Contiguous")
        ),
        _ => false,
    }
}

/// Whether the output consists of GPT-2's names of bytes.
fn outputs_bytes(step: &Value) -> bool {
    let last = ["normalizers", "pretokenizers"].into_iter().find_map(|all| step[all].as_array());
    match (step["type"].as_str(), last) {
        (Some("ByteLevel"), _) => true,
        (Some("Sequence"), Some(all)) => all.iter().any(outputs_bytes),
        _ => false,
    }
}

/// Returns the bytes of the longest token of a model that has a token for every byte. `None` for a model that may drop
/// bytes, or merge several unknown ones into one token.
fn longest_token(model: &ModelWrapper, bytes: bool) -> Option<usize> {
    let vocab = model.get_vocab();
    let falls_back = || (0..=255_u8).all(|byte| vocab.contains_key(&format!("<0x{byte:02X}>")));
    let every_byte = || ByteLevel::alphabet().iter().all(|name| vocab.contains_key(&name.to_string()));
    let bare = |affix: &Option<String>| affix.as_ref().is_none_or(String::is_empty);
    let whole = match model {
        ModelWrapper::BPE(bpe) => {
            let affixes = bare(&bpe.continuing_subword_prefix) && bare(&bpe.end_of_word_suffix);
            affixes && ((bytes && every_byte()) || (bpe.byte_fallback && falls_back()))
        }
        ModelWrapper::Unigram(unigram) => unigram.byte_fallback() && falls_back(),
        _ => false,
    };
    // A byte's name is one character.
    let length = |token: &String| if bytes { token.chars().count() } else { token.len() };
    vocab.keys().map(length).max().filter(|_| whole)
}
