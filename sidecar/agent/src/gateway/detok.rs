//! Tokens to text as they come: whole characters only, and never a part of a stop string.

use std::sync::Arc;

use crate::model::text::Text;

/// A character has at most four bytes and so at most four tokens. Text that still looks incomplete after this many is
/// no text, and is shown as the decoder gives it rather than decoded again and again.
const INCOMPLETE_TOKENS_MAX: usize = 16;

/// Incremental decoding of one answer.
///
/// The text of a token may depend on the tokens before it, so a window of recent tokens is decoded twice, with and
/// without the newest; the difference is new. It is held back while it ends in an incomplete character.
#[derive(Debug)]
pub struct Detokenizer {
    text: Arc<Text>,
    skip_special: bool,
    ids: Vec<u32>,
    /// Tokens before this one are only context for the decoder.
    window: usize,
    /// Tokens before this one have been shown.
    shown: usize,
}

impl Detokenizer {
    /// An empty answer.
    pub fn new(text: Arc<Text>, skip_special: bool) -> Self {
        Detokenizer { text, skip_special, ids: Vec::new(), window: 0, shown: 0 }
    }

    fn decode(&self, range: std::ops::Range<usize>) -> String {
        // Ids come from the engine, which bounds them by the vocabulary; one that the tokenizer does not know has no text.
        self.text.tokenizer().decode(&self.ids[range], self.skip_special).unwrap_or_default()
    }

    /// The text that this token completes; empty while a character is incomplete.
    pub fn push(&mut self, id: u32) -> String {
        self.ids.push(id);
        let before = self.decode(self.window..self.shown);
        let after = self.decode(self.window..self.ids.len());
        let incomplete = after.len() <= before.len() || after.ends_with('\u{fffd}');
        if incomplete && self.ids.len() - self.shown < INCOMPLETE_TOKENS_MAX {
            return String::new();
        }
        self.window = self.shown;
        self.shown = self.ids.len();
        after.get(floor_boundary(&after, before.len())..).unwrap_or_default().to_owned()
    }

    /// What is held back, as it is: the answer ended inside a character.
    pub fn finish(&mut self) -> String {
        let before = self.decode(self.window..self.shown);
        let after = self.decode(self.window..self.ids.len());
        self.shown = self.ids.len();
        after.get(floor_boundary(&after, before.len())..).unwrap_or_default().to_owned()
    }
}

fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0)
}

/// Finds stop strings across pieces.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// Bytes of `held` that came too early: no stop string may end in them.
    early: usize,
}

/// What may be shown of a piece.
#[derive(Debug, PartialEq, Eq)]
pub struct Shown {
    /// Text that no stop string can begin in any more.
    pub text: String,
    /// A stop string was found; nothing after it is shown.
    pub stopped: bool,
}

impl StopFilter {
    /// Looks for any of `stops`, none empty.
    pub fn new(stops: Vec<String>) -> Self {
        StopFilter { stops, held: String::new(), early: 0 }
    }

    /// Takes a piece.
    pub fn push(&mut self, piece: &str) -> Shown {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.find(stop)).min() {
            self.held.truncate(at);
            return Shown { text: std::mem::take(&mut self.held), stopped: true };
        }
        Shown { text: self.release(), stopped: false }
    }

    /// Takes a piece that came before the answer may end: a stop string may begin in it, and not end. Returns what may
    /// be shown.
    pub fn pass(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        self.early = self.held.len();
        self.release()
    }

    /// Where `stop` first stands such that it ends behind what came too early.
    fn find(&self, stop: &str) -> Option<usize> {
        let from = (self.early + 1).saturating_sub(stop.len());
        let from = (from..=self.held.len()).find(|at| self.held.is_char_boundary(*at))?;
        self.held[from..].find(stop).map(|at| from + at)
    }

    /// Everything but what may be the beginning of a stop string.
    fn release(&mut self) -> String {
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let released = self.held.len() - keep;
        self.early = self.early.saturating_sub(released);
        let rest = self.held.split_off(released);
        std::mem::replace(&mut self.held, rest)
    }

    /// What is held back: the answer ended before the stop string was complete.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
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
            if shown.stopped {
                return (out, true);
            }
        }
        (out + &filter.finish(), false)
    }

    #[test]
    fn a_stop_string_across_pieces_is_never_shown() {
        assert_eq!(show(&["</end>"], &["abc<", "/e", "nd", ">xyz"]), ("abc".into(), true));
    }

    #[test]
    fn what_only_begins_like_a_stop_string_is_shown_in_the_end() {
        assert_eq!(show(&["</end>"], &["a<", "/e", "x", " <"]), ("a</ex <".into(), false));
    }

    #[test]
    fn the_earliest_of_several_stop_strings_wins() {
        assert_eq!(show(&["world", "lo"], &["hel", "lo wor", "ld"]), ("hel".into(), true));
    }

    #[test]
    fn a_stop_string_that_ends_too_early_is_text_and_one_that_only_begins_there_stops() {
        let early = |stops: &[&str], early: &str, piece: &str| {
            let mut filter = StopFilter::new(stops.iter().map(|s| (*s).to_owned()).collect());
            let passed = filter.pass(early);
            let shown = filter.push(piece);
            (passed + &shown.text, shown.stopped)
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
    fn stop_strings_may_hold_wide_characters() {
        assert_eq!(show(&["é→"], &["caf", "é", "→ "]), ("caf".into(), true));
        assert_eq!(show(&["é→"], &["caf", "é", "!"]), ("café!".into(), false));
    }
}
