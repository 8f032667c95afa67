//! Layer-blocks, fills, the wait for a layer, and the check that it was not overtaken (`memory.cu`).

use super::Address;
use super::arguments::arguments;
use super::plan::{LaunchPlan, Module, ShapeError, blocks, multiple};

arguments! {
    /// Where layer-blocks lie: whole blocks fill chunks, and the rest of a chunk is not used. A block holds
    /// K `[kv_heads][16][dim]`, then V `[kv_heads][16][dim]`.
    KvArena {
        /// Address of the first chunk.
        base: Address,
        /// Bytes from one chunk to the next.
        chunk_bytes: u64,
        /// Bytes of a block; a multiple of 16.
        block_bytes: u32,
        /// Blocks of a chunk.
        per_chunk: u32,
    }
}

arguments! {
    /// Copies whole layer-blocks to or from a buffer.
    KvCopy {
        /// Where layer-blocks lie.
        arena: KvArena,
        /// `[blocks]`, u32.
        ids: Address,
        /// `[blocks][block_bytes]`.
        buffer: Address,
    }
}

arguments! {
    /// Fills memory with a pattern.
    Fill {
        /// Address, a multiple of 16.
        to: Address,
        /// Number of 16-byte pieces.
        count: u64,
        /// Four bytes.
        pattern: u32,
        /// Zero.
        unused: u32,
    }
}

arguments! {
    /// Waits for published generations before a layer's first read, or stops the step.
    WaitReady {
        /// `[count]` x `stride`, u64: what the sidecar has published.
        ready: Address,
        /// `[count]`, u64; 0 waits for nothing.
        expected: Address,
        /// One u64; another number than 0 ends the wait and stops the step.
        ended: Address,
        /// `[count]`, u64: each becomes 1 if a later generation is published, which stops the step.
        overtaken: Address,
        /// `[count + 1]`, u64: nanoseconds before the first wait, and after each.
        times: Address,
        /// One u32, 0 when the step begins; becomes 1 if the layer must not be computed.
        stopped: Address,
        /// Generations to wait for.
        count: u32,
        /// Words of 8 bytes from one published generation to the next.
        stride: u32,
    }
}

arguments! {
    /// Compares published generations with expected ones after a layer's last read. In a step that is stopped it does
    /// nothing.
    CheckReady {
        /// `[count]` x `stride`, u64: what the sidecar has published.
        ready: Address,
        /// `[count]`, u64; 0 expects nothing.
        expected: Address,
        /// `[count]`, u64: each becomes 1 if another generation is published.
        overtaken: Address,
        /// One u64, which becomes the time in nanoseconds after the comparison, if no other generation is published.
        passed: Address,
        /// One u32, 0 when the step begins; becomes 1 if another generation is published.
        stopped: Address,
        /// Generations to compare, at most 32.
        count: u32,
        /// Words of 8 bytes from one published generation to the next.
        stride: u32,
    }
}

impl KvArena {
    /// An arena of blocks of `block_bytes` at `base`.
    ///
    /// # Panics
    /// If no block fits into a chunk.
    pub fn new(base: Address, chunk_bytes: u64, block_bytes: u32) -> Self {
        let per_chunk = chunk_bytes / u64::from(block_bytes);
        assert!(per_chunk > 0, "a block of {block_bytes} bytes fits into no chunk of {chunk_bytes}");
        let per_chunk = u32::try_from(per_chunk).expect("a chunk has fewer than 2^32 blocks");
        KvArena { base, chunk_bytes, block_bytes, per_chunk }
    }

    /// Returns the address of a block.
    pub fn address(&self, id: u32) -> Address {
        let (chunk, within) = (id / self.per_chunk, id % self.per_chunk);
        self.base + u64::from(chunk) * self.chunk_bytes + u64::from(within) * u64::from(self.block_bytes)
    }
}

impl KvCopy {
    /// Plans the copy of `count` blocks to the buffer.
    ///
    /// # Errors
    /// If a block is not a multiple of 16 bytes.
    pub fn gather(&self, count: u32) -> Result<LaunchPlan, ShapeError> {
        self.plan("sluice_kv_gather", count)
    }

    /// Plans the copy of `count` blocks from the buffer.
    ///
    /// # Errors
    /// If a block is not a multiple of 16 bytes.
    pub fn scatter(&self, count: u32) -> Result<LaunchPlan, ShapeError> {
        self.plan("sluice_kv_scatter", count)
    }

    fn plan(&self, kernel: &'static str, count: u32) -> Result<LaunchPlan, ShapeError> {
        multiple("the bytes of a layer-block", self.arena.block_bytes, 16)?;
        Ok(LaunchPlan::new((Module::Memory, kernel), [count, 1, 1], 256, self))
    }
}

impl Fill {
    /// Plans the fill, with at most 1024 blocks.
    pub fn plan(&self) -> LaunchPlan {
        let grid = [blocks(self.count.min(1024 * 256), 256), 1, 1];
        LaunchPlan::new((Module::Memory, "sluice_fill"), grid, 256, self)
    }
}

impl WaitReady {
    /// Plans the wait.
    pub fn plan(&self) -> LaunchPlan {
        LaunchPlan::new((Module::Memory, "sluice_wait_ready"), [1, 1, 1], 32, self)
    }
}

impl CheckReady {
    /// Plans the check.
    ///
    /// # Panics
    /// If there are more than 32 generations.
    pub fn plan(&self) -> LaunchPlan {
        assert!(self.count <= 32, "{} generations are more than one warp compares", self.count);
        LaunchPlan::new((Module::Memory, "sluice_check_ready"), [1, 1, 1], 32, self)
    }
}
