//! Text to tokens and back: tokenizer, chat template, and what the model says ends a sequence.

mod tokens;

use std::collections::BTreeSet;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value};
use serde::Deserialize;
use tokenizers::Tokenizer;

use self::tokens::{Bytes, Settings, bytes_of, token_text};
use super::error::{ModelError, read_json, read_optional_json};
use super::floor::TokenFloor;

/// Everything about text that a model folder holds.
#[derive(Debug)]
pub struct Text {
    tokenizer: Tokenizer,
    floor: TokenFloor,
    bytes: Bytes,
    template: Option<Environment<'static>>,
    bos: Option<String>,
    eos: Option<String>,
    stop_tokens: Vec<u32>,
    defaults: Defaults,
}

/// Sampling that the model's author recommends (`generation_config.json`).
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Defaults {
    /// False = greedy unless asked otherwise.
    #[serde(default)]
    pub do_sample: bool,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus.
    pub top_p: Option<f32>,
    /// Most likely tokens kept.
    pub top_k: Option<u32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
    /// One id or several.
    eos_token_id: Option<serde_json::Value>,
}

/// One message of a chat.
pub type Message = serde_json::Map<String, serde_json::Value>;

impl Text {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and `config.json` of `folder`.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let config: Settings = read_optional_json(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let tokenizer = tokens::open(&folder.join("tokenizer.json"), &config)?;
        let template = match template_source(folder, &config)? {
            Some((path, source)) => Some(compile(&path, source)?),
            None => None,
        };
        let defaults: Defaults =
            read_optional_json(&folder.join("generation_config.json"))?.unwrap_or_default();
        let named =
            |token: &Option<serde_json::Value>| token.as_ref().and_then(token_text).map(str::to_owned);
        let (bos, eos) = (named(&config.bos_token), named(&config.eos_token));
        let stop_tokens = stop_tokens(folder, &defaults, eos.as_deref(), &tokenizer)?;
        let (floor, bytes) = (TokenFloor::of(&tokenizer), Bytes::of(&tokenizer));
        Ok(Text { tokenizer, floor, bytes, template, bos, eos, stop_tokens, defaults })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How few tokens a text can have.
    pub fn floor(&self) -> TokenFloor {
        self.floor
    }

    /// The bytes that token `id` adds to a text that goes on, a part of a character included; `None` = the tokenizer has no
    /// such token.
    pub fn bytes_of(&self, id: u32) -> Option<Vec<u8>> {
        bytes_of(&self.tokenizer, self.bytes, id)
    }

    /// The text of token `id` if it was added to the vocabulary.
    pub fn added(&self, id: u32) -> Option<&str> {
        let added = self.tokenizer.get_added_vocabulary().get_added_tokens_decoder();
        added.get(&id).map(|token| token.content.as_str())
    }

    /// Whether token `id` never shows: the tokenizer does not know it, or it is special and `skip_special`.
    pub fn is_hidden(&self, id: u32, skip_special: bool) -> bool {
        let special = |token: String| self.tokenizer.get_added_vocabulary().is_special_token(&token);
        self.tokenizer.id_to_token(id).is_none_or(|token| skip_special && special(token))
    }

    /// Tokens that end a sequence.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Refuses a folder of which a file names an end or a beginning that the model has no embedding for: no engine could
    /// take it, and no answer would ever end there.
    ///
    /// # Errors
    /// The file, the field and the id.
    pub fn check_ids(&self, folder: &Path, vocab: u32) -> Result<(), ModelError> {
        for file in ["config.json", "generation_config.json"] {
            let path = folder.join(file);
            let json: serde_json::Value = read_optional_json(&path)?.unwrap_or_default();
            for field in ["eos_token_id", "bos_token_id"] {
                check_listed(&path, field, &json[field], vocab)?;
            }
        }
        // What is left comes from the tokenizer, which may know more tokens than the model.
        match self.stop_tokens.iter().find(|id| **id >= vocab) {
            Some(id) => {
                let path = folder.join("tokenizer_config.json");
                Err(ModelError::field(&path, "eos_token", beyond(&id.to_string(), vocab)))
            }
            None => Ok(()),
        }
    }

    /// Sampling that the author recommends.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Token ids of a plain prompt, with the special tokens that the tokenizer puts around it.
    ///
    /// # Errors
    /// The tokenizer's words.
    pub fn encode(&self, prompt: &str) -> Result<Vec<u32>, String> {
        self.encode_with(prompt, true)
    }

    fn encode_with(&self, text: &str, special: bool) -> Result<Vec<u32>, String> {
        Ok(self.tokenizer.encode_fast(text, special).map_err(|e| e.to_string())?.get_ids().to_vec())
    }

    /// Token ids of a chat as [`Text::render`] writes it: the text already holds its special tokens.
    ///
    /// # Errors
    /// The tokenizer's words.
    pub fn encode_rendered(&self, chat: &str) -> Result<Vec<u32>, String> {
        self.encode_with(chat, false)
    }

    /// The prompt that the chat template makes of `messages`, the assistant's turn opened.
    ///
    /// # Errors
    /// The template's own words (a message it refuses), or that there is none.
    pub fn render(&self, messages: &[Message]) -> Result<String, String> {
        let environment =
            self.template.as_ref().ok_or("this model has no chat template; use /v1/completions")?;
        let template = environment.get_template("chat").map_err(|e| e.to_string())?;
        let context = minijinja::context! {
            messages => Value::from(minijinja::value::Serde(messages.to_vec())),
            add_generation_prompt => true,
            bos_token => self.bos.as_deref().unwrap_or_default(),
            eos_token => self.eos.as_deref().unwrap_or_default(),
        };
        template.render(context).map_err(|e| e.detail().map_or_else(|| e.to_string(), str::to_owned))
    }
}

/// `chat_template.jinja`, or the field of `tokenizer_config.json` (one text, or a list with a `default`).
fn template_source(
    folder: &Path,
    config: &Settings,
) -> Result<Option<(std::path::PathBuf, String)>, ModelError> {
    let file = folder.join("chat_template.jinja");
    if file.exists() {
        let bytes = super::error::read(&file)?;
        let source = String::from_utf8(bytes).map_err(|e| ModelError::text(&file, e))?;
        return Ok(Some((file, source)));
    }
    let path = folder.join("tokenizer_config.json");
    let source = match &config.chat_template {
        None => None,
        Some(serde_json::Value::String(source)) => Some(source.clone()),
        Some(serde_json::Value::Array(named)) => named
            .iter()
            .find(|t| t["name"] == "default")
            .and_then(|t| t["template"].as_str())
            .map(str::to_owned),
        Some(_) => {
            return Err(ModelError::field(
                &path,
                "chat_template",
                "is neither a text nor a list of named ones",
            ));
        }
    };
    Ok(source.map(|source| (path, source)))
}

fn compile(path: &Path, source: String) -> Result<Environment<'static>, ModelError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(|e| ModelError::text(path, e))?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| strftime_now(&format));
    environment
        .add_template_owned("chat", source)
        .map_err(|e| ModelError::text(path, format!("chat_template: {e}")))?;
    Ok(environment)
}

/// The few date forms that published templates use.
fn strftime_now(format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (year, month, day) = civil(seconds / 86_400);
    let name = MONTHS[month as usize - 1];
    let text = format.replace("%Y", &year.to_string()).replace("%m", &format!("{month:02}"));
    text.replace("%d", &format!("{day:02}")).replace("%B", name).replace("%b", &name[..3])
}

/// Days since 1970-01-01 to year, month, day (Howard Hinnant, `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// Every id that any of the files calls an end of sequence.
fn stop_tokens(
    folder: &Path,
    defaults: &Defaults,
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

fn beyond(id: &str, vocab: u32) -> String {
    format!("{id} is no token of a vocabulary of {vocab}")
}

/// `ids` is null, an id, or a list of ids.
fn check_listed(path: &Path, field: &str, ids: &serde_json::Value, vocab: u32) -> Result<(), ModelError> {
    let within = |id: &&serde_json::Value| id.as_u64().is_some_and(|id| id < u64::from(vocab));
    let wrong = match ids {
        serde_json::Value::Null => None,
        serde_json::Value::Array(all) => all.iter().find(|id| !within(id)),
        one => Some(one).filter(|id| !within(id)),
    };
    match wrong {
        Some(id) => Err(ModelError::field(path, field, beyond(&id.to_string(), vocab))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_or_a_beginning_is_a_token_of_the_vocabulary() {
        let path = Path::new("config.json");
        let check = |ids: &str| check_listed(path, "eos_token_id", &serde_json::from_str(ids).unwrap(), 300);
        for good in ["null", "0", "299", "[]", "[1, 299]"] {
            check(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (bad, named) in
            [("300", "300"), ("[1, 300]", "300"), ("-1", "-1"), ("1.5", "1.5"), ("[[1]]", "[1]")]
        {
            let words = check(bad).unwrap_err().to_string();
            let expected = format!("config.json: eos_token_id: {named} is no token of a vocabulary of 300");
            assert_eq!(words, expected, "{bad}");
        }
    }

    #[test]
    fn dates_are_civil() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(19_782), (2024, 2, 29));
        assert_eq!(civil(20_513), (2026, 3, 1));
    }

    #[test]
    fn a_template_that_raises_answers_in_its_own_words() {
        let path = Path::new("tokenizer_config.json");
        let environment = compile(path, "{{ raise_exception('roles must alternate') }}".into()).unwrap();
        let error = environment.get_template("chat").unwrap().render(()).unwrap_err();
        assert_eq!(error.detail(), Some("roles must alternate"));
    }
}
