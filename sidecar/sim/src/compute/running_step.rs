//! [`RunningStep`]: a step in progress.

use std::collections::BTreeMap;

use sluice_policy::ids::{LayerBlockId, Nanos, RowId};
use sluice_ports::compute::{FailedSequence, SequenceStep, Step, StepDone};

use crate::profiles::cost::BatchShape;

/// Block table of one row: the blocks of each KV block, by layer.
pub(super) type LayerBlockTable = BTreeMap<u32, Vec<LayerBlockId>>;

/// A step in progress.
#[derive(Debug)]
pub struct RunningStep {
    pub(super) step: Step,
    pub(super) rows: BTreeMap<RowId, LayerBlockTable>,
    pub(super) layer: u16,
    /// Number of consecutive layers computed now: more than one only if none of them can wait.
    pub(super) span: u16,
    /// When these layers end; `None` if the first of them waits for its slab or KV.
    pub(super) ends: Option<Nanos>,
    pub(super) work: StepWork,
    pub(super) wait_started: Nanos,
    pub(super) started: Nanos,
    pub(super) hidden: Vec<Vec<u64>>,
    pub(super) layer_ns: Vec<u64>,
    pub(super) stall_ns: Vec<u64>,
    pub(super) kv_stall_ns: Vec<u64>,
    /// Set when the last layer has ended.
    pub(super) finished: Option<(Nanos, StepDone)>,
    pub(super) vocab: u32,
    /// Reads of memory that had wrong contents.
    pub(super) wrong_reads: u64,
    /// Sequences of the step that are refused.
    pub(super) refused: Vec<FailedSequence>,
}

/// The work of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepWork {
    pub(super) batch: BatchShape,
    pub(super) tokens: u64,
}

impl StepWork {
    pub(super) fn of(sequences: &[SequenceStep]) -> StepWork {
        let mut work = StepWork::default();
        for SequenceStep { start, tokens, sample, .. } in sequences {
            let (start, count) = (u64::from(*start), tokens.len() as u64);
            work.tokens += count;
            if count == 1 && sample.is_some() {
                work.batch.decodes += 1;
                work.batch.context += start + 1;
            } else {
                work.batch.prefill += count;
                work.batch.prefill_context += count * start + count * count / 2;
            }
        }
        work
    }
}

impl RunningStep {
    /// Returns when the current layers end.
    pub fn layer_ends(&self) -> Option<Nanos> {
        self.ends.filter(|_| self.finished.is_none())
    }
}
