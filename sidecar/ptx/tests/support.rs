//! What tests share: arguments, random numbers.

use sluice_ptx::{Arena, Fault, Kernel, Launch, Mode, Module, Options, Plain, launch};

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

/// A kernel `k` around `body`, whose one parameter, the address of its data, is in `%rd0` and the thread's number in
/// `%r0`. It has registers of all kinds and 1 KiB of shared memory, `s`.
pub fn text(body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 p)
{{
.reg .pred %p<8>;
.reg .b16 %rs<16>;
.reg .b32 %r<32>;
.reg .f32 %f<32>;
.reg .b64 %rd<16>;
.reg .f64 %fd<8>;
.shared .align 16 .b8 s[1024];
ld.param.u64 %rd0, [p];
mov.u32 %r0, %tid.x;
{body}
ret;
}}
"
    )
}

/// Parses [`text`] around `body`.
pub fn module(body: &str) -> Module {
    Module::parse(&text(body)).unwrap()
}

/// Runs [`text`] around `body` over `data`, which has its address as the parameter, and returns the data.
pub fn run<T: Plain>(body: &str, data: &[T], grid: u32, block: u32, mode: Mode) -> Result<Vec<T>, Fault> {
    run_module(&module(body), data, grid, block, mode)
}

/// As [`run`], of a parsed module.
pub fn run_module<T: Plain>(
    module: &Module,
    data: &[T],
    grid: u32,
    block: u32,
    mode: Mode,
) -> Result<Vec<T>, Fault> {
    let mut arena = Arena::new();
    let address = arena.alloc_with(data);
    let params = address.to_le_bytes();
    let what = Launch { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared_bytes: 0, params: &params };
    launch(module.kernel("k").unwrap(), &what, &arena, &Options { mode, ..Options::default() })?;
    Ok(arena.read(address, data.len()))
}
