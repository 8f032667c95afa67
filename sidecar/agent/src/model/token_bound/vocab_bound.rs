//! The minimum part of a token that each character of the model's input takes.

use std::collections::{HashMap, HashSet};

use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::{Model, ModelWrapper};

/// One token, as the unit of weights.
pub const TOKEN: u64 = 1 << 32;

/// How a model maps characters to tokens.
#[derive(Debug)]
pub enum VocabBound {
    /// An unknown word is one token of any length.
    Words,
    /// Every known character is part of a token.
    Characters(Box<VocabChars>),
}

/// Vocabulary by characters.
#[derive(Debug)]
pub struct VocabChars {
    /// Length of the longest token with this character, in characters.
    longest: HashMap<char, u64>,
    /// Characters that are tokens themselves in every position, so they are never unknown.
    known: HashSet<char>,
    /// Minimum part of a token that an unknown character takes.
    unknown: Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Unknown {
    /// Nothing: many unknown characters may be one token, or none.
    Nothing,
    /// This weight for each byte of the character.
    Byte(u64),
    /// A whole token.
    Token,
}

impl VocabBound {
    /// Returns how `model` maps characters to tokens.
    pub fn of(model: &ModelWrapper) -> VocabBound {
        let vocab = Vocab(model.get_vocab());
        let (known, unknown) = match model {
            ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) => return VocabBound::Words,
            ModelWrapper::BPE(bpe) => bpe_characters(&vocab, bpe),
            ModelWrapper::Unigram(unigram) => unigram_characters(&vocab, unigram),
        };
        VocabBound::Characters(Box::new(VocabChars { longest: vocab.longest(), known, unknown }))
    }
}

impl VocabBound {
    /// Includes a text that is one token.
    pub fn include_token(&mut self, token: &str) {
        if let VocabBound::Characters(characters) = self {
            include_token(&mut characters.longest, token);
        }
    }
}

fn include_token(longest: &mut HashMap<char, u64>, token: &str) {
    let characters = token.chars().count() as u64;
    for c in token.chars() {
        let most = longest.entry(c).or_insert(characters);
        *most = characters.max(*most);
    }
}

impl VocabChars {
    /// Returns the minimum part of a token, in units of 1/[`TOKEN`], that `c` takes. Each character counts as one of
    /// the longest token that has it, so all characters of a token sum to at most [`TOKEN`].
    pub fn weight(&self, c: char) -> u64 {
        let part = self.longest.get(&c).map(|longest| TOKEN / longest);
        if self.known.contains(&c) {
            return part.unwrap_or(0);
        }
        let unknown = match self.unknown {
            Unknown::Nothing => 0,
            Unknown::Byte(weight) => weight * c.len_utf8() as u64,
            Unknown::Token => TOKEN,
        };
        // An unknown character may still be part of a longer token.
        part.map_or(unknown, |part| part.min(unknown))
    }
}

struct Vocab(HashMap<String, u32>);

impl Vocab {
    fn contains(&self, token: &str) -> bool {
        self.0.contains_key(token)
    }

    fn longest(&self) -> HashMap<char, u64> {
        let mut longest = HashMap::new();
        self.0.keys().for_each(|token| include_token(&mut longest, token));
        longest
    }

    fn single_characters(&self) -> impl Iterator<Item = char> {
        self.0.keys().filter_map(|token| {
            let mut characters = token.chars();
            characters.next().filter(|_| characters.next().is_none())
        })
    }

    /// Returns the weight of a byte if the vocabulary has a token for each.
    fn bytes(&self) -> Option<Unknown> {
        let name = |byte: u8| format!("<0x{byte:02X}>");
        let names: Vec<String> = (0..=u8::MAX).map(name).collect();
        let whole = names.iter().all(|name| self.contains(name));
        // Merges of bytes would be longer tokens that contain their names.
        let is_merge = |token: &&String| token.len() > 6 && token.contains("<0x");
        let longest = self.0.keys().filter(is_merge).map(|token| token.chars().count() as u64).max();
        whole.then_some(Unknown::Byte(longest.map_or(TOKEN, |longest| TOKEN * 6 / longest)))
    }
}

fn bpe_characters(vocab: &Vocab, bpe: &BPE) -> (HashSet<char>, Unknown) {
    let prefix = bpe.continuing_subword_prefix.as_deref().unwrap_or_default();
    let suffix = bpe.end_of_word_suffix.as_deref().unwrap_or_default();
    let wherever = |c: &char| {
        let [begun, single] = [format!("{prefix}{c}"), c.to_string()];
        [&begun, &single].into_iter().all(|c| vocab.contains(c) && vocab.contains(&format!("{c}{suffix}")))
    };
    let known = vocab.single_characters().filter(wherever).collect();
    let unknown = match (&bpe.unk_token, bpe.byte_fallback.then(|| vocab.bytes()).flatten()) {
        (_, Some(bytes)) => bytes,
        (Some(unknown), None) if !bpe.fuse_unk && !bpe.byte_fallback => {
            let is_merge = |token: &String| token != unknown && token.contains(unknown.as_str());
            if vocab.0.keys().any(is_merge) { Unknown::Nothing } else { Unknown::Token }
        }
        (_, None) => Unknown::Nothing,
    };
    (known, unknown)
}

fn unigram_characters(vocab: &Vocab, unigram: &Unigram) -> (HashSet<char>, Unknown) {
    let bytes = unigram.byte_fallback().then(|| vocab.bytes()).flatten();
    // The name of the unknown token in a text is that token, and joins with adjacent unknown characters.
    let name = unknown_name(unigram);
    let known = vocab.single_characters().filter(|c| !name.contains(*c)).collect();
    (known, bytes.unwrap_or(Unknown::Nothing))
}

fn unknown_name(unigram: &Unigram) -> String {
    let id = serde_json::to_value(unigram).ok().and_then(|model| model["unk_id"].as_u64());
    let name = id.and_then(|id| unigram.id_to_token(u32::try_from(id).ok()?));
    name.unwrap_or_default()
}
