//! Argmax and top-k against the host's sampler and a sort.

use std::cmp::Ordering;

use sluice_kernels::cuda::sampling::{argmax, argmax_keys, candidate, top_k, top_k_keys};
use sluice_kernels::forward::LogitRow;
use sluice_kernels::sampling::{History, SamplingParams, sample};
use sluice_link::model::Dtype;

use super::device::Device;
use super::values::Random;

/// Logits with ties, zeros of both signs, and some that can never be chosen.
fn logits(random: &mut Random, count: usize) -> Vec<f32> {
    let mut logits = random.normal(Dtype::Bf16, count);
    for _ in 0..count / 7 + 1 {
        let at = random.below(0..count as u32) as usize;
        logits[at] = random.choose(&[f32::NAN, f32::NEG_INFINITY, 0.0, -0.0, 3.0]);
    }
    logits
}

fn greedy(logits: &[f32]) -> Option<u32> {
    let (mut logits, mut scratch) = (logits.to_vec(), vec![0; logits.len()]);
    let mut row = LogitRow { logits: &mut logits, scratch: &mut scratch };
    let history = History { tokens: &[0], prompt_tokens: 1 };
    sample(&mut row, &SamplingParams::default(), history).ok().map(|sampled| sampled.token)
}

pub fn run_argmax(device: &Device, logits: &[f32], vocabulary: usize) -> Vec<u32> {
    let rows = logits.len() / vocabulary;
    let keys = device.reserve::<u64>(rows * argmax_keys(vocabulary as u32) as usize);
    let tokens = device.reserve::<u32>(rows);
    for plan in argmax(device.upload(logits), keys, tokens, vocabulary as u32, rows as u32) {
        device.run(&plan);
    }
    device.download(tokens, rows)
}

pub fn argmax_case(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let (vocabulary, rows) = (random.below(1..5000) as usize, random.below(1..4) as usize);
    let logits = logits(&mut random, rows * vocabulary);
    let expected = logits.chunks(vocabulary).map(|row| greedy(row).unwrap_or(u32::MAX));
    let got = run_argmax(device, &logits, vocabulary);
    assert_eq!(got, expected.collect::<Vec<_>>(), "seed {seed}: {vocabulary}");
}

#[test]
fn the_largest_logit_is_that_of_the_hosts_greedy_choice() {
    (0..24).for_each(|seed| argmax_case(&Device::fast(), seed));
    let all = vec![f32::NAN; 2048];
    assert_eq!(run_argmax(&Device::fast(), &all, 2048), [u32::MAX], "nothing can be chosen");
}

#[test]
fn the_largest_vocabulary_has_its_last_token_and_its_ties() {
    let vocabulary = 262_144;
    let mut random = Random(3);
    let mut logits = random.normal(Dtype::Bf16, 2 * vocabulary);
    logits[vocabulary - 1] = 50.0;
    logits[vocabulary + 77_777] = 60.0;
    logits[vocabulary + 200_000] = 60.0;
    let got = run_argmax(&Device::fast(), &logits, vocabulary);
    assert_eq!(got, [262_143, 77_777]);
}

fn run_top_k(device: &Device, logits: &[f32], vocabulary: usize, k: usize) -> Vec<Option<(u32, f32)>> {
    let rows = logits.len() / vocabulary;
    let room = rows * top_k_keys(vocabulary as u32, k as u32) as usize;
    let keys = [device.reserve::<u64>(room), device.reserve::<u64>(room)];
    let shape = (vocabulary as u32, k as u32);
    let (plans, output) = top_k(device.upload(logits), keys, shape, rows as u32).unwrap();
    plans.iter().for_each(|plan| device.run(plan));
    device.download(output, rows * k).into_iter().map(candidate).collect()
}

/// The order of the host's candidates: larger logit, then lower token; without what has no weight.
fn sorted(logits: &[f32], k: usize) -> Vec<Option<(u32, f32)>> {
    let mut all: Vec<_> = (0..).zip(logits.iter().copied()).filter(|(_, x)| *x > f32::NEG_INFINITY).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| -> Ordering { b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)) };
    all.sort_by(order);
    all.into_iter().map(Some).chain(std::iter::repeat(None)).take(k).collect()
}

pub fn top_k_case(device: &Device, seed: u64) {
    let mut random = Random(seed);
    let (vocabulary, rows) = (random.below(1..6000) as usize, random.below(1..3) as usize);
    let k = random.below(1..65) as usize;
    let logits = logits(&mut random, rows * vocabulary);
    top_k_of(device, &logits, vocabulary, k);
}

/// As many keys between two launches as one block sorts, and largest logits in every part of the row.
pub fn wide_top_k_case(device: &Device, seed: u64) {
    let vocabulary = 65_536;
    top_k_of(device, &Random(seed).normal(Dtype::F32, vocabulary), vocabulary, 64);
}

fn top_k_of(device: &Device, logits: &[f32], vocabulary: usize, k: usize) {
    let expected: Vec<_> = logits.chunks(vocabulary).flat_map(|row| sorted(row, k)).collect();
    let tokens = |all: &[Option<(u32, f32)>]| -> Vec<_> {
        all.iter().map(|one| one.map(|(token, logit)| (token, logit.to_bits()))).collect()
    };
    let got = run_top_k(device, logits, vocabulary, k);
    assert_eq!(tokens(&got), tokens(&expected), "{vocabulary}, {k}");
}

#[test]
fn the_largest_logits_are_those_of_a_sort() {
    (0..20).for_each(|seed| top_k_case(&Device::fast(), seed));
    wide_top_k_case(&Device::fast(), 22);
}
