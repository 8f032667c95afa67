//! Determines what the steps before the model make of one character, independent of its context.
//!
//! Most steps process each character alone. Composing normal forms and SentencePiece's table also depend on the
//! following characters. With those, only plain characters between plain ones are certain ([`is_plain`]).

use serde_json::Value;
use tokenizers::normalizer::NormalizedString;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    Normalizer, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Tokenizer,
};

use super::byte_bound::json;

/// Result of the steps for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NormalisedChar {
    /// These characters reach the model.
    Kept(String),
    /// No character, but the text is split into two words here.
    Separator,
    /// Nothing is certain.
    Uncertain,
}

/// A step before the model.
enum PipelineStep {
    /// Processes each character alone, or plain ones. If it drops a character, the adjacent ones may join.
    Normalise(NormalizerWrapper),
    /// Splits at each character that it drops.
    Split(PreTokenizerWrapper),
    /// Drops characters without necessarily splitting there.
    Drop(PreTokenizerWrapper),
    /// Drops white space at the ends.
    Strip,
    /// May change or drop any text of these characters.
    Without(String),
    /// May change or drop white space.
    WithoutBlanks,
    /// Replaces blanks by one character.
    Mark(char),
}

/// The steps of a tokenizer.
pub struct TextPipeline {
    normalise: Vec<PipelineStep>,
    split: Vec<PipelineStep>,
    /// Only plain characters between plain ones are certain.
    is_plain_only: bool,
    /// Some added tokens cover the adjacent white space.
    strips: bool,
}

impl std::fmt::Debug for TextPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("plain_alone", &self.is_plain_only).finish_non_exhaustive()
    }
}

/// Whether no normal form joins the character with adjacent plain characters: each plain character begins and ends a
/// grapheme and a composition (UAX 15 and 29).
pub fn is_plain(c: char) -> bool {
    matches!(c, '\t' | '\n' | ' '..='~' | 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ÿ' | 'Α'..='Ρ' | 'Σ'..='Ω' | 'α'..='ω' | 'А'..='я'
        | 'ぁ'..='ゖ' | 'ァ'..='ヺ' | '㐀'..='䶿' | '一'..='\u{9fff}' | '가'..='힣')
}

impl TextPipeline {
    /// Returns the steps of `tokenizer`. `None` if a step is not supported.
    pub fn of(tokenizer: &Tokenizer) -> Option<TextPipeline> {
        let strips = tokenizer.get_added_tokens_decoder().values().any(|token| token.lstrip || token.rstrip);
        let mut steps =
            TextPipeline { normalise: Vec::new(), split: Vec::new(), is_plain_only: false, strips };
        steps.add_normaliser(&tokenizer.get_normalizer().map_or(Value::Null, json))?;
        steps.add_split(&tokenizer.get_pre_tokenizer().map_or(Value::Null, json))?;
        Some(steps)
    }

    /// Whether only plain characters between plain ones are certain.
    pub fn is_plain_only(&self) -> bool {
        self.is_plain_only
    }

    fn add_normaliser(&mut self, normaliser: &Value) -> Option<()> {
        let kind = match normaliser["type"].as_str() {
            None => return normaliser.is_null().then_some(()),
            Some("Sequence") => {
                let all = normaliser["normalizers"].as_array()?;
                return all.iter().try_for_each(|one| self.add_normaliser(one));
            }
            Some(kind) => kind,
        };
        let step = match kind {
            "NFC" | "NFKC" | "Precompiled" => {
                // Characters that replaced other text may join with any character.
                let others = |step: &PipelineStep| match step {
                    PipelineStep::Without(_) | PipelineStep::WithoutBlanks => true,
                    PipelineStep::Normalise(normaliser) => {
                        matches!(normaliser, NormalizerWrapper::Precompiled(_))
                    }
                    _ => false,
                };
                if self.normalise.iter().any(others) {
                    return None;
                }
                self.is_plain_only = true;
                PipelineStep::Normalise(read(normaliser)?)
            }
            "NFD" | "NFKD" | "Lowercase" | "StripAccents" | "BertNormalizer" | "Nmt" | "ByteLevel" => {
                PipelineStep::Normalise(read(normaliser)?)
            }
            // This step only adds text.
            "Prepend" => {
                let added = normaliser["prepend"].as_str()?;
                return added.chars().all(|c| is_plain(c) || c == '▁').then_some(());
            }
            "Strip" => PipelineStep::Strip,
            "Replace" => replace(normaliser)?,
            _ => return None,
        };
        self.normalise.push(step);
        Some(())
    }

    fn add_split(&mut self, split: &Value) -> Option<()> {
        let step = match split["type"].as_str() {
            None => return split.is_null().then_some(()),
            Some("Sequence") => {
                let all = split["pretokenizers"].as_array()?;
                return all.iter().try_for_each(|one| self.add_split(one));
            }
            Some("Digits" | "FixedLength") => return Some(()),
            Some("Split") if split["behavior"] != "Removed" => return Some(()),
            Some("Split") => removing_split(split)?,
            Some(
                "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" | "CharDelimiterSplit" | "Punctuation",
            ) => PipelineStep::Split(read(split)?),
            // This step drops characters that belong to no script at the beginning.
            Some("UnicodeScripts") => PipelineStep::Drop(read(split)?),
            // Only the mapping to names of bytes.
            Some("ByteLevel") => {
                PipelineStep::Drop(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false)))
            }
            Some("Metaspace") => PipelineStep::Mark(split["replacement"].as_str()?.chars().next()?),
            Some(_) => return None,
        };
        self.split.push(step);
        Some(())
    }

    /// Returns the result for the character `c` of a text.
    pub fn normalise_char(&self, c: char) -> NormalisedChar {
        let blank = c.is_whitespace() || c.is_control();
        self.apply_steps(c.to_string(), &self.normalise, self.strips && blank)
            .unwrap_or(NormalisedChar::Uncertain)
    }

    /// Returns the result for a character of the normal form.
    pub fn split_normal_char(&self, c: char) -> NormalisedChar {
        self.apply_steps(c.to_string(), &[], false).unwrap_or(NormalisedChar::Uncertain)
    }

    /// Applies `normalise` and the split steps to `image`. `maybe` means that the whole image may be dropped.
    fn apply_steps(
        &self,
        mut image: String,
        normalise: &[PipelineStep],
        mut maybe: bool,
    ) -> Option<NormalisedChar> {
        for step in normalise {
            if matches!(step, PipelineStep::Strip) {
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
                return matches!(step, PipelineStep::Split(_)).then_some(NormalisedChar::Separator);
            }
        }
        (!maybe).then_some(NormalisedChar::Kept(image))
    }
}

/// Drops white space unless the image is only white space. Returns whether it is, because then it may be dropped as a
/// whole.
fn strip(image: &mut String) -> bool {
    let all = image.chars().all(char::is_whitespace);
    if !all {
        image.retain(|c| !c.is_whitespace());
    }
    all
}

/// Applies a step to an image. `None` if the result is not certain.
fn apply(step: &PipelineStep, image: &mut String) -> Option<()> {
    match step {
        PipelineStep::Normalise(normaliser) => {
            let mut normal = NormalizedString::from(image.as_str());
            normaliser.normalize(&mut normal).ok()?;
            *image = normal.get().to_owned();
        }
        PipelineStep::Split(split) | PipelineStep::Drop(split) => {
            let mut parts = PreTokenizedString::from(image.as_str());
            split.pre_tokenize(&mut parts).ok()?;
            let parts = parts.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
            *image = parts.into_iter().map(|(part, _, _)| part).collect();
        }
        PipelineStep::Mark(mark) => *image = image.replace(' ', &mark.to_string()),
        PipelineStep::Without(some) => return (!image.chars().any(|c| some.contains(c))).then_some(()),
        PipelineStep::WithoutBlanks => return (!image.chars().any(char::is_whitespace)).then_some(()),
        PipelineStep::Strip => {}
    }
    Some(())
}

fn read<T: serde::de::DeserializeOwned>(step: &Value) -> Option<T> {
    serde_json::from_value(step.clone()).ok()
}

fn replace(normaliser: &Value) -> Option<PipelineStep> {
    let pattern = &normaliser["pattern"];
    match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
        (Some(text), _) => Some(PipelineStep::Without(text.to_owned())),
        (None, Some(regex)) => matches_only_blanks(regex).then_some(PipelineStep::WithoutBlanks),
        (None, None) => None,
    }
}

/// Returns the step of a split that removes its matches.
fn removing_split(split: &Value) -> Option<PipelineStep> {
    let one = |text: &str| text.chars().count() == 1;
    match split["pattern"]["String"].as_str() {
        _ if split["invert"] != false => None,
        Some(text) if one(text) => Some(PipelineStep::Split(read(split)?)),
        _ => replace(split),
    }
}

/// Whether a regular expression certainly matches only white space.
fn matches_only_blanks(regex: &str) -> bool {
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
