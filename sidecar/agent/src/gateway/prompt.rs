//! Prompts: their forms in a request, and the single place that turns each into tokens for the model.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use super::endpoint::Endpoint;
use super::error::{ApiError, PromptTokens};
use crate::model::text::Text;

/// Most prompts of one completion request.
pub const PROMPTS_MAX: usize = 64;

/// One or several prompts, as text or as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// One text.
    Text(String),
    /// One list of token ids.
    Ids(Vec<u32>),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of token ids.
    IdLists(Vec<Vec<u32>>),
}

const EXPECTED_FORMS: &str =
    "a string, an array of strings, an array of token ids, or an array of arrays of token ids";

/// One element of an array of prompts.
enum PromptItem {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

struct PromptItemVisitor;

impl<'de> Visitor<'de> for PromptItemVisitor {
    type Value = PromptItem;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a token id (an integer from 0 to {}) or an array of token ids", u32::MAX)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<PromptItem, E> {
        Ok(PromptItem::Text(text))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<PromptItem, E> {
        let found = de::Unexpected::Unsigned(id);
        u32::try_from(id).map(PromptItem::Id).map_err(|_| E::invalid_value(found, &self))
    }

    fn visit_f64<E: de::Error>(self, id: f64) -> Result<PromptItem, E> {
        // A number without a fraction is an integer.
        if id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&id) {
            return Ok(PromptItem::Id(id as u32));
        }
        Err(E::invalid_value(de::Unexpected::Float(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<PromptItem, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = items.next_element()? {
            ids.push(id);
        }
        Ok(PromptItem::Ids(ids))
    }
}

impl<'de> Deserialize<'de> for PromptItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PromptItem, D::Error> {
        deserializer.deserialize_any(PromptItemVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED_FORMS)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Prompts, E> {
        Ok(Prompts::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
        let mut prompts = match items.next_element()? {
            None => return Ok(Prompts::Ids(Vec::new())),
            Some(PromptItem::Text(text)) => Prompts::Texts(vec![text]),
            Some(PromptItem::Id(id)) => Prompts::Ids(vec![id]),
            Some(PromptItem::Ids(ids)) => Prompts::IdLists(vec![ids]),
        };
        while let Some(item) = items.next_element()? {
            match (&mut prompts, item) {
                (Prompts::Texts(texts), PromptItem::Text(text)) => texts.push(text),
                (Prompts::Ids(ids), PromptItem::Id(id)) => ids.push(id),
                (Prompts::IdLists(many), PromptItem::Ids(ids)) => many.push(ids),
                _ => {
                    return Err(de::Error::custom(format!(
                        "must be {EXPECTED_FORMS}, not an array of several kinds"
                    )));
                }
            }
        }
        Ok(prompts)
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

impl Prompts {
    /// Returns the number of prompts.
    pub fn count(&self) -> usize {
        match self {
            Prompts::Text(_) | Prompts::Ids(_) => 1,
            Prompts::Texts(texts) => texts.len(),
            Prompts::IdLists(prompts) => prompts.len(),
        }
    }
}

/// A valid prompt: not empty, each token in the vocabulary, within the limits, with capacity for an answer. Only
/// [`PromptEncoder`] creates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt(Vec<u32>);

impl Prompt {
    /// Returns the tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.0
    }

    /// Returns the number of tokens.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }
}

/// Encodes and checks the prompts of every endpoint.
#[derive(Clone, Copy, Debug)]
pub struct PromptEncoder<'a> {
    /// The tokenizer.
    pub text: &'a Text,
    /// Endpoint of the request, whose parameter errors name.
    pub endpoint: Endpoint,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Longest sequence, tokens.
    pub context_tokens: u32,
    /// Longest prompt that clients may send, tokens.
    pub limit_tokens: Option<u32>,
}

impl PromptEncoder<'_> {
    /// Encodes the prompts of a completion.
    ///
    /// # Errors
    /// 400: the model cannot accept one of them, or there are none or too many.
    pub fn encode_prompts(&self, prompts: Prompts) -> Result<Vec<Prompt>, ApiError> {
        if !(1..=PROMPTS_MAX).contains(&prompts.count()) {
            let message = format!("a request may have 1 to {PROMPTS_MAX} prompts, not {}", prompts.count());
            return Err(self.param_error(message));
        }
        match prompts {
            Prompts::Text(text) => Ok(vec![self.encode_text(&text)?]),
            Prompts::Ids(ids) => Ok(vec![self.check_tokens(ids)?]),
            Prompts::Texts(texts) => texts.iter().map(|text| self.encode_text(text)).collect(),
            Prompts::IdLists(many) => many.into_iter().map(|ids| self.check_tokens(ids)).collect(),
        }
    }

    /// Encodes a plain text, with the special tokens that the tokenizer adds.
    fn encode_text(&self, text: &str) -> Result<Prompt, ApiError> {
        self.tokenize(text, Text::encode)
    }

    /// Encodes a chat that its template has rendered.
    ///
    /// # Errors
    /// 400: the model cannot accept it.
    pub fn encode_chat(&self, chat: &str) -> Result<Prompt, ApiError> {
        self.tokenize(chat, Text::encode_rendered)
    }

    /// Tokenizes a text. Refuses a text that certainly has too many tokens first, because tokenizing it may take
    /// seconds.
    fn tokenize(
        &self,
        text: &str,
        encode: impl Fn(&Text, &str) -> Result<Vec<u32>, String>,
    ) -> Result<Prompt, ApiError> {
        let most = self.limit_tokens.unwrap_or(u32::MAX).min(self.context_tokens);
        let least = self.text.token_bound().min_tokens(text, u64::from(most) + 1);
        self.check_length(PromptTokens::AtLeast(least))?;
        self.check_tokens(encode(self.text, text).map_err(|message| self.param_error(message))?)
    }

    /// Checks tokens from any source.
    fn check_tokens(&self, tokens: Vec<u32>) -> Result<Prompt, ApiError> {
        self.check_length(PromptTokens::Exact(tokens.len() as u64))?;
        if tokens.is_empty() {
            return Err(self.param_error("the prompt has no tokens".into()));
        }
        match tokens.iter().position(|id| *id >= self.vocab) {
            Some(index) => {
                Err(self
                    .param_error(format!("{}, at index {index}", self.unknown_token_message(tokens[index]))))
            }
            None => Ok(Prompt(tokens)),
        }
    }

    fn unknown_token_message(&self, id: u32) -> String {
        // A tokenizer may have more tokens than the model.
        let name =
            self.text.tokenizer().id_to_token(id).map_or_else(String::new, |name| format!(" (`{name}`)"));
        format!("the vocabulary has no token {id}{name}")
    }

    fn check_length(&self, tokens: PromptTokens) -> Result<(), ApiError> {
        if let Some(limit) = self.limit_tokens.filter(|limit| tokens.lower_bound() > u64::from(*limit)) {
            return Err(self.param_error(format!("the prompt has {tokens} tokens, the limit is {limit}")));
        }
        // An answer has at least one token.
        match tokens.lower_bound() >= u64::from(self.context_tokens) {
            true => Err(ApiError::prompt_too_long(self.endpoint, tokens, self.context_tokens)),
            false => Ok(()),
        }
    }

    fn param_error(&self, message: String) -> ApiError {
        ApiError::invalid_param(self.endpoint.prompt_param(), message)
    }
}
