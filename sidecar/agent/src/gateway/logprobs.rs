//! Log-probabilities in the shapes of OpenAI's two endpoints.

use serde_json::{Map, Value, json};
use sluice_ports::sampling::TokenLogprobs;

use super::token_stream::TokenText;
use crate::model::text::Text;

/// Returns a token's exact bytes as text, with invalid bytes escaped as OpenAI does (`\xf0\x9f`). A token that the
/// tokenizer does not have gets vLLM's name.
fn token_name(token: u32, bytes: Option<&[u8]>) -> String {
    match bytes {
        Some(bytes) => bytes.utf8_chunks().map(|part| escaped(part.valid(), part.invalid())).collect(),
        None => id_name(token),
    }
}

fn escaped(text: &str, broken: &[u8]) -> String {
    broken.iter().fold(text.to_owned(), |name, byte| format!("{name}\\x{byte:02x}"))
}

fn id_name(token: u32) -> String {
    format!("token_id:{token}")
}

/// Returns a token's name in the legacy shape, where OpenAI marks tokens that are not valid text.
fn legacy_name(text: &Text, token: u32) -> String {
    let bytes = text.bytes_of(token);
    let is_text = bytes.as_ref().is_none_or(|bytes| str::from_utf8(bytes).is_ok());
    let name = token_name(token, bytes.as_deref());
    if is_text { name } else { format!("bytes:{name}") }
}

/// Returns the legacy shape: parallel lists.
pub fn completion(text: &Text, pieces: &[TokenText]) -> Value {
    let with = || pieces.iter().filter_map(|p| p.logprobs.as_ref().map(|l| (p, l)));
    let tokens: Vec<_> = with().map(|(p, _)| legacy_name(text, p.token)).collect();
    let chosen: Vec<_> = with().map(|(_, l)| l.chosen).collect();
    let top: Vec<_> = with().map(|(p, l)| top_logprobs(text, p.token, l)).collect();
    let offsets: Vec<_> = with().map(|(p, _)| p.offset).collect();
    json!({"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
}

/// Returns the chosen token and the most likely ones. If two tokens have the same text (SentencePiece models have `a`
/// and the byte 0x61), the first is named by its text and the second by its id.
fn top_logprobs(text: &Text, token: u32, logprobs: &TokenLogprobs) -> Map<String, Value> {
    let others = logprobs.top.iter().filter(|(other, _)| *other != token);
    let mut named = Map::new();
    for (token, logprob) in std::iter::once(&(token, logprobs.chosen)).chain(others) {
        let name = legacy_name(text, *token);
        let name = if named.contains_key(&name) { id_name(*token) } else { name };
        named.insert(name, json!(logprob));
    }
    named
}

/// Returns the chat shape: a list of tokens.
pub fn chat(text: &Text, pieces: &[TokenText]) -> Value {
    let entry = |token: u32, logprob: f32| {
        let bytes = text.bytes_of(token);
        json!({"token": token_name(token, bytes.as_deref()), "logprob": logprob, "bytes": bytes})
    };
    let content = pieces.iter().filter_map(|piece| {
        let logprobs = piece.logprobs.as_ref()?;
        let mut one = entry(piece.token, logprobs.chosen);
        one["top_logprobs"] = logprobs.top.iter().map(|(token, lp)| entry(*token, *lp)).collect();
        Some(one)
    });
    json!({"content": content.collect::<Vec<_>>()})
}
