//! How few tokens a text can have, known without tokenising it: a text that cannot fit need not be tokenised to be refused.
//!
//! There are two bounds, and the better one counts. Neither refuses what would fit.

mod bytes;
mod characters;
mod image;
mod pieces;

use tokenizers::Tokenizer;

use self::characters::Characters;

/// Fewest tokens of a text; without a bound, none.
#[derive(Debug, Default)]
pub struct TokenFloor {
    bytes: Option<bytes::Bound>,
    characters: Option<Characters>,
}

impl TokenFloor {
    /// The bounds of a tokenizer.
    pub fn of(tokenizer: &Tokenizer) -> TokenFloor {
        match tokenizer.get_truncation() {
            Some(_) => TokenFloor::default(),
            None => TokenFloor { bytes: bytes::bound(tokenizer), characters: Characters::of(tokenizer) },
        }
    }

    /// The tokens that `text` has at least. It may stop counting at `enough`.
    pub fn at_least(&self, text: &str, enough: u64) -> u64 {
        let bytes = self.bytes.map_or(0, |bound| bound.at_least(text));
        let characters = self.characters.as_ref().filter(|_| bytes < enough);
        bytes.max(characters.map_or(0, |bound| bound.at_least(text, enough)))
    }
}
