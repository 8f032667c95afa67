//! Device memory in a state: its owners, the contents of the KV cache, and recent moves.

use serde::{Deserialize, Serialize};

/// Device memory. The capacity equation: `capacity_bytes` = `overhead_bytes` + the sum over owners.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryState {
    /// Device memory that this tenant may use, bytes.
    pub capacity_bytes: u64,
    /// Unit in which it changes hands, bytes.
    pub chunk_bytes: u64,
    /// Measured overhead of the driver (contexts, workspaces), bytes; 0 on host.
    pub overhead_bytes: u64,
    /// Bytes by owner of their chunks.
    pub owners: OwnerBytes,
    /// Bytes that come to exist or go at this moment: the device may be ahead of the ledger by as many.
    pub in_transit_bytes: u64,
}

impl MemoryState {
    /// Whether the capacity equation holds, but for what is in transit. Never true by wrap-around.
    pub fn balances(&self) -> bool {
        let owned = self.owners.total().and_then(|owned| owned.checked_add(self.overhead_bytes));
        owned.is_some_and(|owned| owned.abs_diff(self.capacity_bytes) <= self.in_transit_bytes)
    }
}

/// Bytes of chunks by owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnerBytes {
    /// Embeddings, head, norms.
    pub weights_global_bytes: u64,
    /// Layers that are resident, each in chunks of its own.
    pub weights_layers_bytes: u64,
    /// Slots that moving layers share.
    pub slots_bytes: u64,
    /// KV cache.
    pub kv_bytes: u64,
    /// Activations.
    pub activation_bytes: u64,
    /// Staging of copies.
    pub staging_bytes: u64,
    /// Promised to a peer, not handed over yet.
    pub earmarked_bytes: u64,
    /// No owner.
    pub free_bytes: u64,
}

impl OwnerBytes {
    /// The owners by name, in the order in which a memory map shows them.
    pub fn by_name(&self) -> [(&'static str, u64); 8] {
        [
            ("weights_global", self.weights_global_bytes),
            ("weights_layers", self.weights_layers_bytes),
            ("slots", self.slots_bytes),
            ("kv", self.kv_bytes),
            ("activation", self.activation_bytes),
            ("staging", self.staging_bytes),
            ("earmarked", self.earmarked_bytes),
            ("free", self.free_bytes),
        ]
    }

    /// Sum over owners, bytes; `None` when it overflows.
    pub fn total(&self) -> Option<u64> {
        self.by_name().iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes))
    }
}

/// The KV cache, in layer blocks: one layer's part of a block, which is 16 tokens of all layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvState {
    /// Layer blocks in chunks of the KV cache. `layer_blocks_total` = used + cached + free.
    #[serde(alias = "blocks_total")]
    pub layer_blocks_total: u64,
    /// Layer blocks that a request refers to.
    #[serde(alias = "blocks_used")]
    pub layer_blocks_used: u64,
    /// Layer blocks of the prefix cache that no request refers to: the first to be reclaimed.
    #[serde(alias = "blocks_cached")]
    pub layer_blocks_cached: u64,
    /// Layer blocks without contents.
    #[serde(alias = "blocks_free")]
    pub layer_blocks_free: u64,
    /// Bytes of one layer block.
    #[serde(alias = "block_bytes")]
    pub layer_block_bytes: u64,
    /// Chunks that take no new layer block because they are to be returned.
    #[serde(alias = "draining_frames")]
    pub draining_chunks: u32,
    /// Layer blocks without contents in chunks with contents, of all without contents, permille: what compaction could
    /// free.
    pub fragmentation_permille: u32,
    /// Used layer blocks of the total, permille.
    pub utilisation_permille: u32,
    /// Layer blocks in the host tier: KV of requests that wait, and prefix cache.
    #[serde(alias = "host_blocks_used")]
    pub host_layer_blocks_used: u64,
    /// Capacity of the host tier, layer blocks.
    #[serde(alias = "host_blocks_limit")]
    pub host_layer_blocks_limit: u64,
}

/// A memory event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Move {
    /// When, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// Why: the label of the policy's `Reason`.
    pub reason: String,
    /// What, for people.
    pub detail: String,
    /// The layers concerned, ascending; empty when none is.
    pub layers: Vec<u16>,
    /// Bytes that changed their owner.
    pub bytes: u64,
}
