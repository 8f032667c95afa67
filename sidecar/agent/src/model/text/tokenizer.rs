//! Opens the tokenizer for serving, and determines the bytes of each token.

use std::path::Path;

use tokenizers::decoders::DecoderWrapper;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

use super::tokenizer_config::TokenizerConfig;
use crate::model::error::{ModelError, read};

/// Reads `tokenizer.json`, and resets the settings that transformers resets when it loads that file.
///
/// # Errors
/// Names the file and the problem.
pub fn open(path: &Path, settings: &TokenizerConfig) -> Result<Tokenizer, ModelError> {
    let mut tokenizer = Tokenizer::from_bytes(read(path)?).map_err(|e| ModelError::text(path, e))?;
    reset(&mut tokenizer).map_err(|e| ModelError::text(path, e))?;
    add(&mut tokenizer, settings).map_err(|e| ModelError::text(path, e))?;
    tokenizer.set_encode_special_tokens(settings.split_special_tokens.unwrap_or(false));
    Ok(tokenizer)
}

/// Resets settings of a training run that `tokenizer.json` keeps: prompts are neither truncated nor padded, and equal
/// texts have equal tokens.
fn reset(tokenizer: &mut Tokenizer) -> tokenizers::Result<()> {
    tokenizer.with_truncation(None)?;
    tokenizer.with_padding(None);
    if let ModelWrapper::BPE(bpe) = tokenizer.get_model()
        && bpe.dropout.is_some()
    {
        let mut bpe = bpe.clone();
        bpe.dropout = None;
        tokenizer.with_model(bpe);
    }
    Ok(())
}

/// Adds tokens as transformers does: they have the attributes of the settings, and named tokens (`eos_token` and so on)
/// are special. Unlike there, a token never gets another id than in the files, because the model would not know it.
fn add(tokenizer: &mut Tokenizer, settings: &TokenizerConfig) -> tokenizers::Result<()> {
    let mut next = u32::try_from(tokenizer.get_vocab_size(true)).unwrap_or(u32::MAX);
    let is_added = |id: u32, content: &str| {
        let added = tokenizer.get_added_vocabulary();
        added.get_added_tokens_decoder().contains_key(&id) || added.get_vocab().contains_key(content)
    };
    let mut tokens = Vec::new();
    for (id, added) in settings.added_tokens(is_added) {
        let known = tokenizer.token_to_id(&added.content);
        if known.unwrap_or(next) == id {
            tokens.push(added);
            next += u32::from(known.is_none());
        }
    }
    tokenizer.add_tokens(tokens)?;
    let special: Vec<_> = settings.special().filter_map(|token| as_special(tokenizer, token)).collect();
    tokenizer.add_special_tokens(special)?;
    let is_new = |token: &AddedToken| {
        let added = tokenizer.get_added_vocabulary().get_vocab().contains_key(&token.content);
        !added && tokenizer.token_to_id(&token.content).is_some()
    };
    let extra: Vec<_> = settings.special_if_new().filter(is_new).collect();
    tokenizer.add_special_tokens(extra)?;
    Ok(())
}

/// Returns `token` as a special token, if the vocabulary has its content. An added token keeps its attributes.
fn as_special(tokenizer: &Tokenizer, token: AddedToken) -> Option<AddedToken> {
    let id = tokenizer.token_to_id(&token.content)?;
    let added = tokenizer.get_added_vocabulary().get_added_tokens_decoder().get(&id).cloned();
    Some(added.unwrap_or(token).special(true))
}

/// How the decoder represents bytes that are no text of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteEncoding {
    /// Each character of a token is a byte, by GPT-2's names.
    ByteLevel,
    /// A token `<0xNN>` is a byte.
    Fallback,
    /// The decoder does not represent them.
    None,
}

impl ByteEncoding {
    /// Returns the encoding of `tokenizer`'s decoder.
    pub fn of(tokenizer: &Tokenizer) -> ByteEncoding {
        tokenizer.get_decoder().map_or(ByteEncoding::None, ByteEncoding::of_decoder)
    }

    fn of_decoder(decoder: &DecoderWrapper) -> ByteEncoding {
        match decoder {
            DecoderWrapper::ByteLevel(_) => ByteEncoding::ByteLevel,
            DecoderWrapper::ByteFallback(_) => ByteEncoding::Fallback,
            DecoderWrapper::Sequence(all) => {
                let mut parts = all.get_decoders().iter().map(ByteEncoding::of_decoder);
                parts.find(|part| *part != ByteEncoding::None).unwrap_or(ByteEncoding::None)
            }
            _ => ByteEncoding::None,
        }
    }
}

/// Returns the bytes that token `id` adds to a text. `None` if there is no such token.
pub fn bytes_of(tokenizer: &Tokenizer, bytes: ByteEncoding, id: u32) -> Option<Vec<u8>> {
    let token = tokenizer.id_to_token(id)?;
    let exact = match bytes {
        ByteEncoding::ByteLevel => Some(byte_level(&token)),
        ByteEncoding::Fallback => byte_fallback(&token).map(|byte| vec![byte]),
        ByteEncoding::None => None,
    };
    Some(exact.unwrap_or_else(|| decoded_suffix(tokenizer, id).into_bytes()))
}

/// Returns the text that a token adds after its own text. A decoder may drop the space before the first token of a
/// text, so decoding one token alone does not suffice.
fn decoded_suffix(tokenizer: &Tokenizer, id: u32) -> String {
    let decode = |ids: &[u32]| tokenizer.decode(ids, false).unwrap_or_default();
    let (once, twice) = (decode(&[id]), decode(&[id, id]));
    twice.strip_prefix(&once).map_or(once.clone(), str::to_owned)
}

/// Follows the library: a token with a character that names no byte is text.
fn byte_level(token: &str) -> Vec<u8> {
    let bytes: Option<Vec<u8>> = token.chars().map(named_byte).collect();
    bytes.unwrap_or_else(|| token.as_bytes().to_vec())
}

/// Returns the byte that GPT-2 names `name`: printable ones of Latin-1 name themselves, the others follow in order from
/// U+0100 on.
fn named_byte(name: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(name).checked_sub(0x100) {
        None => u8::try_from(name).ok().filter(|byte| printable(*byte)),
        Some(nth) => (0..=u8::MAX).filter(|byte| !printable(*byte)).nth(nth as usize),
    }
}

fn byte_fallback(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}
