//! Incremental decoding of tokens to text: releases whole characters only and no part of a stop string.

use std::sync::Arc;

use crate::model::text::Text;

/// A character has at most four bytes and so at most four tokens. Text that is still incomplete after this many tokens
/// is not valid text; it is released as decoded, which bounds the repeated decoding.
const INCOMPLETE_TOKENS_MAX: usize = 16;
/// Character with which decoders replace an invalid sequence.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Which tokens of a response are shown, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Hide special tokens.
    pub skip_special: bool,
    /// Keep the space that the decoder puts between two consecutive added tokens.
    pub spaces_between_special: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { skip_special: true, spaces_between_special: true }
    }
}

/// Incremental decoding of one response.
///
/// The text of a token may depend on the tokens before it. So the last tokens are decoded together with the newest one,
/// and the text beyond their own is new. Text that ends in an incomplete character is held back. Decoding starts with
/// the last tokens of the prompt, because SentencePiece decoders drop the first space of what they decode.
#[derive(Debug)]
pub struct Detokenizer {
    text: Arc<Text>,
    options: DecodeOptions,
    /// Tokens to decode with the next one.
    ids: Vec<u32>,
    /// Leading tokens of `ids` that were already shown or belong to the prompt.
    read_offset: usize,
    /// Text of these leading tokens.
    prefix: String,
    /// Whether the last token was an added one.
    after_added: bool,
}

impl Detokenizer {
    /// Starts an empty response to `prompt`.
    pub fn new(text: Arc<Text>, show: DecodeOptions, prompt: &[u32]) -> Self {
        let ids = prompt_tail(&text, show.skip_special, prompt);
        let mut detokenizer = Detokenizer {
            text,
            options: show,
            read_offset: ids.len(),
            ids,
            prefix: String::new(),
            after_added: false,
        };
        // A character that begins in the prompt and ends in the response belongs to the response.
        detokenizer.prefix = detokenizer.trim_incomplete(detokenizer.decode(), 0);
        detokenizer
    }

    fn decode(&self) -> String {
        // The engine bounds ids by the vocabulary. An id that the tokenizer does not have decodes to no text.
        self.text.tokenizer().decode(&self.ids, self.options.skip_special).unwrap_or_default()
    }

    /// Returns the exact bytes of `ids[from..]`.
    fn exact_bytes(&self, from: usize) -> Vec<u8> {
        self.ids[from..].iter().filter_map(|id| self.text.bytes_of(*id)).flatten().collect()
    }

    /// Returns the text that this token completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        let added = self.text.added_token_text(id).map(str::to_owned);
        let behind_added = std::mem::replace(&mut self.after_added, added.is_some());
        if self.text.is_hidden(id, self.options.skip_special) {
            return String::new();
        }
        self.ids.push(id);
        let after = self.decode();
        let incomplete = after.len() <= self.prefix.len() || self.is_incomplete(&after, self.read_offset);
        if incomplete && self.ids.len() - self.read_offset < INCOMPLETE_TOKENS_MAX {
            return String::new();
        }
        let new = self.new_text(&after);
        self.ids.drain(..self.read_offset);
        self.read_offset = self.ids.len();
        self.prefix = self.decode();
        // As in vLLM, which considers all added tokens and not only special ones.
        let spaces = self.options.skip_special || self.options.spaces_between_special;
        added.filter(|_| behind_added && !spaces).unwrap_or(new)
    }

    /// Returns the held back text, without an incomplete character at its end.
    pub fn finish(&mut self) -> String {
        let rest = self.new_text(&self.decode());
        let rest = self.trim_incomplete(rest, self.read_offset);
        self.ids.clear();
        (self.read_offset, self.prefix) = (0, String::new());
        rest
    }

    /// Returns the part of `after`, the text of all `ids`, beyond the text already shown.
    fn new_text(&self, after: &str) -> String {
        match after.strip_prefix(&self.prefix) {
            Some(new) => new.to_owned(),
            // A byte-level decoder also breaks whole characters before an invalid one, so decode the exact bytes.
            None => String::from_utf8_lossy(&self.exact_bytes(self.read_offset)).into_owned(),
        }
    }

    /// Whether `text`, which ends with the tokens `ids[from..]`, ends in an invalid character. A real U+FFFD is valid.
    fn is_incomplete(&self, text: &str, from: usize) -> bool {
        let broken =
            || self.exact_bytes(from).utf8_chunks().last().is_some_and(|last| !last.invalid().is_empty());
        text.ends_with(REPLACEMENT) && broken()
    }

    fn trim_incomplete(&self, text: String, from: usize) -> String {
        match self.is_incomplete(&text, from) {
            true => text.trim_end_matches(REPLACEMENT).to_owned(),
            false => text,
        }
    }
}

/// Returns the end of `prompt` that affects the decoding of the next token: back to a token that begins with a whole
/// character. Hidden tokens are left out, because the decoder skips them.
fn prompt_tail(text: &Text, skip_special: bool, prompt: &[u32]) -> Vec<u32> {
    let begins = |id: u32| {
        text.bytes_of(id).is_some_and(|bytes| bytes.first().is_some_and(|byte| byte & 0xc0 != 0x80))
    };
    let mut ids = Vec::new();
    for id in prompt.iter().copied().rev().filter(|id| !text.is_hidden(*id, skip_special)) {
        ids.push(id);
        if begins(id) {
            break;
        }
    }
    ids.reverse();
    ids
}

/// Finds stop strings that may span several pieces of text.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// Leading bytes of `held` in which no stop string may end, because the response had not reached `min_tokens`.
    ineligible: usize,
}

/// The part of the text that can be shown.
#[derive(Debug, PartialEq, Eq)]
pub struct FilteredText {
    /// Text that no stop string can include.
    pub text: String,
    /// Whether a stop string was found. Text after it is not shown.
    pub is_stopped: bool,
}

impl StopFilter {
    /// Creates a filter for `stops`, none of which is empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopFilter { stops, held: String::new(), ineligible: 0 }
    }

    /// Adds a piece and returns the text to show.
    pub fn push(&mut self, piece: &str) -> FilteredText {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.find(stop)).min() {
            self.held.truncate(at);
            return FilteredText { text: std::mem::take(&mut self.held), is_stopped: true };
        }
        FilteredText { text: self.take_releasable(), is_stopped: false }
    }

    /// Adds a piece before the response may end: a stop string may begin in it but not end. Returns the text to show.
    pub fn push_without_stop(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        self.ineligible = self.held.len();
        self.take_releasable()
    }

    /// Returns the first position of `stop` at which it ends after the ineligible bytes.
    fn find(&self, stop: &str) -> Option<usize> {
        let from = (self.ineligible + 1).saturating_sub(stop.len());
        let from = (from..=self.held.len()).find(|at| self.held.is_char_boundary(*at))?;
        self.held[from..].find(stop).map(|at| from + at)
    }

    /// Returns the held text except an end that may begin a stop string.
    fn take_releasable(&mut self) -> String {
        let keep = self.stops.iter().map(|stop| partial_match_len(&self.held, stop)).max().unwrap_or(0);
        let released = self.held.len() - keep;
        self.ineligible = self.ineligible.saturating_sub(released);
        let rest = self.held.split_off(released);
        std::mem::replace(&mut self.held, rest)
    }

    /// Returns the held text, because the response ended before a stop string was complete.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Returns the length of the longest end of `text` that is a proper prefix of `stop`, bytes.
fn partial_match_len(text: &str, stop: &str) -> usize {
    let beginnings = stop.char_indices().map(|(i, _)| i).skip(1);
    beginnings.filter(|i| text.ends_with(&stop[..*i])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut filter = StopFilter::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let shown = filter.push(piece);
            out.push_str(&shown.text);
            if shown.is_stopped {
                return (out, true);
            }
        }
        (out + &filter.finish(), false)
    }

    #[test]
    fn stop_string_across_pieces_is_hidden() {
        assert_eq!(show(&["</end>"], &["abc<", "/e", "nd", ">xyz"]), ("abc".into(), true));
    }

    #[test]
    fn partial_stop_string_is_released() {
        assert_eq!(show(&["</end>"], &["a<", "/e", "x", " <"]), ("a</ex <".into(), false));
    }

    #[test]
    fn earliest_stop_string_wins() {
        assert_eq!(show(&["world", "lo"], &["hel", "lo wor", "ld"]), ("hel".into(), true));
    }

    #[test]
    fn stop_string_must_end_after_min_tokens() {
        let early = |stops: &[&str], early: &str, piece: &str| {
            let mut filter = StopFilter::new(stops.iter().map(|s| (*s).to_owned()).collect());
            let passed = filter.push_without_stop(early);
            let shown = filter.push(piece);
            (passed + &shown.text, shown.is_stopped)
        };
        assert_eq!(early(&["</s>"], "a</s>b<", "/s>c"), ("a</s>b".into(), true));
        assert_eq!(early(&["</s>"], "a</s>", "c"), ("a</s>c".into(), false));
        // "abc" is kept for the longer one; the shorter one ended in it, too early.
        assert_eq!(early(&["abcd", "bc"], "abc", "x"), ("abcx".into(), false));
        assert_eq!(early(&["abcd", "bc"], "abc", "bc"), ("abc".into(), true));
        assert_eq!(early(&["aa"], "aa", "a"), ("a".into(), true));
        assert_eq!(early(&["→é"], "é→", "éx"), ("é".into(), true));
    }

    #[test]
    fn stop_string_with_multibyte_characters_matches() {
        assert_eq!(show(&["é→"], &["caf", "é", "→ "]), ("caf".into(), true));
        assert_eq!(show(&["é→"], &["caf", "é", "!"]), ("café!".into(), false));
    }
}
