//! Simulated compute: a forward pass over fingerprints.
//!
//! The hidden state of a token is a hash; each layer mixes in the slab that it reads and the KV of all earlier
//! positions. A sampled token is the last hidden state modulo the vocabulary. So a token depends on every fingerprint
//! that a real forward pass reads, and not on batch, chunking, addresses or time.

mod combine;
mod layers;
mod running_step;

use std::collections::{BTreeMap, VecDeque};

use sluice_policy::action::Address;
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{Nanos, RowId};
use sluice_ports::compute::{
    Compute, ComputeEvent, EngineHello, FailedSequence, SequenceFailure, SequenceStep, Step, TableUpdate,
};

use self::combine::combine;
pub use self::running_step::RunningStep;
use self::running_step::{LayerBlockTable, StepWork};
use crate::device::{Detail, SharedDevice, SimDevice};

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
        let lost_is_queued = self.events.iter().any(|(_, event)| *event == ComputeEvent::Lost);
        self.events.retain(|(_, event)| *event == ComputeEvent::Lost);
        if std::mem::take(&mut self.attached) && !lost_is_queued {
            self.events.push_back((now, ComputeEvent::Lost));
        }
        self.attach(now.plus(restart_ns));
    }

    /// Makes the engine abandon its step because its time slice has ended. Returns whether a step was running.
    pub fn expire_slice(&mut self, now: Nanos) -> bool {
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
