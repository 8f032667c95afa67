//! `tokenizer_config.json`, and the two older files that transformers reads if it does not list the added tokens
//! itself.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::model::error::{ModelError, read_optional_json};

/// Names of tokens that every tokenizer may have. Their tokens are special.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of tokens that are special if they are not added otherwise. The second is the older name of the first.
const EXTRA: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// Tokenizer settings of a folder besides `tokenizer.json`.
#[derive(Debug, Default, Deserialize)]
pub struct TokenizerConfig {
    /// One text, or a list of named texts.
    pub chat_template: Option<Value>,
    /// Added tokens by id, as text.
    added_tokens_decoder: Option<BTreeMap<u32, AddedTokenConfig>>,
    /// Whether special tokens in a text are tokenized as plain text.
    pub split_special_tokens: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
    /// Ids by content, from `added_tokens.json`.
    #[serde(skip)]
    listed_tokens: BTreeMap<String, u32>,
}

/// An added token as the files describe it. Absent fields have the library's defaults.
#[derive(Debug, Deserialize)]
struct AddedTokenConfig {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl AddedTokenConfig {
    fn token(&self, special: bool) -> AddedToken {
        AddedToken::from(self.content.as_str(), special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!special))
    }
}

/// Parses a special token, written as text or as `{"content": …}`.
fn special(value: &Value) -> Option<AddedToken> {
    match value {
        Value::String(content) => Some(AddedToken::from(content.as_str(), true)),
        value => AddedTokenConfig::deserialize(value).ok().map(|added| added.token(true)),
    }
}

impl TokenizerConfig {
    /// Reads the files of `folder`.
    ///
    /// # Errors
    /// Names the file and the problem.
    pub fn open(folder: &Path) -> Result<TokenizerConfig, ModelError> {
        let path = folder.join("tokenizer_config.json");
        let mut fields: Map<String, Value> = read_optional_json(&path)?.unwrap_or_default();
        let mut listed = BTreeMap::new();
        if !fields.contains_key("added_tokens_decoder") {
            let older: Map<String, Value> =
                read_optional_json(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
            older.into_iter().for_each(|(name, value)| override_field(&mut fields, name, value));
            listed = read_optional_json(&folder.join("added_tokens.json"))?.unwrap_or_default();
        }
        let settings: Result<TokenizerConfig, _> = serde_json::from_value(Value::Object(fields));
        settings
            .map(|settings| TokenizerConfig { listed_tokens: listed, ..settings })
            .map_err(|source| ModelError::Json { path, source })
    }

    /// Returns the tokens by their names: the usual ones, and those of the model.
    pub fn named_tokens(&self) -> impl Iterator<Item = (&str, AddedToken)> {
        let tokens = self.rest.iter().filter(|(name, _)| name.ends_with("_token"));
        let dictionary = self.extra_tokens().and_then(Value::as_object).into_iter().flatten();
        tokens.chain(dictionary).filter_map(|(name, token)| Some((name.as_str(), special(token)?)))
    }

    /// Returns the tokens that are always special.
    pub fn special(&self) -> impl Iterator<Item = AddedToken> {
        self.named_tokens().filter(|(name, _)| NAMES.contains(name)).map(|(_, token)| token)
    }

    /// Returns the tokens that are special if they are not added otherwise.
    pub fn special_if_new(&self) -> impl Iterator<Item = AddedToken> {
        let of_the_model =
            self.named_tokens().filter(|(name, _)| !NAMES.contains(name)).map(|(_, token)| token);
        let list = self.extra_tokens().and_then(Value::as_array).into_iter().flatten();
        of_the_model.chain(list.filter_map(special))
    }

    fn extra_tokens(&self) -> Option<&Value> {
        EXTRA.iter().find_map(|name| self.rest.get(*name))
    }

    /// Returns the tokens that the files add, by id. `is_added` returns whether `tokenizer.json` describes a token
    /// itself, which takes precedence over `added_tokens.json`.
    pub fn added_tokens(&self, is_added: impl Fn(u32, &str) -> bool) -> Vec<(u32, AddedToken)> {
        let described = self.added_tokens_decoder.iter().flatten();
        let mut added: Vec<_> = described.map(|(id, added)| (*id, added.token(added.special))).collect();
        let named: Vec<_> = self.special().chain(self.special_if_new()).map(|token| token.content).collect();
        for (content, id) in self.listed_tokens.iter().filter(|(content, id)| !is_added(**id, content)) {
            let special = named.contains(content);
            added.push((*id, AddedToken::from(content.as_str(), special)));
        }
        added.sort_by_key(|(id, _)| *id);
        added
    }
}

/// Sets a field from `special_tokens_map.json`, which overrides that of `tokenizer_config.json`. Lists of the newer
/// name are joined.
fn override_field(fields: &mut Map<String, Value>, name: String, value: Value) {
    match (fields.get_mut(&name), value) {
        (Some(Value::Array(known)), Value::Array(more)) if name == EXTRA[0] => {
            let new: Vec<_> = more.into_iter().filter(|token| !known.contains(token)).collect();
            known.extend(new);
        }
        (_, value) if name.ends_with("_token") || EXTRA.contains(&name.as_str()) => {
            fields.insert(name, value);
        }
        _ => {}
    }
}
