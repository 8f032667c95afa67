//! The state of checked mode for a block: the last uses of its bytes, and the order of those uses.

pub(crate) mod clocks;
pub(crate) mod global;
pub(crate) mod record;

use std::sync::Arc;

use crate::fault::{Access, FaultKind, Space};
use crate::memory::GlobalMemory;
use crate::place::Where;
use crate::slots::LANES;
use clocks::Clocks;
use global::Shadow;
use record::{CELL_BYTES, Cell, Me};

/// A cell of shared memory.
#[derive(Clone, Copy, Default)]
struct SharedCell {
    uses: Cell,
    /// The thread whose copy is under way here, plus one.
    pending: u16,
    written: bool,
}

/// The checks of one block.
pub(crate) struct Checks {
    pub clocks: Clocks,
    shared: Vec<SharedCell>,
    /// One flag for each byte of local memory of each lane.
    local: Vec<bool>,
    local_bytes: u64,
    shadow: Arc<Shadow>,
    /// Pages of the shadow that were used last.
    pages: global::Recent,
}

impl Checks {
    pub fn new(warps: usize, shared_bytes: u64, local_bytes: u64, shadow: Arc<Shadow>) -> Self {
        Checks {
            clocks: Clocks::new(warps),
            shared: vec![SharedCell::default(); shared_bytes.div_ceil(CELL_BYTES) as usize],
            local: vec![false; local_bytes as usize * warps * LANES],
            local_bytes,
            shadow,
            pages: global::Recent::default(),
        }
    }

    /// A block begins.
    pub fn start(&mut self, block: u64) {
        self.clocks.start(block);
        self.shared.fill(SharedCell::default());
        self.local.fill(false);
    }

    /// Checks and notes one access of one lane. The bytes exist.
    pub fn access(&mut self, memory: &dyn GlobalMemory, found: Found, me: Me) -> Result<(), FaultKind> {
        match found.place.space {
            Space::Param => Ok(()),
            Space::Local => self.local_access(found, me),
            Space::Shared => self.shared_access(found, me),
            Space::Global | Space::Module => self.global_access(memory, found, me),
        }
    }

    fn local_access(&mut self, Found { place, bytes, .. }: Found, me: Me) -> Result<(), FaultKind> {
        let first = (me.thread() * self.local_bytes + place.address) as usize;
        let flags = &mut self.local[first..first + bytes as usize];
        if me.write {
            flags.fill(true);
        } else if flags.contains(&false) {
            return Err(FaultKind::Uninitialised { space: place.space, address: place.address, bytes });
        }
        Ok(())
    }

    fn shared_access(&mut self, Found { place, bytes, access }: Found, me: Me) -> Result<(), FaultKind> {
        let address = place.address;
        for at in cells(address, bytes) {
            let cell = &mut self.shared[at as usize];
            if cell.pending != 0 {
                return Err(FaultKind::PendingCopy { address, by_thread: u32::from(cell.pending - 1) });
            }
            let reads = !me.write || access == Access::Atomic;
            if reads && !cell.written {
                return Err(FaultKind::Uninitialised { space: Space::Shared, address, bytes });
            }
            cell.written = true;
            cell.uses.access(&self.clocks, &me, bytes == 1).map_err(|other| other.race(place, access))?;
        }
        Ok(())
    }

    fn global_access(&mut self, memory: &dyn GlobalMemory, found: Found, me: Me) -> Result<(), FaultKind> {
        let Found { place, bytes, access } = found;
        let address = place.address;
        if place.space == Space::Global {
            let reads = !me.write || access == Access::Atomic;
            if reads && memory.uninitialised(address, bytes) {
                return Err(FaultKind::Uninitialised { space: Space::Global, address, bytes });
            }
            if me.write {
                memory.mark_written(address, bytes);
            }
        }
        if me.strong {
            self.shadow.synchronise(address, &mut self.clocks, me);
        }
        let page = self.pages.get(&self.shadow, address);
        let mut page = page.lock().expect("a worker that panics ends the launch");
        for at in cells(address, bytes) {
            let cell = &mut page[(at % global::PAGE_CELLS) as usize];
            cell.access(&self.clocks, &me, bytes == 1).map_err(|other| other.race(place, access))?;
        }
        Ok(())
    }

    /// A copy to shared memory begins: its target is written, and belongs to the copy until [`Self::copy_end`].
    pub fn copy_start(&mut self, found: Found, me: Me) -> Result<(), FaultKind> {
        self.shared_access(found, me)?;
        let pending = me.thread() as u16 + 1;
        cells(found.place.address, found.bytes).for_each(|at| self.shared[at as usize].pending = pending);
        Ok(())
    }

    /// A copy was waited for: for other threads it is a write at this moment.
    pub fn copy_end(&mut self, found: Found, me: Me) -> Result<(), FaultKind> {
        cells(found.place.address, found.bytes).for_each(|at| self.shared[at as usize].pending = 0);
        self.shared_access(found, me)
    }
}

/// Bytes that an access was granted.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub place: Where,
    pub bytes: u64,
    pub access: Access,
}

/// Numbers of the cells that these bytes touch.
fn cells(address: u64, bytes: u64) -> std::ops::RangeInclusive<u64> {
    address / CELL_BYTES..=(address + bytes - 1) / CELL_BYTES
}
