//! A chat message, as a template reads it.

use minijinja::Value;
use minijinja::value::ValueKind;
use serde::{Deserialize, Deserializer, de};

/// A chat message, with its fields in their original order.
#[derive(Clone, Debug)]
pub struct ChatMessage(Value);

impl<'de> Deserialize<'de> for ChatMessage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        match value.kind() {
            ValueKind::Map => Ok(ChatMessage(value)),
            _ => Err(de::Error::custom("a message must be an object")),
        }
    }
}

impl ChatMessage {
    /// Returns the value for a template.
    pub(super) fn value(&self) -> Value {
        self.0.clone()
    }

    /// Whether `content` is null or absent.
    pub(super) fn lacks_content(&self) -> bool {
        self.0.get_attr("content").is_ok_and(|content| content.is_none() || content.is_undefined())
    }

    /// Like [`ChatMessage::value`], with an empty text if there is no content.
    pub(super) fn with_some_content(&self) -> Value {
        if self.lacks_content() { self.with_content("").value() } else { self.value() }
    }

    /// Returns the message with `text` as `content`.
    #[must_use]
    pub fn with_content(&self, text: &str) -> ChatMessage {
        ChatMessage(with(&self.0, "content", Some(text.into())))
    }

    /// Returns the message without `tool_calls`.
    #[must_use]
    pub fn without_tool_calls(&self) -> ChatMessage {
        ChatMessage(with(&self.0, "tool_calls", None))
    }

    /// Returns the message with the parsed arguments of its tool calls. OpenAI's API sends them as a JSON text, and
    /// chat templates read the parsed value. An empty or absent text is an empty object.
    ///
    /// # Errors
    /// Names the call whose arguments are not JSON.
    pub fn with_arguments_read(&self) -> Result<ChatMessage, String> {
        let calls = items(&self.0, "tool_calls");
        let read = calls.iter().enumerate().map(|(index, call)| {
            read_arguments(call).map_err(|error| format!("tool_calls[{index}]: `arguments`: {error}"))
        });
        let read = read.collect::<Result<Vec<_>, _>>()?;
        Ok(ChatMessage(with(&self.0, "tool_calls", Some(Value::from(read)))))
    }
}

fn items(map: &Value, key: &str) -> Vec<Value> {
    map.get_attr(key).and_then(|list| list.try_iter().map(Iterator::collect)).unwrap_or_default()
}

fn read_arguments(call: &Value) -> Result<Value, serde_json::Error> {
    let Ok(function) = call.get_attr("function") else { return Ok(call.clone()) };
    if function.kind() != ValueKind::Map {
        return Ok(call.clone());
    }
    let arguments = function.get_attr("arguments").unwrap_or_default();
    let read = match arguments.as_str() {
        Some(text) if !text.is_empty() => serde_json::from_str(text)?,
        None if !arguments.is_undefined() && !arguments.is_none() => arguments,
        _ => Value::from_pairs(std::iter::empty::<(Value, Value)>()),
    };
    Ok(with(call, "function", Some(with(&function, "arguments", Some(read)))))
}

/// Returns the map with `value` at `key`, appended if the key is new, or without the key for `None`.
fn with(map: &Value, key: &str, value: Option<Value>) -> Value {
    let keys: Vec<Value> = map.try_iter().map(Iterator::collect).unwrap_or_default();
    let is_new = value.is_some() && keys.iter().all(|known| known.as_str() != Some(key));
    let new = is_new.then(|| Value::from(key));
    let pairs = keys.into_iter().chain(new).filter_map(|known| match known.as_str() == Some(key) {
        true => value.clone().map(|value| (known, value)),
        false => map.get_item(&known).ok().map(|value| (known, value)),
    });
    Value::from_pairs(pairs)
}
