//! Memory: carries out what the ledger ordered, and nothing else.

use sluice_policy::action::Action;
use sluice_policy::event::Completion;
use sluice_policy::ids::Nanos;

/// A backend that owns physical chunks, maps them at constant addresses and copies slabs and blocks.
///
/// Contract, checked by the conformance suite:
/// - every submitted action completes exactly once, also when it fails;
/// - `Create` beyond the capacity fails with `OutOfMemory` and leaves nothing behind;
/// - `Reback`, `MoveBlocks`, `SwapOut`, `SwapIn`, `Create` and `Release` take effect in the order submitted; a `Reback` is
///   complete only when the engine, if there is one, has acknowledged it;
/// - a `Reback` makes its changes in their order: on the way a chunk may be behind its old and its new address, and counts once.
///   One after which a chunk would be behind addresses of two owners ([`sluice_policy::action::Address::may_share`]) fails with
///   `Refused` and changes nothing;
/// - fills run in the order submitted within one slot, start only when their `after` is satisfied, and publish their
///   generation after the last byte;
/// - an operation that contradicts the backend's own table (unmap of what is not mapped there, map over a mapping, a
///   chunk that was never created) fails with `Refused` and changes nothing;
/// - a host block carries the generation of the last `SwapOut` that named it, from the last byte of that order on, and
///   nothing from the order's first byte until then. A `SwapOut` that fails half way (`CopyFailed`) leaves all its host
///   blocks without a generation, a `SwapIn` that does leaves the blocks of the device with contents nobody may read;
/// - a swap fails with `Refused` and changes nothing when a block is not where it says (a frame that another chunk backs, a
///   chunk under a fill, a host block beyond the tier), when it names a host block or a block of the device twice, and, on
///   the way in, when a host block does not carry exactly its generation. A body without a tier has no host block;
/// - a `Fetch` is a fill: it runs in the order submitted within its buffer and among those of its layer, starts only when
///   its `after` is satisfied (by the KV word `done`), and publishes its generation as the layer's KV word `ready` after its
///   last byte. It is `Refused`, and nothing changes, when at its start a host block does not carry exactly its generation.
///   One that fails (`CopyFailed`) publishes nothing and leaves contents nobody may read;
/// - a `WriteBack` runs beside steps and everything else, in the order submitted among its like, and names host blocks as a
///   `SwapOut` does. `DropFills` drops fetches that have not started and leaves write-backs alone;
/// - both start after all operations submitted before them that name one of their chunks or host blocks. From then on until
///   they end, a block that a fetch writes is neither read nor written by another order (but another fetch, in its turn), one
///   that a write-back reads is not written, a host block that it writes is named by nobody else, and the chunks are neither
///   unmapped from their frames, released, filled nor handed over: whoever orders that is `Refused`. An activation address
///   that such a chunk had before may go. A host block that a waiting fetch will read may be written; the fetch is refused then;
/// - a `Spill` names blocks of a buffer that the step of its generation writes. It runs in the order submitted among the fetches
///   and spills of its buffer, starts only when the KV word `done` of its layer has reached its generation, and names host blocks
///   as a `WriteBack` does, but that a fetch into the same buffer, which comes after it, may name them too. `DropFills` drops
///   spills that have not started, and their host blocks carry what they carried;
/// - a `SwapIn` may run while a step does that reads none of its blocks;
/// - swaps, fetches and write-backs need no engine. A completed one reports the bytes that passed the link, and the time they took.
pub trait Memory {
    /// Orders `action`. Never blocks on a copy.
    fn submit(&mut self, now: Nanos, action: Action);

    /// The next action that has ended by `now`, in the order of ending.
    fn poll(&mut self, now: Nanos) -> Option<Completion>;

    /// When the next completion is due, for bodies that know it (simulation). `None` = unknown or nothing pending.
    fn next_due(&self) -> Option<Nanos> {
        None
    }

    /// Bytes of physical memory that exist, driver overhead included: the left side of the capacity equation.
    fn used_bytes(&self) -> u64;
}
