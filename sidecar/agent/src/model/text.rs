//! Converts text to tokens and back: tokenizer, chat template and stop tokens.

mod chat_template;
mod json;
mod message;
mod tokenizer;
mod tokenizer_config;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use tokenizers::Tokenizer;

use self::chat_template::{ChatTemplate, RenderOptions};
pub use self::message::ChatMessage;
use self::tokenizer::{ByteEncoding, bytes_of};
use self::tokenizer_config::TokenizerConfig;
use super::error::{ModelError, read_json, read_optional_json};
use super::token_bound::TokenBound;

/// Text handling of a model folder.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    token_bound: TokenBound,
    bytes: ByteEncoding,
    template: ChatTemplate,
    /// Texts of named tokens, such as `bos_token`.
    named_tokens: BTreeMap<String, String>,
    stop_tokens: Vec<u32>,
    generation_config: GenerationConfig,
}

/// Sampling defaults of the model's author (`generation_config.json`).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct GenerationConfig {
    /// False: greedy, unless the request sets otherwise.
    #[serde(default)]
    pub do_sample: bool,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus sampling probability.
    pub top_p: Option<f32>,
    /// Number of most likely tokens kept.
    pub top_k: Option<u32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// One id or a list of ids.
    eos_token_id: Option<serde_json::Value>,
}

impl Text {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `config.json` of `folder`, and the
    /// token settings of older files.
    ///
    /// # Errors
    /// Names the file and the problem.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let settings = TokenizerConfig::open(folder)?;
        let tokenizer = tokenizer::open(&folder.join("tokenizer.json"), &settings)?;
        let template = ChatTemplate::open(folder, &settings);
        if let ChatTemplate::Unreadable(problem) = &template {
            tracing::warn!(%problem, "the chat template cannot be used: refusing chat requests");
        }
        let defaults: GenerationConfig =
            read_optional_json(&folder.join("generation_config.json"))?.unwrap_or_default();
        let named: BTreeMap<_, _> =
            settings.named_tokens().map(|(name, token)| (name.to_owned(), token.content)).collect();
        let eos = named.get("eos_token").map(String::as_str);
        let stop_tokens = stop_tokens(folder, &defaults, eos, &tokenizer)?;
        let (floor, bytes) = (TokenBound::of(&tokenizer), ByteEncoding::of(&tokenizer));
        Ok(Text {
            tokenizer,
            token_bound: floor,
            bytes,
            template,
            named_tokens: named,
            stop_tokens,
            generation_config: defaults,
        })
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns the lower bound on the tokens of a text.
    pub fn token_bound(&self) -> &TokenBound {
        &self.token_bound
    }

    /// Returns the bytes that token `id` adds to a text, which may be part of a character. `None` if there is no such
    /// token.
    pub fn bytes_of(&self, id: u32) -> Option<Vec<u8>> {
        bytes_of(&self.tokenizer, self.bytes, id)
    }

    /// Returns the text of token `id` if it was added to the vocabulary.
    pub fn added_token_text(&self, id: u32) -> Option<&str> {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).map(|token| token.content.as_str())
    }

    /// Whether token `id` has no visible text: the tokenizer does not know it, or it is special and `skip_special` is
    /// set.
    pub fn is_hidden(&self, id: u32, skip_special: bool) -> bool {
        let special = |token: String| self.tokenizer.get_added_vocabulary().is_special_token(&token);
        self.tokenizer.id_to_token(id).is_none_or(|token| skip_special && special(token))
    }

    /// Returns the tokens that end a sequence.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Checks that the model has an embedding for each end and start token that the folder's files name. Otherwise no
    /// engine could accept such a token, and no response would end with it.
    ///
    /// # Errors
    /// Names the file, the field and the id.
    pub fn check_ids(&self, folder: &Path, vocab: u32) -> Result<(), ModelError> {
        for file in ["config.json", "generation_config.json"] {
            let path = folder.join(file);
            let json: serde_json::Value = read_optional_json(&path)?.unwrap_or_default();
            for field in ["eos_token_id", "bos_token_id"] {
                check_id_field(&path, field, &json[field], vocab)?;
            }
        }
        // The remaining ids are from the tokenizer, which may have more tokens than the model.
        match self.stop_tokens.iter().find(|id| **id >= vocab) {
            Some(id) => {
                let path = folder.join("tokenizer_config.json");
                Err(ModelError::field(&path, "eos_token", beyond_vocab(&id.to_string(), vocab)))
            }
            None => Ok(()),
        }
    }

    /// Returns the sampling defaults of the model's author.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation_config
    }

    /// Returns the token ids of a plain prompt, with the special tokens that the tokenizer adds.
    ///
    /// # Errors
    /// The tokenizer's message.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, String> {
        self.encode_with(prompt, true)
    }

    fn encode_with(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        Ok(self.tokenizer.encode_fast(text, special).map_err(|e| e.to_string())?.get_ids().to_vec())
    }

    /// Returns the token ids of a chat rendered by [`Text::render`], whose text already holds its special tokens.
    ///
    /// # Errors
    /// The tokenizer's message.
    pub fn encode_rendered(&self, chat: &str) -> Result<Vec<u32>, String> {
        self.encode_with(chat, false)
    }

    /// Renders the prompt of `messages` with the chat template.
    ///
    /// # Errors
    /// The template's own message for an input that it refuses, or the reason why there is no usable template.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, String> {
        let given = RenderOptions { add_generation_prompt, tokens: &self.named_tokens };
        self.template.render(messages, given)
    }
}

/// Returns every id that one of the files names as an end of sequence.
fn stop_tokens(
    folder: &Path,
    defaults: &GenerationConfig,
    eos: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>, ModelError> {
    let config: serde_json::Value = read_json(&folder.join("config.json"))?;
    let listed = defaults.eos_token_id.clone().unwrap_or_else(|| config["eos_token_id"].clone());
    let ids: Vec<_> = match &listed {
        serde_json::Value::Array(ids) => ids.iter().filter_map(serde_json::Value::as_u64).collect(),
        id => id.as_u64().into_iter().collect(),
    };
    let mut stop: BTreeSet<u32> = ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect();
    stop.extend(eos.and_then(|token| tokenizer.token_to_id(token)));
    Ok(stop.into_iter().collect())
}

fn beyond_vocab(id: &str, vocab: u32) -> String {
    format!("{id} is not a token of the vocabulary of {vocab} tokens")
}

/// Checks `ids`, which is null, an id, or a list of ids.
fn check_id_field(path: &Path, field: &str, ids: &serde_json::Value, vocab: u32) -> Result<(), ModelError> {
    let within = |id: &&serde_json::Value| id.as_u64().is_some_and(|id| id < u64::from(vocab));
    let wrong = match ids {
        serde_json::Value::Null => None,
        serde_json::Value::Array(all) => all.iter().find(|id| !within(id)),
        one => Some(one).filter(|id| !within(id)),
    };
    match wrong {
        Some(id) => Err(ModelError::field(path, field, beyond_vocab(&id.to_string(), vocab))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eos_and_bos_ids_are_within_vocabulary() {
        let path = Path::new("config.json");
        let check =
            |ids: &str| check_id_field(path, "eos_token_id", &serde_json::from_str(ids).unwrap(), 300);
        for good in ["null", "0", "299", "[]", "[1, 299]"] {
            check(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (bad, named) in
            [("300", "300"), ("[1, 300]", "300"), ("-1", "-1"), ("1.5", "1.5"), ("[[1]]", "[1]")]
        {
            let words = check(bad).unwrap_err().to_string();
            let expected =
                format!("config.json: eos_token_id: {named} is not a token of the vocabulary of 300 tokens");
            assert_eq!(words, expected, "{bad}");
        }
    }
}
