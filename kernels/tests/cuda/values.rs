//! Random numbers that a format holds exactly, and comparisons with a bound.

use half::{bf16, f16};
use sluice_kernels::cuda::Address;
use sluice_link::model::Dtype;

use super::device::Device;

/// The formats of models.
pub const DTYPES: [Dtype; 3] = [Dtype::Bf16, Dtype::F16, Dtype::F32];

/// A seeded source of numbers (SplitMix64, Steele et al. 2014).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `range`.
    pub fn below(&mut self, range: std::ops::Range<u32>) -> u32 {
        range.start + (self.bits() % u64::from(range.end - range.start)) as u32
    }

    /// One of `choices`.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(0..choices.len() as u32) as usize]
    }

    /// Numbers of about normal distribution (sum of four uniform ones), rounded to `dtype`.
    pub fn normal(&mut self, dtype: Dtype, count: usize) -> Vec<f32> {
        let mut uniform = || (self.bits() >> 40) as f32 / (1u32 << 24) as f32 - 0.5;
        (0..count).map(|_| round(dtype, 1.7 * (uniform() + uniform() + uniform() + uniform()))).collect()
    }

    /// The numbers `0..count` in random order.
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<_> = (0..count).collect();
        for last in (1..count).rev() {
            all.swap(last as usize, self.below(0..last + 1) as usize);
        }
        all
    }
}

/// Rounds to a format.
pub fn round(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::Bf16 => bf16::from_f32(value).to_f32(),
    }
}

/// Bytes of numbers in a format.
pub fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F32 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_ne_bytes()).collect(),
        Dtype::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_ne_bytes()).collect(),
    }
}

/// Numbers of a format from their bytes.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let short = |bytes: &[u8]| u16::from_ne_bytes(bytes.try_into().unwrap());
    match dtype {
        Dtype::F32 => bytes.chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect(),
        Dtype::F16 => bytes.chunks(2).map(|two| f16::from_bits(short(two)).to_f32()).collect(),
        Dtype::Bf16 => bytes.chunks(2).map(|two| bf16::from_bits(short(two)).to_f32()).collect(),
    }
}

impl Device<'_> {
    /// Copies numbers to new memory in a format.
    pub fn upload_as(&self, dtype: Dtype, values: &[f32]) -> Address {
        self.upload(&encode(dtype, values))
    }

    /// Memory without contents for numbers of a format.
    pub fn reserve_as(&self, dtype: Dtype, count: usize) -> Address {
        self.reserve::<u8>(count * dtype.bytes())
    }

    /// Copies numbers of a format back.
    pub fn download_as(&self, dtype: Dtype, address: Address, count: usize) -> Vec<f32> {
        decode(dtype, &self.download(address, count * dtype.bytes()))
    }
}

/// Compares results with exact values; `bound(i)` is the largest error of element `i`.
pub fn assert_close(context: &str, got: &[f32], exact: &[f64], bound: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), exact.len(), "{context}");
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        let (error, bound) = ((f64::from(*got) - exact).abs(), bound(i));
        assert!(
            error <= bound,
            "{context}: element {i} is {got}, not {exact}: off by {error:e}, not {bound:e}"
        );
    }
}

/// Bits of numbers, to compare results that must not differ at all.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
