//! Tests of detokenization: a response is the text of the whole sequence without that of its prompt.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use sluice_agent::gateway::detok::{DecodeOptions, Detokenizer};
use sluice_agent::model::text::Text;

use super::folders::{DecoderKind, added, open, tokenizer};

/// Returns the text of `answer` to `prompt`, token by token.
fn pieces(text: &Arc<Text>, show: DecodeOptions, prompt: &[u32], answer: &[u32]) -> Vec<String> {
    let mut detokenizer = Detokenizer::new(text.clone(), show, prompt);
    let mut pieces: Vec<_> = answer.iter().map(|id| detokenizer.push(*id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn answer(text: &Arc<Text>, prompt: &[u32], answer: &[u32]) -> String {
    pieces(text, DecodeOptions::default(), prompt, answer).concat()
}

fn text(kind: DecoderKind) -> Arc<Text> {
    let folder = open(&tokenizer(kind), &json!({}));
    Arc::new(folder.text)
}

/// Returns the ids of whole words and characters, including special tokens; no token is part of a character.
fn whole_tokens(text: &Text) -> Vec<u32> {
    (0..text.tokenizer().get_vocab_size(true) as u32)
        .filter(|id| text.bytes_of(*id).is_some_and(|bytes| str::from_utf8(&bytes).is_ok()))
        .collect()
}

#[test]
fn first_space_is_kept_after_prompt_text() {
    // Llama 2's decoder. Expected: transformers' text of prompt and response, less its text of the prompt.
    let text = text(DecoderKind::Pieces);
    let ids = |words: &str| text.encode(words).expect("tokens");
    let upon = ids("upon a")[1..].to_vec();
    assert_eq!(answer(&text, &ids("Once"), &upon), " upon a");
    assert_eq!(answer(&text, &ids("Once upon a time, a é🎉"), &upon), " upon a");
    // Special tokens have no text, so the sequence begins with the response.
    assert_eq!(answer(&text, &[1], &upon), "upon a");
    assert_eq!(answer(&text, &[], &upon), "upon a");
    let seen = DecodeOptions { skip_special: false, ..DecodeOptions::default() };
    assert_eq!(pieces(&text, seen, &[1], &upon).concat(), " upon a");
    // At any distance from the last text.
    let far = [ids("Once"), vec![2; 100]].concat();
    assert_eq!(answer(&text, &far, &upon), " upon a");
}

#[test]
fn character_split_across_prompt_belongs_to_answer() {
    for kind in [DecoderKind::Pieces, DecoderKind::ByteLevel] {
        let text = text(kind);
        let bytes = |of: &[u8]| of.iter().map(|byte| 3 + u32::from(*byte)).collect::<Vec<_>>();
        let party = "🎉".as_bytes();
        for cut in 0..4 {
            let prompt = [bytes(b"ab"), bytes(&party[..cut])].concat();
            assert_eq!(answer(&text, &prompt, &bytes(&party[cut..])), "🎉", "{kind:?} {cut}");
        }
        for cut in 1..4 {
            let begun = [party, party, &party[..cut]].concat();
            assert_eq!(answer(&text, &bytes(b"a"), &bytes(&begun)), "🎉🎉", "{kind:?} {cut}");
            // A character that is invalid in the middle becomes the replacement character, as in Rust and Python.
            let broken = [&begun[..], b"z"].concat();
            assert_eq!(answer(&text, &bytes(b"a"), &bytes(&broken)), "🎉🎉\u{fffd}z", "{kind:?} {cut}");
        }
        let meant = "a\u{fffd}";
        let shown = pieces(&text, DecodeOptions::default(), &bytes(b"p"), &bytes(meant.as_bytes()));
        assert_eq!(shown, ["a", "", "", "\u{fffd}", ""], "{kind:?}: U+FFFD itself is a character");
    }
}

#[test]
fn complete_characters_of_cut_token_are_shown() {
    let text = text(DecoderKind::ByteLevel);
    let half = text.tokenizer().token_to_id("ĠÃ").expect("a space and the half of é");
    assert_eq!(answer(&text, &[3 + 97], &[3 + 98, half]), "b ");
}

#[test]
fn added_tokens_are_spaced_unless_disabled() {
    // vLLM's rule: an added token after an added token has no space before it, unless special tokens are skipped.
    let mut file = tokenizer(DecoderKind::None);
    let (x, a) = (added(&file, "<x>"), 3 + 97);
    file["added_tokens"].as_array_mut().expect("a list").push(x);
    let text = Arc::new(open(&file, &json!({})).text);
    let x = text.tokenizer().token_to_id("<x>").expect("a token");
    let show = |skip_special, spaces_between_special| {
        let show = DecodeOptions { skip_special, spaces_between_special };
        pieces(&text, show, &[a], &[a, x, x, 2, a, x]).concat()
    };
    assert_eq!(show(false, true), " <0x61> <x> <x> </s> <0x61> <x>");
    assert_eq!(show(false, false), " <0x61> <x><x></s> <0x61> <x>");
    assert_eq!(show(true, false), " <0x61> <x> <x> <0x61> <x>");
}

proptest! {
    #[test]
    fn answer_is_sequence_text_minus_prompt_text(
        kind in prop::sample::select(DecoderKind::ALL.to_vec()),
        skip_special in any::<bool>(),
        prompt in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        made in prop::collection::vec(any::<prop::sample::Index>(), 1..24),
    ) {
        let text = text(kind);
        let known = whole_tokens(&text);
        let pick = |from: &[prop::sample::Index]| from.iter().map(|index| *index.get(&known)).collect::<Vec<u32>>();
        let (prompt, made) = (pick(&prompt), pick(&made));
        let decode = |ids: &[u32]| text.tokenizer().decode(ids, skip_special).expect("text");
        let (before, whole) = (decode(&prompt), decode(&[&prompt[..], &made[..]].concat()));
        let wanted = whole.strip_prefix(&before).expect("a decoder that goes on");
        let show = DecodeOptions { skip_special, ..DecodeOptions::default() };
        prop_assert_eq!(pieces(&text, show, &prompt, &made).concat(), wanted);
    }

    #[test]
    fn arbitrary_answer_bytes_decode_to_text(
        kind in prop::sample::select(vec![DecoderKind::Pieces, DecoderKind::ByteLevel]),
        made in ".{1,12}",
        cut in any::<prop::sample::Index>(),
    ) {
        let text = text(kind);
        let bytes = made.as_bytes();
        let cut = cut.index(bytes.len()) + 1;
        let ids: Vec<u32> = bytes[..cut].iter().map(|byte| 3 + u32::from(*byte)).collect();
        let whole = str::from_utf8(&bytes[..cut]).unwrap_or_else(|error| &made[..error.valid_up_to()]);
        prop_assert_eq!(answer(&text, &[3 + 97], &ids), whole);
    }
}
