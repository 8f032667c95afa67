//! The link arbiter: starts the most urgent waiting copy in each direction, by the policy's priority. A running copy is
//! never interrupted: one copy is the quantum.

use sluice_policy::copy_priority::CopyPriority;
use sluice_policy::ids::Nanos;

use super::SimDevice;
use super::swap_transfer::SwapTransfer;
use crate::direction::Direction;
use crate::machine::LinkTransfer;

/// The next user of the link.
#[derive(Clone, Copy, Debug)]
enum NextTransfer {
    /// A queued copy, by its index.
    Copy(usize),
    /// The first write-back.
    WriteBack,
    Swap,
}

impl SimDevice {
    /// Starts the most urgent copy in each free direction.
    pub(super) fn serve_link(&mut self) {
        loop {
            self.mark_startable();
            match [Direction::In, Direction::Out].into_iter().find_map(|way| self.next_on(way)) {
                Some(NextTransfer::Copy(at)) => {
                    let waiting = self.copies.remove(at).expect("what is next waits");
                    self.start_copy(waiting.id, waiting.copy);
                }
                Some(NextTransfer::WriteBack) => self.start_write_back(),
                Some(NextTransfer::Swap) => self.start_swap_transfer(),
                None => return,
            }
        }
    }

    fn next_on(&self, way: Direction) -> Option<NextTransfer> {
        if self.is_busy(way) {
            return None;
        }
        let copies = self.copies.iter().enumerate().filter(|(_, waiting)| waiting.copy.direction() == way);
        let copies = copies.filter_map(|(at, waiting)| {
            Some((CopyPriority::new(waiting.id, waiting.due, waiting.since?), NextTransfer::Copy(at)))
        });
        let written = self.write_backs.front().filter(|_| way == Direction::Out);
        let written =
            written.map(|one| (CopyPriority::new(one.id, one.due, one.since), NextTransfer::WriteBack));
        let crossing = self.swap_transfer.filter(|one| one.direction == way && one.transfer.is_none());
        let crossing =
            crossing.map(|one| (CopyPriority::new(one.id, one.due, one.since), NextTransfer::Swap));
        let all = copies.chain(written).chain(crossing);
        all.min_by_key(|(rank, _)| *rank).map(|(_, next)| next)
    }

    fn is_busy(&self, way: Direction) -> bool {
        let copies = match way {
            Direction::In => self.running_copy.is_some(),
            Direction::Out => self.running_spill.is_some() || self.running_write_back.is_some(),
        };
        copies
            || self.swap_transfer.is_some_and(|one| one.direction == way)
                && self.swap_transfer_end().is_some()
    }

    /// Returns when the running swap transfer ends; `None` if no swap is on the link.
    pub(super) fn swap_transfer_end(&self) -> Option<Nanos> {
        let passage = self.swap_transfer?.transfer?;
        Some(passage.ends).filter(|ends| *ends > self.clock)
    }

    fn start_swap_transfer(&mut self) {
        let Some(SwapTransfer { direction: way, bytes, .. }) = self.swap_transfer else { return };
        let passage = self.start_transfer(self.clock, way, bytes);
        if let Some(crossing) = &mut self.swap_transfer {
            crossing.transfer = Some(passage);
        }
    }

    /// Sets the current operation; `None` if it does not use the link.
    pub(crate) fn set_swap_transfer(&mut self, crossing: Option<SwapTransfer>) {
        self.swap_transfer = crossing;
        self.kick();
    }

    /// Returns the transfer of the current operation once it has the link.
    pub(crate) fn current_swap_transfer(&self) -> Option<LinkTransfer> {
        self.swap_transfer?.transfer
    }
}
