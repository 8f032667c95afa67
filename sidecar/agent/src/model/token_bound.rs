//! Lower bound on the tokens of a text without tokenizing it, so that a text that cannot fit is refused cheaply.
//!
//! There are two bounds, and the better one counts. Neither refuses a text that would fit.

mod byte_bound;
mod char_bound;
mod normalised_char;
mod vocab_bound;

use tokenizers::Tokenizer;

use self::char_bound::CharBound;

/// Lower bounds on the tokens of a text. Without a bound, zero.
#[derive(Debug, Default)]
pub struct TokenBound {
    bytes: Option<byte_bound::ByteBound>,
    characters: Option<CharBound>,
}

impl TokenBound {
    /// Returns the bounds of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> TokenBound {
        match tokenizer.get_truncation() {
            Some(_) => TokenBound::default(),
            None => {
                TokenBound { bytes: byte_bound::byte_bound(tokenizer), characters: CharBound::of(tokenizer) }
            }
        }
    }

    /// Returns the minimum number of tokens of `text`. It may stop counting at `enough`.
    pub fn min_tokens(&self, text: &str, enough: u64) -> u64 {
        let bytes = self.bytes.map_or(0, |bound| bound.min_tokens(text));
        let characters = self.characters.as_ref().filter(|_| bytes < enough);
        bytes.max(characters.map_or(0, |bound| bound.min_tokens(text, enough)))
    }
}
