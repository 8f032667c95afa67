//! What tests share: arguments, random numbers.

use sluice_ptx::{Kernel, Module};

/// Arguments of a launch, laid out as the kernel's parameters are.
pub struct Arguments<'k> {
    kernel: &'k Kernel,
    next: usize,
    pub bytes: Vec<u8>,
}

impl<'k> Arguments<'k> {
    pub fn of(kernel: &'k Kernel) -> Self {
        Arguments { kernel, next: 0, bytes: vec![0; kernel.param_bytes()] }
    }

    /// The next argument, by its bytes.
    pub fn with(mut self, value: &[u8]) -> Self {
        let param = &self.kernel.params()[self.next];
        assert_eq!(param.bytes, value.len(), "size of argument {}", param.name);
        self.bytes[param.offset..param.offset + value.len()].copy_from_slice(value);
        self.next += 1;
        self
    }

    pub fn u64(self, value: u64) -> Self {
        self.with(&value.to_le_bytes())
    }
}

/// The module of the GPU probe.
pub fn probe() -> Module {
    Module::parse(include_str!("../../probe/cuda/probe.ptx")).expect("the committed PTX of the probe parses")
}

/// A pseudorandom stream (xorshift) that is the same everywhere.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A whole number below `end`, as a float.
    pub fn small(&mut self, end: u64) -> f32 {
        (self.next() % end) as f32
    }
}
