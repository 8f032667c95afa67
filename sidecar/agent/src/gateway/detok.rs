//! Tokens to text as they come: whole characters only, and never a part of a stop string.

use std::sync::Arc;

use crate::model::text::Text;

/// A character has at most four bytes and so at most four tokens. Text that still looks incomplete after this many is
/// no text, and is shown as the decoder gives it rather than decoded again and again.
const INCOMPLETE_TOKENS_MAX: usize = 16;
/// What decoders put in the place of a broken character.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Which tokens of an answer are shown, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Special tokens are not shown.
    pub skip_special: bool,
    /// An added token behind another has the space before it that the decoder puts there.
    pub spaces_between_special: bool,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        DecodeOptions { skip_special: true, spaces_between_special: true }
    }
}

/// Incremental decoding of one answer.
///
/// The text of a token may depend on the tokens before it, so the last tokens are decoded together with the newest; what
/// that adds to their own text is new. It is held back while it ends in an incomplete character. The first token comes
/// after those of the prompt: a decoder of SentencePiece models leaves out the first space of all that it decodes.
#[derive(Debug)]
pub struct Detokenizer {
    text: Arc<Text>,
    options: DecodeOptions,
    /// Tokens that are decoded with the next one.
    ids: Vec<u32>,
    /// Tokens of `ids` that have been shown, or are the prompt's.
    read_offset: usize,
    /// Their text.
    prefix: String,
    /// The last token was an added one.
    after_added: bool,
}

impl Detokenizer {
    /// An empty answer to `prompt`.
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
        // A character that begins in the prompt and ends in the answer is of the answer.
        detokenizer.prefix = detokenizer.trim_incomplete(detokenizer.decode(), 0);
        detokenizer
    }

    fn decode(&self) -> String {
        // Ids come from the engine, which bounds them by the vocabulary; one that the tokenizer does not know has no text.
        self.text.tokenizer().decode(&self.ids, self.options.skip_special).unwrap_or_default()
    }

    /// The exact bytes of the tokens from `from` on.
    fn exact_bytes(&self, from: usize) -> Vec<u8> {
        self.ids[from..].iter().filter_map(|id| self.text.bytes_of(*id)).flatten().collect()
    }

    /// The text that this token completes; empty while a character is incomplete.
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
        // As in vLLM, which looks at all added tokens and not at special ones alone.
        let spaces = self.options.skip_special || self.options.spaces_between_special;
        added.filter(|_| behind_added && !spaces).unwrap_or(new)
    }

    /// What is held back and is whole: of a character in which the answer ended, there is nothing.
    pub fn finish(&mut self) -> String {
        let rest = self.new_text(&self.decode());
        let rest = self.trim_incomplete(rest, self.read_offset);
        self.ids.clear();
        (self.read_offset, self.prefix) = (0, String::new());
        rest
    }

    /// What `after`, the text of all of `ids`, has more than the text that was shown.
    fn new_text(&self, after: &str) -> String {
        match after.strip_prefix(&self.prefix) {
            Some(new) => new.to_owned(),
            // A decoder of single bytes breaks the whole characters before a broken one.
            None => String::from_utf8_lossy(&self.exact_bytes(self.read_offset)).into_owned(),
        }
    }

    /// Whether `text`, of which the tokens from `from` on are the end, ends in a broken character. U+FFFD itself is none.
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

/// As much of the end of `prompt` as decides how the next token is decoded: back to a token that begins with a whole
/// character. Hidden ones are none to the decoder.
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

/// Finds stop strings across pieces.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// Bytes of `held` that came too early: no stop string may end in them.
    ineligible: usize,
}

/// What may be shown of a piece.
#[derive(Debug, PartialEq, Eq)]
pub struct FilteredText {
    /// Text that no stop string can begin in any more.
    pub text: String,
    /// A stop string was found; nothing after it is shown.
    pub is_stopped: bool,
}

impl StopFilter {
    /// Looks for any of `stops`, none empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopFilter { stops, held: String::new(), ineligible: 0 }
    }

    /// Takes a piece.
    pub fn push(&mut self, piece: &str) -> FilteredText {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.find(stop)).min() {
            self.held.truncate(at);
            return FilteredText { text: std::mem::take(&mut self.held), is_stopped: true };
        }
        FilteredText { text: self.take_releasable(), is_stopped: false }
    }

    /// Takes a piece that came before the answer may end: a stop string may begin in it, and not end. Returns what may
    /// be shown.
    pub fn push_without_stop(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        self.ineligible = self.held.len();
        self.take_releasable()
    }

    /// Where `stop` first stands such that it ends behind what came too early.
    fn find(&self, stop: &str) -> Option<usize> {
        let from = (self.ineligible + 1).saturating_sub(stop.len());
        let from = (from..=self.held.len()).find(|at| self.held.is_char_boundary(*at))?;
        self.held[from..].find(stop).map(|at| from + at)
    }

    /// Everything but what may be the beginning of a stop string.
    fn take_releasable(&mut self) -> String {
        let keep = self.stops.iter().map(|stop| partial_match_len(&self.held, stop)).max().unwrap_or(0);
        let released = self.held.len() - keep;
        self.ineligible = self.ineligible.saturating_sub(released);
        let rest = self.held.split_off(released);
        std::mem::replace(&mut self.held, rest)
    }

    /// What is held back: the answer ended before the stop string was complete.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `stop`.
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
