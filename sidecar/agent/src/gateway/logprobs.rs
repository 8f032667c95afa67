//! Log-probabilities in OpenAI's two shapes.

use serde_json::{Value, json};

use super::generate::Piece;
use crate::model::text::Text;

fn name(text: &Text, token: u32) -> String {
    text.tokenizer().decode(&[token], false).unwrap_or_default()
}

/// The legacy shape: parallel lists.
pub fn completion(text: &Text, pieces: &[Piece]) -> Value {
    let with = || pieces.iter().filter_map(|p| p.logprobs.as_ref().map(|l| (p, l)));
    let tokens: Vec<_> = with().map(|(p, _)| name(text, p.token)).collect();
    let chosen: Vec<_> = with().map(|(_, l)| l.chosen).collect();
    let top: Vec<_> = with()
        .map(|(_, l)| {
            l.top.iter().map(|(t, lp)| (name(text, *t), json!(lp))).collect::<serde_json::Map<_, _>>()
        })
        .collect();
    let offsets: Vec<_> = with().map(|(p, _)| p.offset).collect();
    json!({"tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets})
}

/// The chat shape: a list of tokens.
pub fn chat(text: &Text, pieces: &[Piece]) -> Value {
    let entry = |token: u32, logprob: f32| {
        let name = name(text, token);
        // A part of a character has no text of its own, and its bytes cannot be told from the replacement character.
        let bytes = (!name.contains('\u{fffd}')).then(|| name.as_bytes().to_vec());
        json!({"token": name, "logprob": logprob, "bytes": bytes})
    };
    let content = pieces.iter().filter_map(|piece| {
        let logprobs = piece.logprobs.as_ref()?;
        let mut one = entry(piece.token, logprobs.chosen);
        one["top_logprobs"] = logprobs.top.iter().map(|(token, lp)| entry(*token, *lp)).collect();
        Some(one)
    });
    json!({"content": content.collect::<Vec<_>>()})
}
