//! Sizes of KV and of small processes, which `sluice run` and `sluice demo` share with the operator.

/// Tokens of a block of KV.
pub const BLOCK_TOKENS: u64 = 16;
/// Host memory of a process without weights: an engine on host memory, a download, an inspection. Bytes.
pub const SMALL_PROCESS_BYTES: u64 = 256 << 20;

/// Returns the KV of one block of one layer, bytes; at least 1.
pub fn block_bytes(kv_bytes_per_token: u64, layers: u32) -> u64 {
    (BLOCK_TOKENS * kv_bytes_per_token / u64::from(layers.max(1))).max(1)
}

/// Returns the blocks of all layers that hold the KV of a sequence of `tokens`.
pub fn sequence_blocks(tokens: u32, layers: u32) -> u64 {
    u64::from(tokens).div_ceil(BLOCK_TOKENS) * u64::from(layers)
}

/// Returns the chunks of `chunk_bytes` that hold `blocks` of `block_bytes` each. A block never straddles two chunks;
/// a block larger than a chunk counts as one chunk.
pub fn block_chunks(blocks: u64, block_bytes: u64, chunk_bytes: u64) -> u64 {
    blocks.div_ceil((chunk_bytes / block_bytes).max(1))
}
