//! The command line.

use std::path::PathBuf;

use anyhow::{Context, bail};

/// Sizes of the engine's memory.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) socket: PathBuf,
    pub(crate) chunk_bytes: u64,
    pub(crate) capacity_chunks: u32,
    pub(crate) layer_chunks: Vec<u32>,
    pub(crate) kv_chunks: u32,
    /// Extents with memory at the start.
    pub(crate) extents: u32,
}

impl Options {
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Options> {
        let socket = arguments.next().context("the socket's path is missing")?.into();
        let mut options = Options {
            socket,
            chunk_bytes: 65_536,
            capacity_chunks: 16_384,
            layer_chunks: Vec::new(),
            kv_chunks: 16_384,
            extents: 4,
        };
        while let Some(name) = arguments.next() {
            let value = arguments.next().with_context(|| format!("{name} has no value"))?;
            match name.as_str() {
                "--chunk-bytes" => options.chunk_bytes = value.parse()?,
                "--capacity" => options.capacity_chunks = value.parse()?,
                "--layer-chunks" => options.layer_chunks = layers(&value)?,
                "--kv-chunks" => options.kv_chunks = value.parse()?,
                "--extents" => options.extents = value.parse()?,
                _ => bail!("unknown option {name}"),
            }
        }
        Ok(options)
    }
}

/// Reads `3x30` (30 layers of 3 chunks) or `3,4,3`, or both joined by commas.
fn layers(text: &str) -> anyhow::Result<Vec<u32>> {
    let mut chunks = Vec::new();
    for part in text.split(',') {
        let (size, count) = part.split_once('x').unwrap_or((part, "1"));
        chunks.extend(std::iter::repeat_n(size.parse::<u32>()?, count.parse()?));
    }
    Ok(chunks)
}
