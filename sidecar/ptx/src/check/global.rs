//! The last uses of the bytes of global memory during a launch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::check::clocks::Clocks;
use crate::check::record::{CELL_BYTES, Cell, Me};

/// Cells of one page.
pub(crate) const PAGE_CELLS: u64 = 2048;

/// The cells of [`PAGE_CELLS`] times [`CELL_BYTES`] bytes. No access crosses a page.
type Page = Arc<Mutex<Box<[Cell]>>>;

/// The shadow of global memory, shared by the blocks of a launch.
#[derive(Default)]
pub(crate) struct Shadow {
    pages: Mutex<HashMap<u64, Page>>,
    /// What was released by atomic operations and strong writes, by address.
    released: Mutex<HashMap<u64, HashMap<u32, u32>>>,
}

/// Pages that one block has used last.
#[derive(Default)]
pub(crate) struct Recent {
    pages: [Option<(u64, Page)>; 8],
}

impl Shadow {
    fn page(&self, number: u64) -> Page {
        let mut pages = self.pages.lock().expect("a worker that panics ends the launch");
        let blank = || Arc::new(Mutex::new(vec![Cell::default(); PAGE_CELLS as usize].into()));
        Arc::clone(pages.entry(number).or_insert_with(blank))
    }

    /// A strong access at `address`: the block learns what others have released there. What it did itself is released
    /// by a write, if the thread has executed a fence before.
    pub fn synchronise(&self, address: u64, clocks: &mut Clocks, me: Me) {
        let release = me.write && clocks.fenced(me.warp, me.lane);
        let mut released = self.released.lock().expect("a worker that panics ends the launch");
        clocks.exchange(released.entry(address).or_default(), release);
    }
}

impl Recent {
    /// The page of `address`.
    pub fn get(&mut self, shadow: &Shadow, address: u64) -> &Page {
        let number = address / (PAGE_CELLS * CELL_BYTES);
        let place = &mut self.pages[(number % 8) as usize];
        if place.as_ref().is_none_or(|(found, _)| *found != number) {
            *place = Some((number, shadow.page(number)));
        }
        &place.as_ref().expect("the page was just put here").1
    }
}
