//! Each parameter changes a choice that would differ without it.

use super::*;

const LOGITS: [f32; 6] = [1.0, 3.0, 2.0, 3.0, -1.0, 0.5];
const NO_HISTORY: History<'static> = History { tokens: &[], prompt_tokens: 0 };

fn choice(params: &SamplingParams, history: History<'_>) -> SampledToken {
    let (mut logits, mut scratch) = (LOGITS, [0xdead_beef_u32; 6]);
    sample(&mut LogitRow { logits: &mut logits, scratch: &mut scratch }, params, history).unwrap()
}

fn greedy(params: &SamplingParams, tokens: &[u32], prompt_tokens: usize) -> u32 {
    choice(params, History { tokens, prompt_tokens }).token
}

/// Returns the tokens sampled at 400 positions.
fn drawn(params: &SamplingParams) -> Vec<u32> {
    let zeros = vec![0; 400];
    (0..400).map(|n| choice(params, History { tokens: &zeros[..n], prompt_tokens: n }).token).collect()
}

fn hot() -> SamplingParams {
    SamplingParams { temperature: 1.0, seed: 7, ..Default::default() }
}

fn distinct(params: &SamplingParams) -> Vec<u32> {
    let mut tokens = drawn(params);
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

#[test]
fn greedy_takes_the_lowest_id_of_the_largest() {
    assert_eq!(greedy(&SamplingParams::default(), &[], 0), 1);
}

#[test]
fn a_plain_draw_reaches_every_token_in_proportion() {
    let tokens = drawn(&hot());
    assert_eq!(distinct(&hot()), [0, 1, 2, 3, 4, 5]);
    let share = tokens.iter().filter(|t| **t == 1).count() as f64 / tokens.len() as f64;
    assert!((share - 0.376).abs() < 0.08, "share of token 1 is {share}");
}

#[test]
fn temperature_sharpens() {
    assert_eq!(distinct(&SamplingParams { temperature: 0.05, ..hot() }), [1, 3]);
}

#[test]
fn top_k_keeps_the_k_most_likely_and_breaks_ties_by_id() {
    assert_eq!(distinct(&SamplingParams { top_k: 1, ..hot() }), [1]);
    assert_eq!(distinct(&SamplingParams { top_k: 3, ..hot() }), [1, 2, 3]);
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    assert_eq!(distinct(&SamplingParams { top_p: 0.3, ..hot() }), [1]);
    assert_eq!(distinct(&SamplingParams { top_p: 0.7, ..hot() }), [1, 3]);
    assert_eq!(distinct(&SamplingParams { top_p: 0.8, ..hot() }), [1, 2, 3]);
}

#[test]
fn min_p_drops_tokens_below_a_share_of_the_best() {
    assert_eq!(distinct(&SamplingParams { min_p: 0.3, ..hot() }), [1, 2, 3]);
    assert_eq!(distinct(&SamplingParams { min_p: 0.5, ..hot() }), [1, 3]);
}

#[test]
fn presence_penalty_counts_generated_tokens_once() {
    let params = SamplingParams { presence_penalty: 0.4, ..Default::default() };
    assert_eq!(greedy(&params, &[1], 1), 1, "a prompt token is not penalised");
    assert_eq!(greedy(&params, &[1], 0), 3);
    assert_eq!(greedy(&params, &[1, 3, 3, 3], 0), 1, "three times is no worse than once");
}

#[test]
fn frequency_penalty_counts_every_time() {
    let params = SamplingParams { frequency_penalty: 0.4, ..Default::default() };
    assert_eq!(greedy(&params, &[1], 1), 1, "a prompt token is not penalised");
    assert_eq!(greedy(&params, &[1, 1, 3], 0), 3);
    assert_eq!(greedy(&params, &[1, 1, 1, 3, 3, 3], 0), 2);
}

#[test]
fn repetition_penalty_also_counts_the_prompt() {
    let params = SamplingParams { repetition_penalty: 2.0, ..Default::default() };
    assert_eq!(greedy(&params, &[1], 1), 3);
    assert_eq!(greedy(&params, &[1, 3], 1), 2);
    assert_eq!(penalties::penalised(-1.0, 0, &params), -2.0, "a negative logit moves away from zero");
}

#[test]
fn logit_bias_moves_a_token() {
    let params = SamplingParams { logit_bias: vec![(4, 10.0)], ..Default::default() };
    assert_eq!(greedy(&params, &[], 0), 4);
}

#[test]
fn banned_tokens_are_never_chosen() {
    assert_eq!(greedy(&SamplingParams { banned_tokens: vec![1], ..Default::default() }, &[], 0), 3);
    assert_eq!(distinct(&SamplingParams { banned_tokens: vec![1, 3], ..hot() }), [0, 2, 4, 5]);
}

#[test]
fn stop_tokens_wait_for_min_tokens() {
    let params = SamplingParams { stop_tokens: vec![1], min_tokens: 2, ..Default::default() };
    assert_eq!(greedy(&params, &[0, 0], 1), 3);
    assert_eq!(greedy(&params, &[0, 0, 0], 1), 1);
}

#[test]
fn draw_depends_only_on_seed_and_position() {
    assert_eq!(drawn(&hot()), drawn(&hot()));
    assert_ne!(drawn(&hot()), drawn(&SamplingParams { seed: 8, ..hot() }));
    let tokens = drawn(&hot());
    assert!(tokens.windows(2).any(|pair| pair[0] != pair[1]), "positions must differ");
}

#[test]
fn logprobs_are_the_log_softmax_of_the_raw_logits() {
    let params = SamplingParams {
        logprobs: Some(2),
        logit_bias: vec![(4, 10.0)],
        temperature: 0.01,
        ..Default::default()
    };
    let answer = choice(&params, NO_HISTORY);
    let sum: f64 = LOGITS.iter().map(|l| f64::from(*l).exp()).sum();
    let expected = |logit: f64| (logit - sum.ln()) as f32;
    let logprobs = answer.logprobs.unwrap();
    assert_eq!(answer.token, 4);
    assert!((logprobs.chosen - expected(-1.0)).abs() < 1e-6, "bias must not show");
    assert_eq!(logprobs.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
    assert!((logprobs.top[1].1 - expected(3.0)).abs() < 1e-6);
    assert_eq!(choice(&SamplingParams::default(), NO_HISTORY).logprobs, None);
}

#[test]
fn ids_beyond_the_vocabulary_and_bad_parameters_are_refused() {
    let refused = |params: SamplingParams| params.check(6).unwrap_err();
    let beyond = |field| SamplingError::TokenOutOfRange { field, token: 6, vocab: 6 };
    let base = SamplingParams::default;
    assert_eq!(refused(SamplingParams { logit_bias: vec![(6, 0.0)], ..base() }), beyond("logit_bias"));
    assert_eq!(refused(SamplingParams { banned_tokens: vec![6], ..base() }), beyond("banned_tokens"));
    assert_eq!(refused(SamplingParams { stop_tokens: vec![6], ..base() }), beyond("stop_tokens"));
    for bad in [
        SamplingParams { temperature: -1.0, ..base() },
        SamplingParams { temperature: f32::NAN, ..base() },
        SamplingParams { top_p: 0.0, ..base() },
        SamplingParams { min_p: 1.5, ..base() },
        SamplingParams { repetition_penalty: 0.0, ..base() },
        SamplingParams { logprobs: Some(21), ..base() },
    ] {
        assert!(matches!(refused(bad), SamplingError::Parameter(_)));
    }
    let (mut logits, mut scratch) = (LOGITS, [0; 6]);
    let mut row = LogitRow { logits: &mut logits, scratch: &mut scratch };
    let history = History { tokens: &[6], prompt_tokens: 0 };
    assert_eq!(sample(&mut row, &base(), history).unwrap_err(), beyond("the history"));
}

#[test]
fn no_candidate_is_an_error_and_nan_is_never_chosen() {
    let params = SamplingParams { banned_tokens: (0..6).collect(), ..hot() };
    let (mut logits, mut scratch) = (LOGITS, [0; 6]);
    let mut row = LogitRow { logits: &mut logits, scratch: &mut scratch };
    assert_eq!(sample(&mut row, &params, NO_HISTORY), Err(SamplingError::NoCandidate));
    let (mut logits, mut scratch) = ([f32::NAN, 1.0, f32::NAN], [0; 3]);
    let mut row = LogitRow { logits: &mut logits, scratch: &mut scratch };
    assert_eq!(sample(&mut row, &hot(), NO_HISTORY).unwrap().token, 1);
}

#[test]
fn top_p_over_a_large_vocabulary_equals_a_full_sort() {
    let logits: Vec<f32> = (0..5000_u64).map(|n| random::bits(1, n) as f32 / u64::MAX as f32).collect();
    let mut sorted: Vec<u32> = (0..5000).collect();
    sorted.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    let params = SamplingParams { top_p: 0.5, ..hot() };
    let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
    let mut mass = 0.0;
    let nucleus: Vec<u32> = sorted
        .into_iter()
        .take_while(|id| {
            let within = mass < 0.5 * total;
            mass += f64::from(logits[*id as usize]).exp();
            within
        })
        .collect();
    for seed in 0..300 {
        let (mut copy, mut scratch) = (logits.clone(), vec![0; 5000]);
        let mut row = LogitRow { logits: &mut copy, scratch: &mut scratch };
        let token = sample(&mut row, &SamplingParams { seed, ..params.clone() }, NO_HISTORY).unwrap().token;
        assert!(nucleus.contains(&token), "{token} is outside the nucleus");
    }
}
