//! Models of the workspace's generator, created per test.

use std::process::Command;

use crate::support::binary;

/// Arguments of the generator.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// `llama` or `opt`.
    pub family: &'static str,
    /// `f32`, `f16` or `bf16`.
    pub dtype: &'static str,
    pub layers: u16,
    /// Width; four query heads, and two key-value heads if the family allows it.
    pub hidden: u32,
    pub vocab: u32,
}

impl Shape {
    fn kv_heads(&self) -> u32 {
        if self.family == "opt" { 4 } else { 2 }
    }

    /// Returns the KV of one sequence, bytes.
    pub fn kv_bytes(&self, tokens: u64) -> u64 {
        let value_bytes = if self.dtype == "f32" { 4 } else { 2 };
        let width = u64::from(self.kv_heads() * self.hidden / 4);
        tokens * 2 * width * value_bytes * u64::from(self.layers)
    }
}

/// Generates the model into a temporary folder.
pub fn generate(shape: &Shape) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let Shape { family, dtype, layers, hidden, vocab } = shape;
    let mut command = Command::new(binary("sluice-model-gen"));
    command.arg("--out").arg(folder.path()).args(["--family", family, "--dtype", dtype]);
    let numbers = [
        ("--layers", u32::from(*layers)),
        ("--hidden", *hidden),
        ("--heads", 4),
        ("--kv-heads", shape.kv_heads()),
        ("--vocab", *vocab),
        ("--max-positions", 512),
    ];
    for (name, number) in numbers {
        command.arg(name).arg(number.to_string());
    }
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}: {status}");
    folder
}
