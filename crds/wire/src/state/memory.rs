//! Device memory in a state: its owners, the contents of the KV cache, and recent moves.

use serde::{Deserialize, Serialize};

/// Device memory. The capacity equation (DESIGN 1): `capacity_bytes` = `overhead_bytes` + the sum over owners.
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

/// The KV cache, in layer-blocks (16 tokens of one layer).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvState {
    /// Blocks in backed frames. `blocks_total` = used + cached + free.
    pub blocks_total: u64,
    /// Blocks that a request refers to.
    pub blocks_used: u64,
    /// Blocks of the prefix cache that no request refers to: the first to be reclaimed.
    pub blocks_cached: u64,
    /// Blocks without contents.
    pub blocks_free: u64,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Frames that take no new block because their chunk is to be returned.
    pub draining_frames: u32,
    /// Share of the blocks without contents that sit in frames with contents, permille: what compaction could free.
    pub fragmentation_permille: u32,
    /// Used blocks of the total, permille.
    pub utilisation_permille: u32,
    /// Blocks in the host tier: KV of requests that wait, and prefix cache.
    pub host_blocks_used: u64,
    /// Capacity of the host tier, blocks.
    pub host_blocks_limit: u64,
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
