//! What the steps before the model make of one character, whatever stands beside it.
//!
//! Most steps look at each character alone. Composing normal forms and SentencePiece's table look at what follows, too: there
//! only plain characters between plain ones are told ([`is_plain`]).

use serde_json::Value;
use tokenizers::normalizer::NormalizedString;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Tokenizer,
};

use super::bytes::json;

/// What is left of a character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// These characters reach the model.
    Kept(String),
    /// Nothing; but what stands before it is another word than what stands behind it.
    Apart,
    /// Nothing that is certain.
    Lost,
}

/// A step before the model.
enum Step {
    /// Works on each character alone, or on plain ones; a character that it drops may join its neighbours.
    Normalise(NormalizerWrapper),
    /// Splits at each character that it drops.
    Split(PreTokenizerWrapper),
    /// The same, but need not split there.
    Drop(PreTokenizerWrapper),
    /// Drops white space at the ends.
    Strip,
    /// May change or drop anything made of these characters.
    Without(String),
    /// May change or drop white space.
    WithoutBlanks,
    /// Puts one character in the place of blanks.
    Mark(char),
}

/// The steps of a tokenizer.
pub struct Steps {
    normalise: Vec<Step>,
    split: Vec<Step>,
    /// Only plain characters between plain ones are told.
    plain_alone: bool,
    /// Some added tokens cover the white space beside them.
    strips: bool,
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("plain_alone", &self.plain_alone).finish_non_exhaustive()
    }
}

/// Characters that no normal form joins with what stands beside them if that is plain, too: each begins and ends a grapheme
/// and a composition (UAX 15 and 29).
pub fn is_plain(c: char) -> bool {
    matches!(c, '\t' | '\n' | ' '..='~' | 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ÿ' | 'Α'..='Ρ' | 'Σ'..='Ω' | 'α'..='ω' | 'А'..='я'
        | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '㐀'..='䶿' | '一'..='\u{9fff}' | '가'..='힣')
}

impl Steps {
    /// The steps of `tokenizer`; none where one is not understood.
    pub fn of(tokenizer: &Tokenizer) -> Option<Steps> {
        let strips = tokenizer.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip);
        let mut steps = Steps { normalise: Vec::new(), split: Vec::new(), plain_alone: false, strips };
        steps.normalisers(&tokenizer.get_normalizer().map_or(Value::Null, json))?;
        steps.splits(&tokenizer.get_pre_tokenizer().map_or(Value::Null, json))?;
        Some(steps)
    }

    /// Only plain characters between plain ones are told.
    pub fn plain_alone(&self) -> bool {
        self.plain_alone
    }

    fn normalisers(&mut self, normaliser: &Value) -> Option<()> {
        let kind = match normaliser["type"].as_str() {
            None => return normaliser.is_null().then_some(()),
            Some("Sequence") => {
                let all = normaliser["normalizers"].as_array()?;
                return all.iter().try_for_each(|one| self.normalisers(one));
            }
            Some(kind) => kind,
        };
        let step = match kind {
            "NFC" | "NFKC" | "Precompiled" => {
                // What took the place of other text may join with anything.
                let others = |step: &Step| match step {
                    Step::Without(_) | Step::WithoutBlanks => true,
                    Step::Normalise(normaliser) => matches!(normaliser, NormalizerWrapper::Precompiled(_)),
                    _ => false,
                };
                if self.normalise.iter().any(others) {
                    return None;
                }
                self.plain_alone = true;
                Step::Normalise(read(normaliser)?)
            }
            "NFD" | "NFKD" | "Lowercase" | "StripAccents" | "BertNormalizer" | "Nmt" | "ByteLevel" => {
                Step::Normalise(read(normaliser)?)
            }
            // It only adds.
            "Prepend" => {
                let added = normaliser["prepend"].as_str()?;
                return added.chars().all(|c| is_plain(c) || c == '▁').then_some(());
            }
            "Strip" => Step::Strip,
            "Replace" => replace(normaliser)?,
            _ => return None,
        };
        self.normalise.push(step);
        Some(())
    }

    fn splits(&mut self, split: &Value) -> Option<()> {
        let step = match split["type"].as_str() {
            None => return split.is_null().then_some(()),
            Some("Sequence") => {
                let all = split["pretokenizers"].as_array()?;
                return all.iter().try_for_each(|one| self.splits(one));
            }
            Some("Digits" | "FixedLength") => return Some(()),
            Some("Split") if split["behavior"] != "Removed" => return Some(()),
            Some("Split") => removed(split)?,
            Some(
                "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" | "CharDelimiterSplit" | "Punctuation",
            ) => Step::Split(read(split)?),
            // It drops what belongs to no script at the beginning.
            Some("UnicodeScripts") => Step::Drop(read(split)?),
            // The names of bytes alone.
            Some("ByteLevel") => {
                Step::Drop(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)))
            }
            Some("Metaspace") => Step::Mark(split["replacement"].as_str()?.chars().next()?),
            Some(_) => return None,
        };
        self.split.push(step);
        Some(())
    }

    /// What is left of `c`.
    pub fn image(&self, c: char) -> Image {
        let blank = c.is_whitespace() || c.is_control();
        self.after(c.to_string(), &self.normalise, self.strips && blank).unwrap_or(Image::Lost)
    }

    /// What is left of a character of the normal form.
    pub fn image_of_normal(&self, c: char) -> Image {
        self.after(c.to_string(), &[], false).unwrap_or(Image::Lost)
    }

    /// `maybe` = it may be dropped as a whole.
    fn after(&self, mut image: String, normalise: &[Step], mut maybe: bool) -> Option<Image> {
        for step in normalise {
            if matches!(step, Step::Strip) {
                maybe |= strip(&mut image);
            } else {
                apply(step, &mut image)?;
            }
            if image.is_empty() {
                return None;
            }
        }
        if self.strips {
            maybe |= strip(&mut image);
        }
        for step in &self.split {
            apply(step, &mut image)?;
            if image.is_empty() {
                return matches!(step, Step::Split(_)).then_some(Image::Apart);
            }
        }
        (!maybe).then_some(Image::Kept(image))
    }
}

/// Drops white space from what is not white space alone; of that it says that it may be dropped.
fn strip(image: &mut String) -> bool {
    let all = image.chars().all(char::is_whitespace);
    if !all {
        image.retain(|c| !c.is_whitespace());
    }
    all
}

/// What a step makes of an image; none where that is not certain.
fn apply(step: &Step, image: &mut String) -> Option<()> {
    match step {
        Step::Normalise(normaliser) => {
            let mut normal = NormalizedString::from(image.as_str());
            normaliser.normalize(&mut normal).ok()?;
            *image = normal.get().to_owned();
        }
        Step::Split(split) | Step::Drop(split) => {
            let mut parts = PreTokenizedString::from(image.as_str());
            split.pre_tokenize(&mut parts).ok()?;
            let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
            *image = parts.into_iter().map(|(part, _, _)| part).collect();
        }
        Step::Mark(mark) => *image = image.replace(' ', &mark.to_string()),
        Step::Without(some) => return (!image.chars().any(|c| some.contains(c))).then_some(()),
        Step::WithoutBlanks => return (!image.chars().any(char::is_whitespace)).then_some(()),
        Step::Strip => {}
    }
    Some(())
}

fn read<T: serde::de::DeserializeOwned>(step: &Value) -> Option<T> {
    serde_json::from_value(step.clone()).ok()
}

fn replace(normaliser: &Value) -> Option<Step> {
    let pattern = &normaliser["pattern"];
    match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => Some(Step::Without(text.to_owned())),
        (None, Some(regex)) => is_of_blanks(regex).then_some(Step::WithoutBlanks),
        (None, None) => None,
    }
}

/// A split that removes what it finds.
fn removed(split: &Value) -> Option<Step> {
    let one = |text: &str| text.chars().count() == 1;
    match split["pattern"]["String"].as_str() {
        _ if split["invert"] != false => None,
        Some(text) if one(text) => Some(Step::Split(read(split)?)),
        _ => replace(split),
    }
}

/// Whether a regular expression certainly matches nothing but white space.
fn is_of_blanks(regex: &str) -> bool {
    let mut rest = regex;
    while !rest.is_empty() {
        let atom = ["\\s", "\\n", "\\r", "\\t", "[ ]", " ", "\n", "\t"]
            .into_iter()
            .find_map(|atom| rest.strip_prefix(atom));
        let Some(behind) = atom else { return false };
        rest = behind.trim_start_matches(['+', '*', '?']);
        if let Some((count, behind)) = rest.strip_prefix('{').and_then(|count| count.split_once('}')) {
            if !count.chars().all(|c| c.is_ascii_digit() || c == ',') {
                return false;
            }
            rest = behind;
        }
    }
    !regex.is_empty()
}
