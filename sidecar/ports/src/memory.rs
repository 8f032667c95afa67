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
/// - swaps need no engine. A completed swap reports the bytes that passed the link, and the time they took.
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
