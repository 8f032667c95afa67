//! Tests of block tables and histories against a naive model.

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_link::message::StepOrder;
use sluice_link::tables::{TableError, TableReader, TableShape, TableWriter};
use sluice_link::vocabulary::*;
use sluice_ports::compute::{SequenceStep, Step, TableUpdate};

use crate::strategies::step_order;

const SHAPE: TableShape = TableShape { rows: 3, layers: 2, max_kv_blocks: 4, max_history: 64 };

fn writer_and_reader() -> (TableWriter, TableReader) {
    let writer = TableWriter::create(SHAPE).unwrap();
    let reader = TableReader::open(writer.fd().try_clone_to_owned().unwrap(), SHAPE).unwrap();
    (writer, reader)
}

fn step(updates: Vec<TableUpdate>, sequences: Vec<SequenceStep>) -> Step {
    Step {
        id: StepId(1),
        attempt: 0,
        epoch: 0,
        sequences,
        updates,
        generations: Vec::new(),
        kv_generations: Vec::new(),
        activation_limit_bytes: 0,
    }
}

fn update() -> impl Strategy<Value = TableUpdate> {
    let row = 0..SHAPE.rows;
    let reset = (row.clone(), vec(any::<u32>(), 0..=64))
        .prop_map(|(row, tokens)| TableUpdate::Reset { row: RowId(row), tokens });
    let kv_block = (row, 0..SHAPE.max_kv_blocks, vec((0..u32::MAX).prop_map(LayerBlockId), 2)).prop_map(
        |(row, kv_block, layer_blocks)| TableUpdate::KvBlock { row: RowId(row), kv_block, layer_blocks },
    );
    prop_oneof![1 => reset, 3 => kv_block]
}

fn sequence() -> impl Strategy<Value = SequenceStep> {
    (0..SHAPE.rows, 0..40u32, vec(any::<u32>(), 1..24)).prop_map(|(row, start, tokens)| SequenceStep {
        row: RowId(row),
        start,
        tokens,
        sample: None,
    })
}

/// The tables as plain arrays, with a single state instead of two halves.
#[derive(Clone, Debug, PartialEq)]
struct NaiveTables {
    layer_blocks: Vec<[[Option<u32>; 4]; 2]>,
    history: Vec<[u32; 64]>,
}

impl NaiveTables {
    fn apply(&mut self, step: &Step) {
        for update in &step.updates {
            match update {
                TableUpdate::Reset { row, tokens } => {
                    self.layer_blocks[row.index()] = [[None; 4]; 2];
                    self.history[row.index()][..tokens.len()].copy_from_slice(tokens);
                }
                TableUpdate::KvBlock { row, kv_block, layer_blocks } => {
                    for (layer, layer_block) in layer_blocks.iter().enumerate() {
                        self.layer_blocks[row.index()][layer][*kv_block as usize] = Some(layer_block.0);
                    }
                }
            }
        }
        for s in &step.sequences {
            let start = s.start as usize;
            self.history[s.row.index()][start..start + s.tokens.len()].copy_from_slice(&s.tokens);
        }
    }

    /// Returns the tables as a reader sees half `parity`.
    fn observed(reader: &TableReader, parity: u8) -> NaiveTables {
        let mut naive = NaiveTables { layer_blocks: vec![[[None; 4]; 2]; 3], history: vec![[0; 64]; 3] };
        for row in 0..3u32 {
            let mut tokens = Vec::new();
            reader.history(parity, RowId(row), 0, 64, &mut tokens).unwrap();
            naive.history[row as usize].copy_from_slice(&tokens);
            naive.layer_blocks[row as usize] = observed_layer_blocks(reader, parity, row);
        }
        naive
    }
}

fn observed_layer_blocks(reader: &TableReader, parity: u8, row: u32) -> [[Option<u32>; 4]; 2] {
    let words = reader.raw_layer_blocks(parity, RowId(row)).unwrap();
    let mut layer_blocks = [[None; 4]; 2];
    for (at, word) in words.into_iter().enumerate() {
        layer_blocks[at / 4][at % 4] = word.checked_sub(1);
    }
    layer_blocks
}

proptest! {
    #[test]
    fn each_half_holds_state_of_its_step(
        steps in vec((vec(update(), 0..6), vec(sequence(), 0..4)), 1..20),
    ) {
        let (mut writer, reader) = writer_and_reader();
        let mut naive = NaiveTables { layer_blocks: vec![[[None; 4]; 2]; 3], history: vec![[0; 64]; 3] };
        let mut running: Option<(u8, NaiveTables)> = None;
        for (updates, sequences) in steps {
            let step = step(updates, sequences);
            let parity = writer.write(&step).unwrap();
            naive.apply(&step);
            prop_assert_eq!(&NaiveTables::observed(&reader, parity), &naive);
            if let Some((other, before)) = running {
                prop_assert_ne!(other, parity);
                prop_assert_eq!(NaiveTables::observed(&reader, other), before);
            }
            running = Some((parity, naive.clone()));
        }
    }

    #[test]
    fn step_order_with_any_indices_stays_in_bounds(order in step_order()) {
        let (_writer, reader) = writer_and_reader();
        read_all(&reader, &order);
    }
}

fn read_all(reader: &TableReader, order: &StepOrder) {
    let mut out = Vec::new();
    for sequence in &order.sequences {
        let history = reader.history(order.parity, sequence.row, sequence.start, sequence.count, &mut out);
        let inside = sequence.row.0 < 3 && u64::from(sequence.start) + u64::from(sequence.count) <= 64;
        assert_eq!(history.is_ok(), inside);
        assert!(reader.layer_blocks(order.parity, sequence.row, sequence.count, &mut out).is_err());
    }
}

#[test]
fn kv_block_without_layer_block_is_refused_with_position() {
    let (mut writer, reader) = writer_and_reader();
    let kv_block = |kv_block| TableUpdate::KvBlock {
        row: RowId(1),
        kv_block,
        layer_blocks: vec![LayerBlockId(8), LayerBlockId(9)],
    };
    let parity = writer.write(&step(vec![kv_block(0), kv_block(2)], Vec::new())).unwrap();
    let mut out = Vec::new();
    reader.layer_blocks(parity, RowId(1), 1, &mut out).unwrap();
    assert_eq!(out, [8, 9]);
    let error = reader.layer_blocks(parity, RowId(1), 3, &mut out).unwrap_err();
    assert!(matches!(error, TableError::NoBlock { row: 1, layer: 0, kv_block: 1 }), "{error}");
}

#[test]
fn a_bad_update_changes_nothing() {
    let (mut writer, reader) = writer_and_reader();
    let good = TableUpdate::KvBlock {
        row: RowId(0),
        kv_block: 0,
        layer_blocks: vec![LayerBlockId(1), LayerBlockId(2)],
    };
    let first = writer.write(&step(vec![good.clone()], Vec::new())).unwrap();
    let before = [NaiveTables::observed(&reader, 0), NaiveTables::observed(&reader, 1)];
    let bad = [
        TableUpdate::KvBlock {
            row: RowId(3),
            kv_block: 0,
            layer_blocks: vec![LayerBlockId(1), LayerBlockId(2)],
        },
        TableUpdate::KvBlock {
            row: RowId(0),
            kv_block: 4,
            layer_blocks: vec![LayerBlockId(1), LayerBlockId(2)],
        },
        TableUpdate::KvBlock { row: RowId(0), kv_block: 1, layer_blocks: vec![LayerBlockId(1)] },
        TableUpdate::KvBlock {
            row: RowId(0),
            kv_block: 1,
            layer_blocks: vec![LayerBlockId(u32::MAX), LayerBlockId(2)],
        },
        TableUpdate::Reset { row: RowId(0), tokens: vec![0; 65] },
    ];
    for update in bad {
        let other = TableUpdate::Reset { row: RowId(0), tokens: vec![5] };
        assert!(writer.write(&step(vec![other, update], Vec::new())).is_err());
        assert_eq!(before, [NaiveTables::observed(&reader, 0), NaiveTables::observed(&reader, 1)]);
    }
    let next = writer.write(&step(Vec::new(), Vec::new())).unwrap();
    assert_ne!(first, next, "a refused step takes no turn");
    assert_eq!(NaiveTables::observed(&reader, next), before[usize::from(first)]);
}

#[test]
fn untouched_rows_cost_no_memory() {
    let shape = TableShape { rows: 4096, layers: 80, max_kv_blocks: 8192, max_history: 131_072 };
    let mut writer = TableWriter::create(shape).unwrap();
    let layer_blocks = (0..80).map(LayerBlockId).collect();
    let kv_block = TableUpdate::KvBlock { row: RowId(4000), kv_block: 3, layer_blocks };
    writer.write(&step(vec![kv_block], Vec::new())).unwrap();
    let used_bytes = rustix::fs::fstat(writer.fd()).unwrap().st_blocks * 512;
    assert!(used_bytes > 0 && used_bytes <= 80 * 4096, "{used_bytes} bytes for one column of 80 layers");
}
