//! Validates the messages of a chat and converts them for the chat template.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::values;
use crate::model::text::ChatMessage;

/// Returns the messages of `body`, with their fields in the order of the body. `messages` are the same messages,
/// parsed.
///
/// # Errors 400 that names the message and its fault.
pub fn parse_messages(body: &[u8], messages: &[Map<String, Value>]) -> Result<Vec<ChatMessage>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid_param("messages", "at least one message is needed"));
    }
    let in_order =
        ordered_messages(body).map_err(|error| ApiError::invalid_param("messages", error.to_string()))?;
    let each = messages.iter().zip(in_order).enumerate();
    each.map(|(index, (message, in_order))| {
        validate_message(message, in_order)
            .map_err(|what| ApiError::invalid_param("messages", format!("messages[{index}]: {what}")))
    })
    .collect()
}

/// Parses the messages again, because `serde_json` maps do not keep the order of fields.
fn ordered_messages(body: &[u8]) -> Result<Vec<ChatMessage>, serde_json::Error> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body)?;
    fields.get("messages").map_or(Ok(Vec::new()), |messages| serde_json::from_str(messages.get()))
}

fn validate_message(message: &Map<String, Value>, in_order: ChatMessage) -> Result<ChatMessage, String> {
    if !message.get("role").is_some_and(Value::is_string) {
        return Err("`role` must be a string".into());
    }
    let (in_order, calls) = tool_calls(message, in_order)?;
    match message.get("content") {
        Some(Value::String(_)) => Ok(in_order),
        Some(Value::Array(parts)) => Ok(in_order.with_content(&join_text_parts(parts)?)),
        // OpenAI's reference: the content is optional with tool calls. The template receives it unchanged.
        None | Some(Value::Null) if calls => Ok(in_order),
        _ => Err("`content` must be a string or an array of text parts".into()),
    }
}

/// Returns the message as templates read it, and whether the assistant calls tools in it.
fn tool_calls(message: &Map<String, Value>, in_order: ChatMessage) -> Result<(ChatMessage, bool), String> {
    let assistant = message.get("role").is_some_and(|role| role == "assistant");
    let function_call = message.get("function_call").is_some_and(Value::is_object);
    match message.get("tool_calls") {
        None => Ok((in_order, assistant && function_call)),
        // Some clients serialize every field of their types, absent ones as null.
        Some(Value::Null) => Ok((in_order.without_tool_calls(), assistant && function_call)),
        Some(Value::Array(calls)) if calls.is_empty() => {
            Ok((in_order.without_tool_calls(), assistant && function_call))
        }
        Some(Value::Array(calls)) if calls.iter().all(Value::is_object) => {
            Ok((in_order.with_arguments_read()?, assistant))
        }
        Some(_) => Err("`tool_calls` must be an array of objects".into()),
    }
}

/// Joins text parts with line breaks, as vLLM does; refuses other parts.
fn join_text_parts(parts: &[Value]) -> Result<String, String> {
    let texts = parts.iter().enumerate().map(|(place, part)| match part["type"].as_str() {
        _ if !part.is_object() => Err(format!(
            "`content[{place}]` must be an object such as {{\"type\": \"text\", \"text\": \"...\"}}, not {}",
            values::display_value(part)
        )),
        Some("text") => part["text"].as_str().ok_or_else(|| "a text part without `text`".to_owned()),
        Some(other) => Err(format!("parts of type `{other}` are not supported")),
        None => Err(format!("`content[{place}]` needs a string `type`")),
    });
    Ok(texts.collect::<Result<Vec<_>, _>>()?.join("\n"))
}
