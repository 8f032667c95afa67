//! Finds the chat template, and renders it like transformers.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};

use super::ChatMessage;
use super::json::tojson;
use super::tokenizer_config::TokenizerConfig;
use crate::model::error::read;

/// Chat template of a model folder.
#[derive(Debug)]
pub enum ChatTemplate {
    /// The model has no template.
    Absent,
    /// The template cannot be read. Holds the file and the problem.
    Unreadable(String),
    /// The template is ready.
    Ready(Box<Environment<'static>>),
}

/// Inputs of a template besides the messages.
#[derive(Clone, Copy, Debug)]
pub struct RenderOptions<'a> {
    /// Whether the prompt ends with the start of the assistant's message.
    pub add_generation_prompt: bool,
    /// Texts of tokens by their names.
    pub tokens: &'a BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Opens `chat_template.jinja`, or the field of `tokenizer_config.json` (one text, or a list with a `default`).
    pub fn open(folder: &Path, settings: &TokenizerConfig) -> ChatTemplate {
        let name = "chat_template.jinja";
        let file = folder.join(name);
        let (file, source) = match file.exists() {
            true => (name, read(&file).map_err(|e| e.to_string()).and_then(utf8).map(Some)),
            false => {
                ("tokenizer_config.json: chat_template", template_source(settings.chat_template.as_ref()))
            }
        };
        let compiled = source
            .and_then(|source| source.map(|source| compile(source).map_err(|e| e.to_string())).transpose());
        match compiled {
            Ok(Some(environment)) => ChatTemplate::Ready(Box::new(environment)),
            Ok(None) => ChatTemplate::Absent,
            Err(problem) => ChatTemplate::Unreadable(format!("{file}: {problem}")),
        }
    }

    /// Renders the prompt of `messages`.
    ///
    /// # Errors
    /// The template's own message for an input that it refuses, the reason why it cannot be read, or that there is
    /// none.
    pub fn render(&self, messages: &[ChatMessage], given: RenderOptions<'_>) -> Result<String, String> {
        let environment = match self {
            ChatTemplate::Ready(environment) => environment,
            ChatTemplate::Absent => return Err("this model has no chat template; use /v1/completions".into()),
            ChatTemplate::Unreadable(problem) => {
                return Err(format!("the chat template cannot be used: {problem}; use /v1/completions"));
            }
        };
        let rendered = match render(environment, messages.iter().map(ChatMessage::value), given) {
            // Many templates concatenate texts and do not handle a message without content. As in vLLM, the content is
            // empty then.
            Err(_) if messages.iter().any(ChatMessage::lacks_content) => {
                render(environment, messages.iter().map(ChatMessage::with_some_content), given)
            }
            rendered => rendered,
        };
        rendered.map_err(|e| e.detail().map_or_else(|| e.to_string(), str::to_owned))
    }
}

fn render(
    environment: &Environment<'_>,
    messages: impl Iterator<Item = Value>,
    given: RenderOptions<'_>,
) -> Result<String, Error> {
    let tokens = given.tokens.iter().map(|(name, text)| (name.as_str(), Value::from(text.as_str())));
    // Many templates use both tokens even if the model does not have them.
    let ends = ["bos_token", "eos_token"].map(|name| (name, Value::from("")));
    let rest = [
        ("messages", Value::from(messages.collect::<Vec<_>>())),
        ("add_generation_prompt", Value::from(given.add_generation_prompt)),
    ];
    let context: BTreeMap<_, _> = ends.into_iter().chain(tokens).chain(rest).collect();
    environment.get_template("chat")?.render(context)
}

fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

fn template_source(field: Option<&serde_json::Value>) -> Result<Option<String>, String> {
    match field {
        None => Ok(None),
        Some(serde_json::Value::String(source)) => Ok(Some(source.clone())),
        Some(serde_json::Value::Array(named)) => {
            let default = named.iter().find(|t| t["name"] == "default");
            Ok(default.and_then(|t| t["template"].as_str()).map(str::to_owned))
        }
        Some(_) => Err("must be a string or a list of named templates".into()),
    }
}

fn compile(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| strftime_now(&format));
    environment.add_filter("tojson", tojson);
    environment.add_template_owned("chat", strip_generation_tags(&source))?;
    Ok(environment)
}

/// Replaces `{% generation %}`, which marks an assistant's text for training, by a block with its own scope, as
/// transformers does.
fn strip_generation_tags(source: &str) -> String {
    let mut tags = source.split("{%");
    let before = tags.next().unwrap_or_default().to_owned();
    tags.fold(before, |before, tag| before + "{%" + &rename_tag(tag))
}

/// Renames a tag at the start of `tag`, which begins after the tag's brace.
fn rename_tag(tag: &str) -> String {
    let (space, sign) = (char::is_whitespace, |c: char| matches!(c, '-' | '+'));
    let is_begun = |head: &str| head.trim_start_matches(sign).trim_matches(space).is_empty();
    let is_ended = |rest: &str| rest.trim_start_matches(space).trim_start_matches(sign).starts_with("%}");
    let renamed =
        [("endgeneration", "endwith"), ("generation", "with")].into_iter().find_map(|(mark, block)| {
            let (head, rest) = tag.split_once(mark)?;
            (is_begun(head) && is_ended(rest)).then(|| format!("{head}{block}{rest}"))
        });
    renamed.unwrap_or_else(|| tag.to_owned())
}

/// Formats the current date in the few forms that published templates use.
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
    let (year, month, day) = civil_from_days(seconds / 86_400);
    let name = MONTHS[month as usize - 1];
    let text = format.replace("%Y", &year.to_string()).replace("%m", &format!("{month:02}"));
    text.replace("%d", &format!("{day:02}")).replace("%B", name).replace("%b", &name[..3])
}

/// Converts days since 1970-01-01 to year, month, day (Howard Hinnant, `civil_from_days`).
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(19_782), (2024, 2, 29));
        assert_eq!(civil_from_days(20_513), (2026, 3, 1));
    }

    #[test]
    fn raised_exception_has_template_message() {
        let environment = compile("{{ raise_exception('roles must alternate') }}".into()).unwrap();
        let error = environment.get_template("chat").unwrap().render(()).unwrap_err();
        assert_eq!(error.detail(), Some("roles must alternate"));
    }
}
