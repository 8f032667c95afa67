//! The resources that tenants of one GPU share apart from memory: the link to the host, and the processors.
//!
//! Each direction of the link serves one copy at a time, in start order. A copy into the device runs at the coupled
//! rate while the other direction is busy; a running copy is not slowed by a copy that starts later.

use std::cell::RefCell;
use std::rc::Rc;

use sluice_policy::ids::Nanos;

use crate::device::profile::Profile;
use crate::direction::Direction;

/// One machine, shared by the devices of a GPU.
pub type SharedMachine = Rc<RefCell<Machine>>;

/// Link and processors of one GPU.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// When each direction becomes free: in, out.
    busy_until: [Nanos; 2],
    /// Bytes transferred in each direction.
    bytes: [u64; 2],
    /// Number of steps that run now.
    computing: u64,
    /// Whether concurrent steps share the processors evenly. Otherwise each tenant has its own partition, or tenants
    /// run in time slices.
    pub(crate) shares_compute: bool,
}

/// The transfer of a copy on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTransfer {
    /// When the last byte has been transferred.
    pub ends: Nanos,
    /// Nanoseconds from the request to the last byte, including the wait for copies of peers.
    pub ns: u64,
}

impl Machine {
    /// Creates a machine with one tenant.
    pub fn single_tenant() -> SharedMachine {
        SharedMachine::default()
    }

    /// Creates a machine on which concurrent steps share the processors, or do not.
    pub fn with_shared_compute(shares_compute: bool) -> Machine {
        Machine { shares_compute, ..Machine::default() }
    }

    /// Transfers `bytes` from `now`, or when the direction is free, at a rate divided by `slowdown`.
    pub fn transfer(
        &mut self,
        now: Nanos,
        way: Direction,
        bytes: u64,
        profile: &Profile,
        slowdown: u64,
    ) -> LinkTransfer {
        let (own, other) = match way {
            Direction::In => (0, 1),
            Direction::Out => (1, 0),
        };
        let starts = now.max(self.busy_until[own]);
        let full = profile.copy_ns(way, bytes).saturating_mul(slowdown);
        let coupled = if way == Direction::In { profile.coupled_permille.max(1) } else { 1000 };
        let ns = stretched(full, self.busy_until[other].since(starts), coupled);
        let ends = starts.plus(ns);
        self.busy_until[own] = ends;
        self.bytes[own] += bytes;
        LinkTransfer { ends, ns: ends.since(now) }
    }

    /// Returns the bytes transferred into the device and out of it.
    pub fn transferred_bytes(&self) -> (u64, u64) {
        (self.bytes[0], self.bytes[1])
    }

    /// Counts a step that starts.
    pub(crate) fn begin_step(&mut self) {
        self.computing += 1;
    }

    /// Counts a step that ends or whose engine exits.
    pub(crate) fn end_step(&mut self) {
        self.computing -= 1;
    }

    /// Returns the number of steps that share the processors.
    pub fn sharers(&self) -> u64 {
        if self.shares_compute { self.computing.max(1) } else { 1 }
    }
}

/// Returns the time of work that takes `full_ns` alone but runs at `permille` of its rate for the first `slow_ns`.
fn stretched(full_ns: u64, slow_ns: u64, permille: u64) -> u64 {
    let done_ns = slow_ns.saturating_mul(permille) / 1000;
    if full_ns <= done_ns {
        full_ns.saturating_mul(1000).div_ceil(permille)
    } else {
        slow_ns.saturating_add(full_ns - done_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A profile with 1 ns per byte in and 2 ns per byte out.
    fn profile() -> Profile {
        Profile {
            link_bytes_per_second: 1_000_000_000,
            out_bytes_per_second: 500_000_000,
            coupled_permille: 500,
            copy_start_ns: 10,
            ..Profile::default()
        }
    }

    #[test]
    fn peer_copies_are_serialized_per_direction() {
        let mut machine = Machine::default();
        let mut pass = |at, way| machine.transfer(Nanos(at), way, 1000, &profile(), 1);
        assert_eq!(pass(0, Direction::In), LinkTransfer { ends: Nanos(1010), ns: 1010 });
        assert_eq!(pass(500, Direction::In), LinkTransfer { ends: Nanos(2020), ns: 1520 });
        assert_eq!(pass(500, Direction::Out), LinkTransfer { ends: Nanos(2510), ns: 2010 });
    }

    #[test]
    fn copy_to_device_is_slowed_by_concurrent_copy_to_host() {
        let mut machine = Machine::default();
        assert_eq!(machine.transfer(Nanos(0), Direction::Out, 195, &profile(), 1).ends, Nanos(400));
        // The first 400 ns complete 200 of 1,010 ns of work.
        assert_eq!(machine.transfer(Nanos(0), Direction::In, 1000, &profile(), 1).ends, Nanos(400 + 810));
        assert_eq!(machine.transferred_bytes(), (1000, 195));
    }
}
