//! Memory: runs the actions of the policy.

use sluice_policy::action::Action;
use sluice_policy::event::Completion;
use sluice_policy::ids::Nanos;

/// Number of chunks of each of the engine's ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSizes {
    /// Embeddings, head and final norm.
    pub global_chunks: u32,
    /// Each layer's slab, front first.
    pub layer_chunks: Vec<u32>,
    /// KV chunks of the KV arena.
    pub kv_chunks: u32,
    /// Activations.
    pub activation_chunks: u32,
    /// Staging copies.
    pub staging_chunks: u32,
}

/// A backend that owns physical chunks, maps them at constant addresses and copies slabs and blocks.
///
/// Contract, checked by the conformance suite:
/// - Every submitted action completes exactly once, also when it fails.
/// - `Create` beyond the capacity fails with `OutOfMemory` and creates no chunk.
/// - `Transaction`, `MoveLayerBlocks`, `SwapOut`, `SwapIn`, `Create` and `Release` take effect in submission order. A
///   `Transaction` is complete only when the engine, if there is one, has acknowledged it.
/// - A `Transaction` makes its changes in their order: during it a chunk may back its old and its new address, and
///   counts once. A `Transaction` after which a chunk would back addresses of two owners
///   ([`sluice_policy::action::Address::may_share`]) fails with `Refused` and changes nothing.
/// - Fills of one slot run in submission order, start only when their `after` is satisfied, and publish their
///   generation after the last byte.
/// - An operation that contradicts the backend's own table (unmap of a chunk that is not mapped there, map
///   over a mapping, a chunk that was never created) fails with `Refused` and changes nothing.
/// - A host block has the generation of the last `SwapOut` that named it, from the last byte of that order
///   on, and no generation from the order's first byte until then. A `SwapOut` that fails in the middle
///   (`CopyFailed`) leaves all its host blocks without a generation. A `SwapIn` that does so leaves undefined
///   contents in the blocks of the device, which must not be read.
/// - A swap fails with `Refused` and changes nothing when a block is not where the swap says (a KV chunk that
///   another chunk backs, a chunk under a fill, a host block beyond the tier), when it names a host block or
///   a block of the device twice, and, for a `SwapIn`, when a host block does not have exactly the named
///   generation. A backend without a tier has no host blocks.
/// - A `Fetch` is a fill: it runs in submission order within its buffer and among the fetches of its layer,
///   starts only when its `after` is satisfied (by the KV word `done`), and publishes its generation as the
///   layer's KV word `ready` after its last byte. It fails with `Refused` and changes nothing when at its
///   start a host block does not have exactly the named generation. A fetch that fails with `CopyFailed`
///   publishes nothing and leaves undefined contents, which must not be read.
/// - A `WriteBack` runs concurrently with steps and all other actions, in submission order among write-backs,
///   and names host blocks as a `SwapOut` does. `DropFills` drops fetches that have not started and no
///   write-backs.
/// - Both start after all operations submitted before them that name one of their chunks or host blocks. From
///   then on until they end, no other order reads or writes a block that a fetch writes (except another
///   fetch, in order), none writes a block that a write-back reads, none names a host block that a write-back
///   writes, and the chunks are neither unmapped from their KV chunks, released, filled nor handed over. An
///   order that would do so fails with `Refused`. An activation address of such a chunk from before it was KV
///   may be unmapped. A host block that a waiting fetch will read may be written; the fetch is then refused.
/// - A `Spill` names blocks of a buffer that the step of its generation writes. It runs in submission order
///   among the fetches and spills of its buffer, starts only when the KV word `done` of its layer has reached
///   its generation, and names host blocks as a `WriteBack` does, except that a later fetch into the same
///   buffer may name them too. `DropFills` drops spills that have not started, and their host blocks keep
///   their contents.
/// - A `SwapIn` may run during a step that reads none of its blocks.
/// - Swaps, fetches and write-backs need no engine. A completed one reports the bytes copied over the link
///   and the time taken.
pub trait Memory {
    /// Submits `action`. Never blocks on a copy.
    fn submit(&mut self, now: Nanos, action: Action);

    /// Returns the next action that has ended by `now`, in the order of ending.
    fn poll(&mut self, now: Nanos) -> Option<Completion>;

    /// Returns when the next completion is due, for backends that know it (simulation). `None` = unknown or
    /// nothing pending.
    fn next_due(&self) -> Option<Nanos> {
        None
    }

    /// Returns the bytes of existing physical memory, including driver overhead: the left side of the
    /// capacity equation.
    fn used_bytes(&self) -> u64;
}
