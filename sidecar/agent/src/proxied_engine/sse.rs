//! Splits an engine's stream into server-sent events and reads what pacing and metrics need; events are passed on
//! unchanged.

use std::borrow::Cow;

use axum::body::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Largest event, bytes; fits the log-probabilities of a long prompt.
const MAX_EVENT_BYTES: usize = 16 << 20;
/// Choices of one response that are paced separately; higher indices share the last lane.
const MAX_LANES: u32 = 128;

/// Splits bytes into events.
#[derive(Debug, Default)]
pub struct SseDecoder {
    bytes: Vec<u8>,
    /// Bytes already searched.
    scanned: usize,
    /// Start of the current line.
    line_start: usize,
}

/// An event exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the engine has more than {MAX_EVENT_BYTES} bytes")]
pub struct EventTooLong;

impl SseDecoder {
    /// Adds bytes.
    ///
    /// # Errors
    /// The current event exceeds the limit.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), EventTooLong> {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > MAX_EVENT_BYTES + bytes.len() { Err(EventTooLong) } else { Ok(()) }
    }

    /// Returns the next complete event, including its final empty line.
    pub fn next_event(&mut self) -> Option<Bytes> {
        while let Some(&byte) = self.bytes.get(self.scanned) {
            self.scanned += 1;
            if byte != b'\n' {
                continue;
            }
            let line = &self.bytes[self.line_start..self.scanned];
            let empty = matches!(line, b"\n" | b"\r\n");
            self.line_start = self.scanned;
            if empty {
                return Some(self.take_event());
            }
        }
        None
    }

    /// Returns the rest at the end of the stream: an event without its empty line, or nothing.
    pub fn take_remainder(&mut self) -> Option<Bytes> {
        self.scanned = self.bytes.len();
        (!self.bytes.is_empty()).then(|| self.take_event())
    }

    fn take_event(&mut self) -> Bytes {
        let event = self.bytes.drain(..self.scanned).collect::<Vec<_>>();
        (self.scanned, self.line_start) = (0, 0);
        event.into()
    }
}

/// Information of an event for pacing and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseInfo {
    /// Lane of the choice that gets text from this event; `None` = no choice does.
    pub lane: Option<u32>,
    /// Choices that end with this event, and their finish reasons.
    pub finish_reasons: Vec<(u32, String)>,
    /// Tokens of the prompt and of the response.
    pub usage: Option<Usage>,
    /// Whether the event carries only the usage.
    pub is_usage_only: bool,
    /// Whether this is the last event.
    pub is_done: bool,
    /// Whether the engine failed the request.
    pub is_failed: bool,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of all prompts.
    pub prompt_tokens: u32,
    /// Generated tokens of all choices.
    pub completion_tokens: u32,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    reasoning: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<Vec<IgnoredAny>>,
}

impl Choice<'_> {
    fn lane(&self) -> u32 {
        self.index.min(MAX_LANES - 1)
    }

    fn has_text(&self) -> bool {
        let some = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
        let delta = self.delta.as_ref().is_some_and(|delta| {
            let called = delta.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
            called || some(&delta.content) || some(&delta.reasoning_content) || some(&delta.reasoning)
        });
        some(&self.text) || delta
    }
}

impl SseInfo {
    /// Reads an event. An event that does not parse has no information and is passed on as well.
    pub fn parse(event: &[u8]) -> SseInfo {
        let data = data(event);
        if data.as_ref() == b"[DONE]" {
            return SseInfo { is_done: true, ..SseInfo::default() };
        }
        serde_json::from_slice(&data).map(SseInfo::from_chunk).unwrap_or_default()
    }

    fn from_chunk(chunk: Chunk<'_>) -> SseInfo {
        let choices = chunk.choices.unwrap_or_default();
        let ended = |choice: &Choice<'_>| {
            choice.finish_reason.as_ref().map(|reason| (choice.lane(), reason.clone().into_owned()))
        };
        SseInfo {
            lane: choices.iter().find(|choice| choice.has_text()).map(Choice::lane),
            finish_reasons: choices.iter().filter_map(ended).collect(),
            usage: chunk.usage,
            is_usage_only: choices.is_empty() && chunk.usage.is_some(),
            is_done: false,
            is_failed: chunk.error.is_some(),
        }
    }
}

/// Returns the data of an event: its data lines, joined. The usual single line is borrowed without a copy.
fn data(event: &[u8]) -> Cow<'_, [u8]> {
    let mut lines = event.split(|byte| *byte == b'\n').filter_map(data_line);
    let first = lines.next().unwrap_or_default();
    lines.fold(Cow::Borrowed(first), |text, line| Cow::Owned([&text, line].join(&b'\n')))
}

fn data_line(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line).strip_prefix(b"data:")?;
    Some(line.strip_prefix(b" ").unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<Bytes> {
        let (mut splitter, mut events) = (SseDecoder::default(), Vec::new());
        for piece in pieces {
            splitter.push(piece).unwrap();
            events.extend(std::iter::from_fn(|| splitter.next_event()));
        }
        events.extend(splitter.take_remainder());
        events
    }

    #[test]
    fn events_do_not_depend_on_read_boundaries() {
        let text = b"data: a\n\n: ping\r\n\r\ndata: b\ndata: c\n\nrest";
        let whole = split(&[text]);
        assert_eq!(whole, [&b"data: a\n\n"[..], b": ping\r\n\r\n", b"data: b\ndata: c\n\n", b"rest"]);
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(split(&bytes), whole);
        for at in 0..text.len() {
            assert_eq!(split(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
    }

    #[test]
    fn unterminated_event_is_an_error() {
        let mut splitter = SseDecoder::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..32).find_map(|_| splitter.push(&piece).err());
        assert_eq!(refused, Some(EventTooLong));
    }

    #[test]
    fn events_report_text_finish_usage_and_errors() {
        let info = |json: &str| SseInfo::parse(format!("data: {json}\n\n").as_bytes());
        assert_eq!(info(r#"{"choices":[{"index":2,"text":"a"}]}"#).lane, Some(2));
        assert_eq!(info(r#"{"choices":[{"index":0,"text":""}]}"#).lane, None);
        assert_eq!(info(r#"{"choices":[{"index":1,"delta":{"content":"\n"}}]}"#).lane, Some(1));
        assert_eq!(info(r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#).lane, None);
        assert_eq!(info(r#"{"choices":[{"index":0,"delta":{"tool_calls":[{}]}}]}"#).lane, Some(0));
        assert_eq!(info(r#"{"choices":[{"index":4000000000,"text":"a"}]}"#).lane, Some(MAX_LANES - 1));
        let end = info(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"length"}],"usage":null}"#);
        assert_eq!(end.finish_reasons, [(0, "length".to_owned())]);
        assert!(!end.is_usage_only && end.usage.is_none());
        let usage =
            info(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}"#);
        assert!(usage.is_usage_only);
        assert_eq!(usage.usage, Some(Usage { prompt_tokens: 3, completion_tokens: 4 }));
        assert!(info(r#"{"error":{"message":"m"}}"#).is_failed);
        assert!(info("[DONE]").is_done);
        for nothing in ["{", "[]", "3", "\"x\"", r#"{"choices":3}"#] {
            assert_eq!(info(nothing), SseInfo::default(), "{nothing}");
        }
    }

    #[test]
    fn data_lines_are_parsed_in_all_sse_forms() {
        let json = r#"{"choices":[{"index":0,"text":"a"}]}"#;
        let forms = [
            format!("data: {json}\n\n"),
            format!("data:{json}\n\n"),
            format!("data: {json}\r\n\r\n"),
            format!("event: chunk\ndata: {json}\n\n"),
            ": hello\ndata: {\"choices\":\ndata: [{\"index\":0,\"text\":\"a\"}]}\n\n".to_owned(),
            format!("data: {json}"),
        ];
        for form in forms {
            assert_eq!(SseInfo::parse(form.as_bytes()).lane, Some(0), "{form:?}");
        }
        assert_eq!(SseInfo::parse(b": ping\n\n"), SseInfo::default());
    }
}
