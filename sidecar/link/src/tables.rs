//! Block tables and token histories in sealed shared memory, in two halves: a step reads one half while the sidecar
//! prepares the next step in the other.
//!
//! A half is `[rows][layers][max_kv_blocks]` block ids, then `[rows][max_history]` tokens, all u32. A block id is
//! stored plus one, so that untouched (zero) memory means "no block" and uses no memory.

mod writer;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use sluice_policy::ids::RowId;
use thiserror::Error;

use crate::message::EngineSetup;
use crate::region::{Region, RegionError};

pub use writer::TableWriter;

/// Sizes of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Rows.
    pub rows: u32,
    /// Layers of the model.
    pub layers: u16,
    /// Block KV blocks of a row.
    pub max_kv_blocks: u32,
    /// Tokens of a row's history.
    pub max_history: u32,
}

impl TableShape {
    /// Returns the sizes of a setup's tables.
    pub fn of(setup: &EngineSetup) -> TableShape {
        TableShape {
            rows: setup.max_rows,
            layers: setup.spec.layers,
            max_kv_blocks: setup.max_kv_blocks,
            max_history: setup.max_history,
        }
    }

    fn row_layer_blocks(&self) -> usize {
        usize::from(self.layers) * self.max_kv_blocks as usize
    }

    fn half_words(&self) -> usize {
        self.rows as usize * (self.row_layer_blocks() + self.max_history as usize)
    }

    fn bytes(&self) -> usize {
        2 * 4 * self.half_words()
    }

    /// Returns the word index of the first block of (row, layer) in a half.
    fn layer_blocks_at(&self, parity: u8, row: RowId, layer: usize) -> usize {
        let row = row.index() * self.row_layer_blocks();
        usize::from(parity) * self.half_words() + row + layer * self.max_kv_blocks as usize
    }

    /// Returns the word index of a row's first token in a half.
    fn history_at(&self, parity: u8, row: RowId) -> usize {
        let tables = self.rows as usize * self.row_layer_blocks();
        usize::from(parity) * self.half_words() + tables + row.index() * self.max_history as usize
    }

    fn check_row(&self, row: RowId) -> Result<(), TableError> {
        check("row", row.0.into(), self.rows.into())
    }

    fn check_kv_blocks(&self, end: u64) -> Result<(), TableError> {
        check("column end", end, u64::from(self.max_kv_blocks) + 1)
    }

    fn check_history(&self, end: u64) -> Result<(), TableError> {
        check("history end", end, u64::from(self.max_history) + 1)
    }
}

fn check(what: &'static str, value: u64, limit: u64) -> Result<(), TableError> {
    if value < limit { Ok(()) } else { Err(TableError::OutOfRange { what, value, limit }) }
}

/// An access outside of the tables.
#[derive(Debug, Error)]
pub enum TableError {
    /// An index outside of the tables.
    #[error("{what} {value} is not below {limit}")]
    OutOfRange {
        /// Name of the index.
        what: &'static str,
        /// Its value.
        value: u64,
        /// First invalid value.
        limit: u64,
    },
    /// A KV block update with the wrong number of blocks.
    #[error("a KV block has {got} layer blocks, but the model has {layers} layers")]
    Layers {
        /// Blocks given.
        got: usize,
        /// Layers of the model.
        layers: u16,
    },
    /// The place holds no block.
    #[error("row {row} has no block in layer {layer}, KV block {kv_block}")]
    NoBlock {
        /// Row.
        row: u32,
        /// Layer.
        layer: usize,
        /// KV block.
        kv_block: usize,
    },
    /// The shared memory failed.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// The engine's view of the tables.
#[derive(Debug)]
pub struct TableReader {
    region: Region,
    shape: TableShape,
}

impl TableReader {
    /// Maps the sidecar's tables.
    pub fn open(fd: OwnedFd, shape: TableShape) -> Result<TableReader, TableError> {
        Ok(TableReader { region: Region::open(fd, shape.bytes())?, shape })
    }

    /// Returns the sizes of the tables.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Appends the row's tokens at positions `start .. start + count` to `out`.
    pub fn history(
        &self,
        parity: u8,
        row: RowId,
        start: u32,
        count: u32,
        out: &mut Vec<u32>,
    ) -> Result<(), TableError> {
        check("parity", parity.into(), 2)?;
        self.shape.check_row(row)?;
        self.shape.check_history(u64::from(start) + u64::from(count))?;
        let at = self.shape.history_at(parity, row) + start as usize;
        out.extend(self.words(at, count as usize).iter().map(|word| word.load(Ordering::Relaxed)));
        Ok(())
    }

    /// Appends the row's blocks of KV blocks `0..kv_blocks` to `out`, layer by layer (`[layers][kv_blocks]`). After an
    /// error, the appended part of `out` is undefined.
    ///
    /// A step reads tens of thousands of words before its first layer. So the copy has no branch per word, and the
    /// search for a missing block runs over the copy, in vector registers.
    pub fn layer_blocks(
        &self,
        parity: u8,
        row: RowId,
        kv_blocks: u32,
        out: &mut Vec<u32>,
    ) -> Result<(), TableError> {
        check("parity", parity.into(), 2)?;
        self.shape.check_row(row)?;
        self.shape.check_kv_blocks(kv_blocks.into())?;
        let (layers, kv_blocks) = (usize::from(self.shape.layers), kv_blocks as usize);
        let begun = out.len();
        out.reserve(layers * kv_blocks);
        for layer in 0..layers {
            let words = self.words(self.shape.layer_blocks_at(parity, row, layer), kv_blocks);
            out.extend(words.iter().map(|word| word.load(Ordering::Relaxed).wrapping_sub(1)));
        }
        let (row, missing) = (row.0, first_missing(&out[begun..]));
        let place = |at: usize| TableError::NoBlock { row, layer: at / kv_blocks, kv_block: at % kv_blocks };
        missing.map_or(Ok(()), |at| Err(place(at)))
    }

    /// Returns all block words of a row as stored (id plus one, 0 = none), `[layers][max_kv_blocks]`; for tools and
    /// tests.
    pub fn raw_layer_blocks(&self, parity: u8, row: RowId) -> Result<Vec<u32>, TableError> {
        check("parity", parity.into(), 2)?;
        self.shape.check_row(row)?;
        let words = self.words(self.shape.layer_blocks_at(parity, row, 0), self.shape.row_layer_blocks());
        Ok(words.iter().map(|word| word.load(Ordering::Relaxed)).collect())
    }

    fn words(&self, at: usize, count: usize) -> &[AtomicU32] {
        // Pairs with the writer's release fence: the command that names this half arrived after the sidecar wrote it.
        fence(Ordering::Acquire);
        self.region.words(at, count).expect("indices were checked against the shape, which the region holds")
    }
}

/// Returns the index of the first block that was stored as "no block".
fn first_missing(layer_blocks: &[u32]) -> Option<usize> {
    const MISSING: u32 = 0u32.wrapping_sub(1);
    // The compiler vectorizes a full scan but not a search with an early exit.
    let any = layer_blocks.iter().fold(false, |any, layer_block| any | (*layer_block == MISSING));
    if any { layer_blocks.iter().position(|layer_block| *layer_block == MISSING) } else { None }
}
