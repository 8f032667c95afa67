//! Computes the layers of a step on a device.

use std::collections::BTreeMap;

use sluice_policy::action::Address;
use sluice_policy::ids::{Generation, LayerBlockId, LayerId, Nanos};
use sluice_ports::compute::{FailedSequence, Sampled, SequenceFailure, SequenceStep, Step, StepDone};
use sluice_ports::fake_memory::ChunkContent;

use super::combine::combine;
use super::running_step::{LayerBlockTable, RunningStep};
use crate::device::{Detail, SimDevice};
use crate::profiles::cost;

/// Layers after which a step that shares the processors checks again how many steps share them.
const LOOKAHEAD_LAYERS: u16 = 8;

impl RunningStep {
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
