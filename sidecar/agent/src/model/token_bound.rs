//! How few tokens a text can have, known without tokenising it: a text that cannot fit need not be tokenised to be refused.
//!
//! There are two bounds, and the better one counts. Neither refuses what would fit.

mod byte_bound;
mod char_bound;
mod normalised_char;
mod vocab_bound;

use tokenizers::Tokenizer;

use self::char_bound::CharBound;

/// Fewest tokens of a text; without a bound, none.
#[derive(Debug, Default)]
pub struct TokenBound {
    bytes: Option<byte_bound::ByteBound>,
    characters: Option<CharBound>,
}

impl TokenBound {
    /// The bounds of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> TokenBound {
        match tokenizer.get_truncation() {
            Some(_) => TokenBound::default(),
            None => {
                TokenBound { bytes: byte_bound::byte_bound(tokenizer), characters: CharBound::of(tokenizer) }
            }
        }
    }

    /// The tokens that `text` has at least. It may stop counting at `enough`.
    pub fn min_tokens(&self, text: &str, enough: u64) -> u64 {
        let bytes = self.bytes.map_or(0, |bound| bound.min_tokens(text));
        let characters = self.characters.as_ref().filter(|_| bytes < enough);
        bytes.max(characters.map_or(0, |bound| bound.min_tokens(text, enough)))
    }
}
