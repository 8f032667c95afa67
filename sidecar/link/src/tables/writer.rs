//! The sidecar's end of the tables: writes each step's changes into the half that no running step reads.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

use sluice_policy::ids::{LayerBlockId, RowId};
use sluice_ports::compute::{Step, TableUpdate};

use super::{TableError, TableShape, check};
use crate::region::Region;

/// A change of the last step that the other half lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Dirty {
    KvBlocks(RowId, Range<u32>),
    History(RowId, Range<u32>),
}

/// The only writer of the tables.
#[derive(Debug)]
pub struct TableWriter {
    region: Region,
    shape: TableShape,
    /// Half of the last written step; the next step uses the other.
    parity: u8,
    dirty: Vec<Dirty>,
    /// KV blocks of each row that may hold a block, which a reset must clear.
    kv_blocks_used: Vec<u32>,
}

impl TableWriter {
    /// Creates empty tables.
    pub fn create(shape: TableShape) -> Result<TableWriter, TableError> {
        let region = Region::create("sluice-tables", shape.bytes())?;
        let kv_blocks_used = vec![0; shape.rows as usize];
        Ok(TableWriter { region, shape, parity: 1, dirty: Vec::new(), kv_blocks_used })
    }

    /// Returns the memfd, to pass to the engine.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Returns the sizes of the tables.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Writes the state of `step` (updates, then the tokens it feeds) into the half that the previous step does not
    /// read, and returns that half. After an error nothing has changed.
    ///
    /// The previous step may still be running; the one before it must have ended.
    pub fn write(&mut self, step: &Step) -> Result<u8, TableError> {
        self.check_step(step)?;
        let last = self.parity;
        self.parity = 1 - last;
        for dirty in std::mem::take(&mut self.dirty) {
            self.copy(last, &dirty);
        }
        for update in &step.updates {
            self.update(update);
        }
        for sequence in &step.sequences {
            self.put_tokens(sequence.row, sequence.start, &sequence.tokens);
        }
        fence(Ordering::Release);
        Ok(self.parity)
    }

    fn check_step(&self, step: &Step) -> Result<(), TableError> {
        for update in &step.updates {
            self.check_update(update)?;
        }
        for sequence in &step.sequences {
            self.shape.check_row(sequence.row)?;
            self.shape.check_history(u64::from(sequence.start) + sequence.tokens.len() as u64)?;
        }
        Ok(())
    }

    fn check_update(&self, update: &TableUpdate) -> Result<(), TableError> {
        match update {
            TableUpdate::Reset { row, tokens } => {
                self.shape.check_row(*row)?;
                self.shape.check_history(tokens.len() as u64)
            }
            TableUpdate::KvBlock { row, kv_block, layer_blocks } => {
                self.shape.check_row(*row)?;
                self.shape.check_kv_blocks(u64::from(*kv_block) + 1)?;
                if layer_blocks.len() != usize::from(self.shape.layers) {
                    return Err(TableError::Layers { got: layer_blocks.len(), layers: self.shape.layers });
                }
                layer_blocks
                    .iter()
                    .try_for_each(|layer_block| check("block", layer_block.0.into(), u32::MAX.into()))
            }
        }
    }

    fn update(&mut self, update: &TableUpdate) {
        match update {
            TableUpdate::Reset { row, tokens } => {
                self.clear(*row);
                self.put_tokens(*row, 0, tokens);
            }
            TableUpdate::KvBlock { row, kv_block, layer_blocks } => {
                self.put_kv_block(*row, *kv_block, layer_blocks)
            }
        }
    }

    fn clear(&mut self, row: RowId) {
        let used = std::mem::take(&mut self.kv_blocks_used[row.index()]);
        for layer in 0..usize::from(self.shape.layers) {
            let at = self.shape.layer_blocks_at(self.parity, row, layer);
            for word in self.words(at, used) {
                word.store(0, Ordering::Relaxed);
            }
        }
        if used > 0 {
            self.dirty.push(Dirty::KvBlocks(row, 0..used));
        }
    }

    fn put_kv_block(&mut self, row: RowId, kv_block: u32, layer_blocks: &[LayerBlockId]) {
        for (layer, layer_block) in layer_blocks.iter().enumerate() {
            let at = self.shape.layer_blocks_at(self.parity, row, layer) + kv_block as usize;
            self.words(at, 1)[0].store(layer_block.0 + 1, Ordering::Relaxed);
        }
        let used = &mut self.kv_blocks_used[row.index()];
        *used = (*used).max(kv_block + 1);
        self.dirty.push(Dirty::KvBlocks(row, kv_block..kv_block + 1));
    }

    fn put_tokens(&mut self, row: RowId, start: u32, tokens: &[u32]) {
        // The length was checked against max_history, a u32.
        let count = tokens.len() as u32;
        let at = self.shape.history_at(self.parity, row) + start as usize;
        for (word, token) in self.words(at, count).iter().zip(tokens) {
            word.store(*token, Ordering::Relaxed);
        }
        if count > 0 {
            self.dirty.push(Dirty::History(row, start..start + count));
        }
    }

    /// Copies a change from half `from` into the current half.
    fn copy(&self, from: u8, dirty: &Dirty) {
        match dirty {
            Dirty::History(row, range) => {
                let (old, new) =
                    (self.shape.history_at(from, *row), self.shape.history_at(self.parity, *row));
                self.copy_words(old, new, range);
            }
            Dirty::KvBlocks(row, range) => {
                for layer in 0..usize::from(self.shape.layers) {
                    let old = self.shape.layer_blocks_at(from, *row, layer);
                    self.copy_words(old, self.shape.layer_blocks_at(self.parity, *row, layer), range);
                }
            }
        }
    }

    fn copy_words(&self, old: usize, new: usize, range: &Range<u32>) {
        let (start, count) = (range.start as usize, range.end - range.start);
        let pairs = self.words(old + start, count).iter().zip(self.words(new + start, count));
        for (from, to) in pairs {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn words(&self, at: usize, count: u32) -> &[std::sync::atomic::AtomicU32] {
        self.region.words(at, count as usize).expect("indices were checked against the shape of the region")
    }
}
