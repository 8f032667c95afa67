//! Bound by the characters of a text: the minimum part of a token that each takes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokenizers::normalizer::NormalizedString;
use tokenizers::{Normalizer, Tokenizer};

use super::normalised_char::{NormalisedChar, TextPipeline, is_plain};
use super::vocab_bound::{TOKEN, VocabBound};

/// Characters between checks for `enough` tokens.
const STRIDE: usize = 1024;

/// The character bound: a text has at least as many tokens as the weights of its characters sum to, or, if a word may
/// be one token, as its words require.
#[derive(Debug)]
pub struct CharBound {
    steps: TextPipeline,
    pieces: VocabBound,
    ascii: Vec<CharInfo>,
    /// Maximum number of words that an added token covers.
    words_per_token: u64,
}

/// Weight and role of a character.
#[derive(Clone, Copy, Debug)]
struct CharInfo {
    /// Minimum part of a token, in units of 1/[`TOKEN`].
    weight: u64,
    role: CharRole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CharRole {
    Word,
    Separator,
    Uncertain,
}

impl CharRole {
    fn of(image: &NormalisedChar) -> CharRole {
        match image {
            NormalisedChar::Kept(_) => CharRole::Word,
            NormalisedChar::Separator => CharRole::Separator,
            NormalisedChar::Uncertain => CharRole::Uncertain,
        }
    }
}

/// Accumulates characters in their order.
#[derive(Default)]
struct TokenCounter {
    weight: u64,
    words: u64,
    /// Whether the next character belongs to the last word.
    in_word: bool,
}

impl TokenCounter {
    fn add(&mut self, seen: CharInfo) {
        self.weight += seen.weight;
        match seen.role {
            CharRole::Word => {
                self.words += u64::from(!self.in_word);
                self.in_word = true;
            }
            CharRole::Separator => self.in_word = false,
            CharRole::Uncertain => {}
        }
    }
}

impl CharBound {
    /// Returns the bound of `tokenizer`. `None` if it bounds no text.
    pub fn of(tokenizer: &Tokenizer) -> Option<CharBound> {
        let (steps, pieces) = (TextPipeline::of(tokenizer)?, VocabBound::of(tokenizer.get_model()));
        let mut bound = CharBound { steps, pieces, ascii: Vec::new(), words_per_token: 1 };
        for token in tokenizer.get_added_tokens_decoder().values() {
            let text: Vec<_> = token.content.chars().map(|c| bound.steps.normalise_char(c)).collect();
            let mut normal = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer().filter(|_| token.normalized) {
                normalizer.normalize(&mut normal).ok()?;
            }
            let normal: Vec<_> = normal.get().chars().map(|c| bound.steps.split_normal_char(c)).collect();
            [text, normal].into_iter().for_each(|images| bound.include_added_token(images));
        }
        bound.ascii = (0..128_u8).map(|c| bound.char_info(bound.steps.normalise_char(c.into()))).collect();
        let counts = |seen: &CharInfo| seen.weight > 0 || seen.role == CharRole::Separator;
        bound.ascii.iter().any(counts).then_some(bound)
    }

    /// Includes an added token that covers all of `images`.
    fn include_added_token(&mut self, images: Vec<NormalisedChar>) {
        let mut counting = TokenCounter::default();
        let mut whole = String::new();
        for image in images {
            counting.add(CharInfo { weight: 0, role: CharRole::of(&image) });
            if let NormalisedChar::Kept(image) = image {
                whole.push_str(&image);
            }
        }
        self.words_per_token = self.words_per_token.max(counting.words);
        self.pieces.include_token(&whole);
    }

    fn char_info(&self, image: NormalisedChar) -> CharInfo {
        let place = CharRole::of(&image);
        let weight = match (&self.pieces, image) {
            (VocabBound::Characters(pieces), NormalisedChar::Kept(image)) => {
                image.chars().map(|c| pieces.weight(c)).sum()
            }
            _ => 0,
        };
        CharInfo { weight, role: place }
    }

    /// Returns the minimum number of tokens of `text`, or at least `enough`.
    pub fn min_tokens(&self, text: &str, enough: u64) -> u64 {
        let mut others = HashMap::new();
        let mut counting = TokenCounter::default();
        let (mut before, mut characters, mut left) = (true, text.chars().peekable(), STRIDE);
        while let Some(c) = characters.next() {
            let plain = is_plain(c);
            let beside = before && plain && characters.peek().is_none_or(|next| is_plain(*next));
            before = plain;
            if beside || !self.steps.is_plain_only() {
                counting.add(self.cached_char_info(c, &mut others));
            }
            left -= 1;
            if left == 0 {
                left = STRIDE;
                if self.tokens(&counting) >= enough {
                    break;
                }
            }
        }
        self.tokens(&counting)
    }

    fn cached_char_info(&self, c: char, others: &mut HashMap<char, CharInfo>) -> CharInfo {
        match self.ascii.get(c as usize) {
            Some(seen) => *seen,
            None => match others.entry(c) {
                Entry::Occupied(seen) => *seen.get(),
                Entry::Vacant(place) => *place.insert(self.char_info(self.steps.normalise_char(c))),
            },
        }
    }

    fn tokens(&self, sum: &TokenCounter) -> u64 {
        match self.pieces {
            VocabBound::Words => sum.words.div_ceil(self.words_per_token),
            VocabBound::Characters(_) => sum.weight.div_ceil(TOKEN),
        }
    }
}
