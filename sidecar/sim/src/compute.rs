//! Simulated compute: a forward pass over fingerprints.
//!
//! The hidden state of a token is a hash; each layer mixes in the slab that it reads and the KV of all earlier
//! positions. A sampled token is the last hidden state modulo the vocabulary. So a token depends on every fingerprint
//! that a real forward pass reads, and not on batch, chunking, addresses or time.

use std::collections::{BTreeMap, VecDeque};

use sluice_common::random::{GOLDEN_GAMMA, mix};
use sluice_policy::action::Address;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos, RowId};
use sluice_ports::compute::{
    Compute, ComputeEvent, EngineHello, FailedSequence, Sampled, SequenceFailure, SequenceStep, Step,
    StepDone, TableUpdate,
};
use sluice_ports::fake_memory::ChunkContent;

use crate::device::{Detail, SharedDevice, SimDevice};
use crate::profiles::cost::{self, BatchShape};

/// Layers after which a step that shares the processors checks again how many steps share them.
const LOOKAHEAD_LAYERS: u16 = 8;

/// Block table of one row: the blocks of each KV block, by layer.
type LayerBlockTable = BTreeMap<u32, Vec<LayerBlockId>>;

/// A step in progress.
#[derive(Debug)]
pub struct RunningStep {
    step: Step,
    rows: BTreeMap<RowId, LayerBlockTable>,
    layer: u16,
    /// Number of consecutive layers computed now: more than one only if none of them can wait.
    span: u16,
    /// When these layers end; `None` if the first of them waits for its slab or KV.
    ends: Option<Nanos>,
    work: StepWork,
    wait_started: Nanos,
    started: Nanos,
    hidden: Vec<Vec<u64>>,
    layer_ns: Vec<u64>,
    stall_ns: Vec<u64>,
    kv_stall_ns: Vec<u64>,
    /// Set when the last layer has ended.
    finished: Option<(Nanos, StepDone)>,
    vocab: u32,
    /// Reads of memory that had wrong contents.
    wrong_reads: u64,
    /// Sequences of the step that are refused.
    refused: Vec<FailedSequence>,
}

/// The work of a step.
#[derive(Clone, Copy, Debug, Default)]
struct StepWork {
    batch: BatchShape,
    tokens: u64,
}

impl StepWork {
    fn of(sequences: &[SequenceStep]) -> StepWork {
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

    /// Starts the current layer if it waits and its slab and KV are ready.
    pub fn start_layer(&mut self, device: &mut SimDevice) {
        if self.finished.is_some() || self.ends.is_some() {
            return;
        }
        let layer = LayerId(self.layer);
        // The wait for weights is first; it is over once this layer's stall is recorded.
        if self.stall_ns.len() == layer.index() {
            if !is_ready(&device.ready, generation_of(&self.step.generations, layer), layer) {
                return;
            }
            self.stall_ns.push(device.clock().since(self.wait_started));
            self.wait_started = device.clock();
        }
        if !is_ready(&device.kv_ready, generation_of(&self.step.kv_generations, layer), layer) {
            return;
        }
        self.kv_stall_ns.push(device.clock().since(self.wait_started));
        if device.detail == Detail::Fingerprints {
            self.check_slab(device, layer);
            self.check_kv(device, layer);
        }
        self.span = self.span_of(device);
        let ns = self.layer_time_ns(device);
        let spanned = usize::from(self.span);
        self.layer_ns.resize(self.layer_ns.len() + spanned, ns);
        self.stall_ns.resize(self.layer_ns.len(), 0);
        self.kv_stall_ns.resize(self.layer_ns.len(), 0);
        self.ends = Some(device.clock().plus(ns * u64::from(self.span) + self.head_ns(device)));
    }

    /// Returns the number of layers, from the current one, that wait for nothing and that no copy waits for.
    fn span_of(&self, device: &SimDevice) -> u16 {
        let Step { generations, kv_generations, .. } = &self.step;
        let waits = |layer: u16| generations.iter().chain(kv_generations).any(|(l, _)| l.0 == layer);
        if device.detail == Detail::Fingerprints || waits(self.layer) {
            return 1;
        }
        let most = if device.machine.borrow().shares_compute { LOOKAHEAD_LAYERS } else { u16::MAX };
        let last = device.geometry.layers().min(self.layer.saturating_add(most));
        (self.layer..last).take_while(|layer| !waits(*layer)).count() as u16
    }

    /// Returns the time of one layer, nanoseconds. Without a kernel model, each activation chunk reads the weights
    /// once.
    fn layer_time_ns(&self, device: &SimDevice) -> u64 {
        let (sharers, profile) = (device.machine.borrow().sharers(), &device.profile);
        match &profile.kernels {
            Some(kernels) => cost::layer_ns(
                &kernels.hardware.with_sharers(sharers),
                &kernels.model,
                &self.work.batch,
                kernels.launch,
            ),
            None => {
                let chunks =
                    self.work.tokens.div_ceil(u64::from(device.geometry.activation.chunk_tokens).max(1));
                (profile.layer_ns * chunks.max(1) + profile.layer_token_ns * self.work.tokens) * sharers
            }
        }
    }

    /// Returns the time of the head, nanoseconds. Only the last layer adds it.
    fn head_ns(&self, device: &SimDevice) -> u64 {
        let last = self.layer + self.span == device.geometry.layers();
        let kernels = device.profile.kernels.as_ref().filter(|_| last);
        let sharers = device.machine.borrow().sharers();
        kernels.map_or(0, |kernels| cost::head_ns(&kernels.hardware.with_sharers(sharers), &kernels.model))
    }

    /// Ends the current layers: reads their slabs and KV, writes their KV, publishes `done`.
    pub fn end_layer(&mut self, device: &mut SimDevice, now: Nanos) {
        let layer = LayerId(self.layer);
        if device.detail == Detail::Fingerprints {
            let slab = self.check_slab(device, layer);
            self.check_kv(device, layer);
            for i in 0..self.step.sequences.len() {
                self.forward(device, i, layer, slab);
            }
        }
        device
            .done
            .extend(generation_of(&self.step.generations, layer).map(|generation| (layer, generation)));
        device
            .kv_done
            .extend(generation_of(&self.step.kv_generations, layer).map(|generation| (layer, generation)));
        self.layer += self.span;
        self.ends = None;
        self.wait_started = now;
        if self.layer == device.geometry.layers() {
            self.finish(device, now);
        }
    }

    /// Returns the fingerprint of the slab at the layer's addresses. Wrong contents change it and are counted.
    fn check_slab(&mut self, device: &SimDevice, layer: LayerId) -> u64 {
        let expected = generation_of(&self.step.generations, layer);
        let mut fingerprint = 0;
        for index in 0..device.geometry.slab_chunks(layer.index()) {
            let right = match device.memory.content(Address::Layer(layer, index)) {
                Some(ChunkContent::Slab { layer: Some(l), generation, index: i }) => {
                    *l == layer && *i == index && expected.is_none_or(|e| e == *generation)
                }
                _ => false,
            };
            self.wrong_reads += u64::from(!right);
            fingerprint = combine(fingerprint, if right { u64::from(layer.0) } else { 0xbad });
        }
        fingerprint
    }

    /// Counts wrong reads if the step waited for a fetch of the layer's KV and the KV is missing.
    fn check_kv(&mut self, device: &mut SimDevice, layer: LayerId) {
        let Some(generation) = generation_of(&self.step.kv_generations, layer) else { return };
        self.wrong_reads += u64::from(device.kv_ready.get(&layer) != Some(&generation));
        for SequenceStep { row, start, .. } in &self.step.sequences {
            let past = start.checked_sub(1).map(|last| read_kv(device, &self.rows[row], layer, last));
            self.wrong_reads += past.map_or(0, |(_, missing)| missing);
        }
    }

    fn forward(&mut self, device: &mut SimDevice, sequence: usize, layer: LayerId, slab: u64) {
        let SequenceStep { row, start, ref tokens, .. } = self.step.sequences[sequence];
        let table = &self.rows[&row];
        for i in 0..tokens.len() {
            let position = start + i as u32;
            let hidden = self.hidden[sequence][i];
            let written = write_kv(device, table, layer, position, combine(hidden, slab));
            let (past, missing) = read_kv(device, table, layer, position);
            self.wrong_reads += missing + u64::from(!written);
            self.hidden[sequence][i] = combine(hidden, combine(past, slab));
        }
    }

    fn finish(&mut self, device: &mut SimDevice, now: Nanos) {
        device.machine.borrow_mut().end_step();
        let global = device.detail == Detail::Times || (0..device.geometry.chunks_for(device.geometry.global_bytes))
            .all(|i| matches!(device.memory.content(Address::Global(i)), Some(ChunkContent::Slab { layer: None, index, .. }) if *index == i));
        self.wrong_reads += u64::from(!global);
        let sampling = self.step.sequences.iter().zip(&self.hidden).filter(|(s, _)| s.sample.is_some());
        let sampled = sampling.map(|(s, hidden)| {
            let last = hidden.last().copied().unwrap_or(u64::from(s.row.0));
            Sampled { row: s.row, token: (last % u64::from(self.vocab)) as u32, logprobs: None }
        });
        let mut sampled: Vec<_> = sampled.collect();
        let fails = !sampled.is_empty() && std::mem::take(&mut device.faults.no_candidate);
        let failed = sampled.drain(..usize::from(fails)).map(|s| s.row);
        let failed = failed.map(|row| FailedSequence { row, failure: SequenceFailure::NoCandidate });
        let failed = std::mem::take(&mut self.refused).into_iter().chain(failed).collect();
        let done = StepDone {
            id: self.step.id,
            attempt: self.step.attempt,
            sampled,
            failed,
            layer_ns: std::mem::take(&mut self.layer_ns),
            stall_ns: std::mem::take(&mut self.stall_ns),
            kv_stall_ns: std::mem::take(&mut self.kv_stall_ns),
            total_ns: now.since(self.started),
        };
        device.wrong_reads += self.wrong_reads;
        self.finished = Some((now, done));
    }
}

/// Removes the sequences that contain a token beyond the vocabulary, as an engine refuses them.
fn reject_invalid_sequences(sequences: &mut Vec<SequenceStep>, vocab: u32) -> Vec<FailedSequence> {
    let unfit = |s: &mut SequenceStep| s.tokens.iter().any(|token| *token >= vocab);
    let refused = |s: SequenceStep| {
        let beyond = s.tokens.iter().max().copied().unwrap_or_default();
        let reason = format!("token {beyond} is not below the vocabulary's {vocab}");
        FailedSequence { row: s.row, failure: SequenceFailure::Refused(reason) }
    };
    sequences.extract_if(.., unfit).map(refused).collect()
}

fn generation_of(generations: &[(LayerId, Generation)], layer: LayerId) -> Option<Generation> {
    generations.iter().find(|(l, _)| *l == layer).map(|(_, generation)| *generation)
}

/// Whether a layer's ready word has reached the expected generation. A later generation also counts: the expected one
/// was overwritten, and the read then finds wrong contents.
fn is_ready(ready: &BTreeMap<LayerId, Generation>, expected: Option<Generation>, layer: LayerId) -> bool {
    expected.is_none_or(|generation| ready.get(&layer).is_some_and(|ready| *ready >= generation))
}

fn layer_block_of(table: &LayerBlockTable, layer: LayerId, position: u32) -> Option<LayerBlockId> {
    table.get(&(position / 16))?.get(layer.index()).copied()
}

/// Combines two fingerprints into one.
fn combine(a: u64, b: u64) -> u64 {
    mix(a ^ mix(b.wrapping_add(GOLDEN_GAMMA)))
}

fn write_kv(
    device: &mut SimDevice,
    table: &LayerBlockTable,
    layer: LayerId,
    position: u32,
    value: u64,
) -> bool {
    let layer_block = layer_block_of(table, layer, position)
        .and_then(|layer_block| device.memory.layer_block_mut(layer_block));
    layer_block.map(|tokens| tokens[position as usize % 16] = Some(value)).is_some()
}

/// Returns the hash of the KV at positions `0..=position` and the number of missing positions.
fn read_kv(device: &mut SimDevice, table: &LayerBlockTable, layer: LayerId, position: u32) -> (u64, u64) {
    let (mut past, mut missing) = (0, 0);
    for p in 0..=position {
        let layer_block = layer_block_of(table, layer, p)
            .and_then(|layer_block| device.memory.layer_block_mut(layer_block));
        let value = layer_block.and_then(|tokens| tokens[p as usize % 16]);
        missing += u64::from(value.is_none());
        past = combine(past, value.unwrap_or(0xdead));
    }
    (past, missing)
}

impl SimDevice {
    /// Returns the number of activation chunks that the step claims and that are not backed, or whose chunk also backs
    /// another address.
    fn unmapped_activations(&self, limit_bytes: u64) -> u64 {
        if self.detail == Detail::Times {
            return 0;
        }
        let claimed = (0..(limit_bytes / self.geometry.chunk_bytes) as u32).map(Address::Activation);
        let memory = &self.memory;
        let behind =
            claimed.map(|address| memory.table.get(&address).map(|chunk| memory.addresses_of(*chunk)));
        behind.filter(|mapped| mapped.is_none_or(|addresses| addresses.len() != 1)).count() as u64
    }
}

/// The compute port of a simulated device.
#[derive(Debug)]
pub struct SimCompute {
    device: SharedDevice,
    rows: BTreeMap<RowId, LayerBlockTable>,
    events: VecDeque<(Nanos, ComputeEvent)>,
    activation: ActivationCost,
    vocab: u32,
    attached: bool,
    wrong_reads: u64,
}

impl SimCompute {
    /// Creates an engine that attaches at time 0.
    pub fn new(device: SharedDevice, vocab: u32) -> Self {
        SimCompute::with_start_time(device, vocab, Nanos(0))
    }

    /// Creates an engine that attaches at `now`.
    pub fn with_start_time(device: SharedDevice, vocab: u32, now: Nanos) -> Self {
        let activation = device.borrow().geometry.activation;
        let mut compute = SimCompute {
            device,
            rows: BTreeMap::new(),
            events: VecDeque::new(),
            activation,
            vocab,
            attached: false,
            wrong_reads: 0,
        };
        compute.attach(now);
        compute
    }

    /// Returns the number of reads of wrong contents: 0 unless a bug was planted.
    pub fn wrong_reads(&self) -> u64 {
        self.wrong_reads + self.device.borrow().run.as_ref().map_or(0, |r| r.wrong_reads)
    }

    /// Kills the engine. Memory keeps what it wrote, its step gets no answer, and a new engine attaches later.
    pub fn kill(&mut self, now: Nanos) {
        let restart_ns = {
            let mut device = self.device.borrow_mut();
            device.advance(now);
            if let Some(run) = device.run.take() {
                self.wrong_reads += run.wrong_reads;
                if run.finished.is_none() {
                    device.machine.borrow_mut().end_step();
                }
            }
            device.profile.restart_ns
        };
        // An engine that has not attached, or whose `Lost` event is still queued, sends no second `Lost`.
        let told = self.events.iter().any(|(_, event)| *event == ComputeEvent::Lost);
        self.events.retain(|(_, event)| *event == ComputeEvent::Lost);
        if std::mem::take(&mut self.attached) && !told {
            self.events.push_back((now, ComputeEvent::Lost));
        }
        self.attach(now.plus(restart_ns));
    }

    /// Makes the engine abandon its step because its time slice has ended. Returns whether a step was running.
    pub fn expire_turn(&mut self, now: Nanos) -> bool {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        let Some(run) = device.run.take_if(|run| run.finished.is_none()) else { return false };
        device.machine.borrow_mut().end_step();
        self.wrong_reads += run.wrong_reads;
        let (id, attempt) = (run.step.id, run.step.attempt);
        self.events.push_back((now, ComputeEvent::StaleEpoch { id, attempt }));
        true
    }

    fn attach(&mut self, at: Nanos) {
        let hello = EngineHello { activation: self.activation, pid: 1 };
        self.events.push_back((at, ComputeEvent::Attached(hello)));
    }

    fn update(&mut self, update: &TableUpdate) {
        match update {
            TableUpdate::Reset { row, .. } => drop(self.rows.insert(*row, LayerBlockTable::new())),
            TableUpdate::KvBlock { row, kv_block, layer_blocks } => {
                self.rows.entry(*row).or_default().insert(*kv_block, layer_blocks.clone());
            }
        }
    }
}

impl Compute for SimCompute {
    fn submit(&mut self, now: Nanos, mut step: Step) {
        if !self.attached {
            // The engine has exited, and the driver has not yet seen `Lost`.
            return;
        }
        let detail = self.device.borrow().detail;
        if detail == Detail::Fingerprints {
            step.updates.iter().for_each(|update| self.update(update));
        }
        let refused = reject_invalid_sequences(&mut step.sequences, self.vocab);
        let mut device = self.device.borrow_mut();
        device.advance(now);
        assert!(device.run.is_none(), "at most one step is in flight");
        device.machine.borrow_mut().begin_step();
        let wrong_reads = device.unmapped_activations(step.activation_limit_bytes);
        let first = |s: &SequenceStep| s.tokens.iter().map(|t| combine(u64::from(*t), 1)).collect();
        let hidden = match detail {
            Detail::Fingerprints => step.sequences.iter().map(first).collect(),
            Detail::Times => vec![Vec::new(); step.sequences.len()],
        };
        device.run = Some(RunningStep {
            hidden,
            rows: self.rows.clone(),
            layer: 0,
            span: 1,
            work: StepWork::of(&step.sequences),
            ends: None,
            wait_started: now,
            started: now,
            layer_ns: Vec::new(),
            stall_ns: Vec::new(),
            kv_stall_ns: Vec::new(),
            finished: None,
            vocab: self.vocab,
            wrong_reads,
            refused,
            step,
        });
        device.advance(now);
    }

    fn poll(&mut self, now: Nanos) -> Option<ComputeEvent> {
        let mut device = self.device.borrow_mut();
        device.advance(now);
        if let Some(run) = device.run.take_if(|r| r.finished.as_ref().is_some_and(|(at, _)| *at <= now)) {
            self.wrong_reads += run.wrong_reads;
            return run.finished.map(|(_, done)| ComputeEvent::Done(done));
        }
        let (_, event) = self.events.pop_front_if(|(at, _)| *at <= now)?;
        self.attached = match event {
            ComputeEvent::Attached(_) => true,
            ComputeEvent::Lost => false,
            _ => self.attached,
        };
        if event == ComputeEvent::Lost {
            // The next engine attaches after the driver has handled `Lost`.
            self.events.iter_mut().for_each(|(at, _)| *at = (*at).max(now.plus(1)));
        }
        Some(event)
    }

    fn next_due(&self) -> Option<Nanos> {
        let event = self.events.front().map(|(at, _)| *at);
        let device = self.device.borrow();
        let finished = device.run.as_ref().and_then(|r| r.finished.as_ref()).map(|(at, _)| *at);
        [event, finished, device.next_due()].into_iter().flatten().min()
    }
}
