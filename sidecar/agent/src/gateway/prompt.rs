//! Prompts: how they come in a request, and the one place where each becomes tokens that the model is given.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use super::answer::Kind;
use super::error::{ApiError, PromptTokens};
use crate::model::text::Text;

/// Prompts in one completion request.
pub const PROMPTS_MAX: usize = 64;

/// A prompt or several, as text or as token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// Texts.
    Texts(Vec<String>),
    /// Token ids of each.
    ManyIds(Vec<Vec<u32>>),
}

const WANTED: &str =
    "a string, an array of strings, an array of token ids, or an array of arrays of token ids";

/// What an array of prompts holds.
enum Item {
    Text(String),
    Id(u32),
    Ids(Vec<u32>),
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, a token id (an integer from 0 to {}) or an array of token ids", u32::MAX)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<Item, E> {
        let found = de::Unexpected::Unsigned(id);
        u32::try_from(id).map(Item::Id).map_err(|_| E::invalid_value(found, &self))
    }

    fn visit_f64<E: de::Error>(self, id: f64) -> Result<Item, E> {
        // A number without a fraction is an integer.
        if id.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&id) {
            return Ok(Item::Id(id as u32));
        }
        Err(E::invalid_value(de::Unexpected::Float(id), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Item, A::Error> {
        let mut ids = Vec::new();
        while let Some(id) = items.next_element()? {
            ids.push(id);
        }
        Ok(Item::Ids(ids))
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WANTED)
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
            Some(Item::Text(text)) => Prompts::Texts(vec![text]),
            Some(Item::Id(id)) => Prompts::Ids(vec![id]),
            Some(Item::Ids(ids)) => Prompts::ManyIds(vec![ids]),
        };
        while let Some(item) = items.next_element()? {
            match (&mut prompts, item) {
                (Prompts::Texts(texts), Item::Text(text)) => texts.push(text),
                (Prompts::Ids(ids), Item::Id(id)) => ids.push(id),
                (Prompts::ManyIds(many), Item::Ids(ids)) => many.push(ids),
                _ => {
                    return Err(de::Error::custom(format!(
                        "must be {WANTED}, not an array of several kinds"
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
    /// How many there are.
    pub fn count(&self) -> usize {
        match self {
            Prompts::Text(_) | Prompts::Ids(_) => 1,
            Prompts::Texts(texts) => texts.len(),
            Prompts::ManyIds(prompts) => prompts.len(),
        }
    }
}

/// A prompt that the model takes: some tokens, each of the vocabulary, within the limits, with room for an answer. Made by
/// [`PromptRules`] alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt(Vec<u32>);

impl Prompt {
    /// Its tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.0
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }
}

/// What the model takes. Every prompt of every endpoint passes here.
#[derive(Clone, Copy, Debug)]
pub struct PromptRules<'a> {
    /// The tokenizer.
    pub text: &'a Text,
    /// Which endpoint asks: errors name its parameter.
    pub kind: Kind,
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Longest sequence.
    pub context_tokens: u32,
    /// Longest prompt that clients may send.
    pub limit_tokens: Option<u32>,
}

impl PromptRules<'_> {
    /// The prompts of a completion.
    ///
    /// # Errors
    /// 400: one of them the model cannot take, or there are none or too many.
    pub fn prompts(&self, prompts: Prompts) -> Result<Vec<Prompt>, ApiError> {
        if !(1..=PROMPTS_MAX).contains(&prompts.count()) {
            let message = format!("1 to {PROMPTS_MAX} prompts may be asked for, not {}", prompts.count());
            return Err(self.wrong(message));
        }
        match prompts {
            Prompts::Text(text) => Ok(vec![self.plain(&text)?]),
            Prompts::Ids(ids) => Ok(vec![self.take(ids)?]),
            Prompts::Texts(texts) => texts.iter().map(|text| self.plain(text)).collect(),
            Prompts::ManyIds(many) => many.into_iter().map(|ids| self.take(ids)).collect(),
        }
    }

    /// A plain text, with the special tokens that the tokenizer puts around it.
    fn plain(&self, text: &str) -> Result<Prompt, ApiError> {
        self.tokenised(text, Text::encode)
    }

    /// A chat as its template wrote it.
    ///
    /// # Errors
    /// 400: the model cannot take it.
    pub fn rendered(&self, chat: &str) -> Result<Prompt, ApiError> {
        self.tokenised(chat, Text::encode_rendered)
    }

    /// A text that certainly has too many tokens is refused before it is tokenised, which may take seconds.
    fn tokenised(
        &self,
        text: &str,
        encode: impl Fn(&Text, &str) -> Result<Vec<u32>, String>,
    ) -> Result<Prompt, ApiError> {
        let most = self.limit_tokens.unwrap_or(u32::MAX).min(self.context_tokens);
        let least = self.text.floor().at_least(text, u64::from(most) + 1);
        self.short_enough(PromptTokens::AtLeast(least))?;
        self.take(encode(self.text, text).map_err(|message| self.wrong(message))?)
    }

    /// Tokens, wherever they come from.
    fn take(&self, tokens: Vec<u32>) -> Result<Prompt, ApiError> {
        self.short_enough(PromptTokens::Exactly(tokens.len() as u64))?;
        if tokens.is_empty() {
            return Err(self.wrong("the prompt has no tokens".into()));
        }
        match tokens.iter().position(|id| *id >= self.vocab) {
            Some(index) => Err(self.wrong(format!("{}, at index {index}", self.unknown(tokens[index])))),
            None => Ok(Prompt(tokens)),
        }
    }

    fn unknown(&self, id: u32) -> String {
        // A tokenizer may know more tokens than the model was trained with.
        let name =
            self.text.tokenizer().id_to_token(id).map_or_else(String::new, |name| format!(" (`{name}`)"));
        format!("the vocabulary has no token {id}{name}")
    }

    fn short_enough(&self, tokens: PromptTokens) -> Result<(), ApiError> {
        if let Some(limit) = self.limit_tokens.filter(|limit| tokens.fewest() > u64::from(*limit)) {
            return Err(self.wrong(format!("the prompt has {tokens} tokens, the limit is {limit}")));
        }
        // An answer has at least one token.
        match tokens.fewest() >= u64::from(self.context_tokens) {
            true => Err(ApiError::prompt_too_long(self.kind, tokens, self.context_tokens)),
            false => Ok(()),
        }
    }

    fn wrong(&self, message: String) -> ApiError {
        ApiError::param(self.kind.prompt_param(), message)
    }
}
