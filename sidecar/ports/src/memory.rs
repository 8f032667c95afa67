//! Memory: carries out what the ledger ordered, and nothing else.

use sluice_policy::action::Action;
use sluice_policy::event::Completion;
use sluice_policy::ids::Nanos;

/// A backend that owns physical chunks, maps them at constant addresses and copies slabs and blocks.
///
/// Contract, checked by the conformance suite:
/// - every submitted action completes exactly once, also when it fails;
/// - `Create` beyond the capacity fails with `OutOfMemory` and leaves nothing behind;
/// - `Reback`, `MoveBlocks`, `SwapOut`, `SwapIn`, `Create` and `Release` take effect in the order submitted; a `Reback` is complete only when
///   the engine, if there is one, has acknowledged it;
/// - fills run in the order submitted within one slot, start only when their `after` is satisfied, and publish their
///   generation after the last byte;
/// - an operation that contradicts the backend's own table (unmap of what is not mapped there, map over a mapping, a
///   chunk that was never created) fails with `Refused` and changes nothing.
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
