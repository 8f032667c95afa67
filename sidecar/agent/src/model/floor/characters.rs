//! What the characters of a text are of tokens at least.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tokenizers::normalizer::NormalizedString;
use tokenizers::{Normalizer, Tokenizer};

use super::image::{Image, Steps, is_plain};
use super::pieces::{Pieces, TOKEN};

/// Characters after which it is looked whether there are enough.
const STRIDE: usize = 1024;

/// The bound: a text has no fewer tokens than its characters together, and than its words where a word may be one token.
#[derive(Debug)]
pub struct Characters {
    steps: Steps,
    pieces: Pieces,
    ascii: Vec<Seen>,
    /// The most words that an added token covers.
    words_per_token: u64,
}

/// What is known of a character.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Of [`TOKEN`].
    weight: u64,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Word,
    Apart,
    Nowhere,
}

impl Place {
    fn of(image: &Image) -> Place {
        match image {
            Image::Kept(_) => Place::Word,
            Image::Apart => Place::Apart,
            Image::Lost => Place::Nowhere,
        }
    }
}

/// Counts characters in their order.
#[derive(Default)]
struct Counting {
    weight: u64,
    words: u64,
    /// What comes belongs to the last word.
    within: bool,
}

impl Counting {
    fn add(&mut self, seen: Seen) {
        self.weight += seen.weight;
        match seen.place {
            Place::Word => {
                self.words += u64::from(!self.within);
                self.within = true;
            }
            Place::Apart => self.within = false,
            Place::Nowhere => {}
        }
    }
}

impl Characters {
    /// The bound of `tokenizer`; none where it says nothing of any text.
    pub fn of(tokenizer: &Tokenizer) -> Option<Characters> {
        let (steps, pieces) = (Steps::of(tokenizer)?, Pieces::of(tokenizer.get_model()));
        let mut bound = Characters { steps, pieces, ascii: Vec::new(), words_per_token: 1 };
        for token in tokenizer.get_added_tokens_decoder().values() {
            let text: Vec<_> = token.content.chars().map(|c| bound.steps.image(c)).collect();
            let mut normal = NormalizedString::from(token.content.as_str());
            if let Some(normalizer) = tokenizer.get_normalizer().filter(|_| token.normalized) {
                normalizer.normalize(&mut normal).ok()?;
            }
            let normal: Vec<_> = normal.get().chars().map(|c| bound.steps.image_of_normal(c)).collect();
            [text, normal].into_iter().for_each(|images| bound.cover(images));
        }
        bound.ascii = (0..128_u8).map(|c| bound.see(bound.steps.image(c.into()))).collect();
        let counts = |seen: &Seen| seen.weight > 0 || seen.place == Place::Apart;
        bound.ascii.iter().any(counts).then_some(bound)
    }

    /// One token covers all of these.
    fn cover(&mut self, images: Vec<Image>) {
        let mut counting = Counting::default();
        let mut whole = String::new();
        for image in images {
            counting.add(Seen { weight: 0, place: Place::of(&image) });
            if let Image::Kept(image) = image {
                whole.push_str(&image);
            }
        }
        self.words_per_token = self.words_per_token.max(counting.words);
        self.pieces.include(&whole);
    }

    fn see(&self, image: Image) -> Seen {
        let place = Place::of(&image);
        let weight = match (&self.pieces, image) {
            (Pieces::Characters(pieces), Image::Kept(image)) => image.chars().map(|c| pieces.weight(c)).sum(),
            _ => 0,
        };
        Seen { weight, place }
    }

    /// The tokens that `text` has at least, or at least `enough`.
    pub fn at_least(&self, text: &str, enough: u64) -> u64 {
        let mut others = HashMap::new();
        let mut counting = Counting::default();
        let (mut before, mut characters, mut left) = (true, text.chars().peekable(), STRIDE);
        while let Some(c) = characters.next() {
            let plain = is_plain(c);
            let beside = before && plain && characters.peek().is_none_or(|next| is_plain(*next));
            before = plain;
            if beside || !self.steps.plain_alone() {
                counting.add(self.seen(c, &mut others));
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

    fn seen(&self, c: char, others: &mut HashMap<char, Seen>) -> Seen {
        match self.ascii.get(c as usize) {
            Some(seen) => *seen,
            None => match others.entry(c) {
                Entry::Occupied(seen) => *seen.get(),
                Entry::Vacant(place) => *place.insert(self.see(self.steps.image(c))),
            },
        }
    }

    fn tokens(&self, sum: &Counting) -> u64 {
        match self.pieces {
            Pieces::Words => sum.words.div_ceil(self.words_per_token),
            Pieces::Characters(_) => sum.weight.div_ceil(TOKEN),
        }
    }
}
