//! Submits the step of a plan that memory has space for; replays or undoes a step that lost its engine.

use sluice_policy::ids::{Nanos, StepId};
use sluice_policy::memory_manager::{StepLease, TableChange};
use sluice_ports::compute::{SampleRequest, SequenceStep, Step, TableUpdate};

use super::{InFlight, REPLAYS_MAX, Scheduler};
use crate::batch::{Batch, ScheduledTokens};
use crate::event::{Command, Finish, SchedulerOutput};
use crate::step_plan::PlannedAdmission;

impl Scheduler {
    /// Moves a request that the step admits from the queue into a free row.
    pub(super) fn run(&mut self, planned: &PlannedAdmission) {
        let Some(mut sequence) = self.requests.queue.remove(planned.id) else { return };
        if let Some(prefix) = &planned.prefix {
            sequence.computed_tokens = prefix.tokens();
        }
        (sequence.prefill_offloaded, sequence.last_step) = (planned.prefill_offloaded, self.next_step);
        self.requests.running.add(sequence);
    }

    /// Counts and reports the requests that begin to run, and ends their pauses.
    pub(super) fn report_admissions(&mut self, now: Nanos, admitted: &[PlannedAdmission]) {
        for PlannedAdmission { id, .. } in admitted {
            self.requests.end_pause(now, *id);
            let Some(sequence) = self.requests.running.get_mut(*id) else {
                continue;
            };
            let is_first = !std::mem::replace(&mut sequence.started, true);
            let queued_ns = is_first.then(|| now.since(sequence.arrived));
            sequence.waiting_offloaded = false;
            self.counters.prefills_offloaded += u64::from(sequence.prefill_offloaded);
            if !std::mem::take(&mut sequence.kv_suspended) {
                self.counters.cached_tokens += u64::from(sequence.computed_tokens);
                self.counters.queried_tokens += u64::from(sequence.len());
            }
            self.outputs.push(SchedulerOutput::Admitted {
                request: *id,
                cached_tokens: sequence.computed_tokens,
                queued_ns,
            });
        }
    }

    /// Begins the step and sends it to the engine.
    pub(super) fn submit_step(&mut self, now: Nanos, batch: Batch) {
        let lease = self.manager.begin(now, &mut self.actions);
        self.slice.on_step();
        self.flush();
        let step = self.build(&batch, lease);
        self.commands.push(Command::Compute(step.clone()));
        self.in_flight = Some(InFlight { step, batch, submitted: now, lost: false });
    }

    /// Returns the step as the engine computes it.
    fn build(&mut self, batch: &Batch, lease: StepLease) -> Step {
        let updates = self.table_updates(lease.table_changes);
        let mut sequences: Vec<_> =
            batch.scheduled.iter().filter_map(|part| self.sequence_step(part)).collect();
        sequences.sort_by_key(|s| s.row);
        self.next_step += 1;
        self.record_last_step(batch);
        Step {
            id: StepId(self.next_step),
            attempt: 0,
            epoch: self.epoch(),
            sequences,
            updates,
            generations: lease.generations,
            kv_generations: lease.kv_generations,
            activation_limit_bytes: lease.activation_limit_bytes,
        }
    }

    fn record_last_step(&mut self, batch: &Batch) {
        for part in &batch.scheduled {
            if let Some(sequence) = self.requests.running.get_mut(part.request) {
                sequence.last_step = self.next_step;
            }
        }
    }

    /// Returns the table updates: new rows first, then every KV block that is new or moved.
    fn table_updates(&mut self, changes: Vec<TableChange>) -> Vec<TableUpdate> {
        let mut updates = core::mem::take(&mut self.unsent_table_updates);
        for sequence in self.requests.running.iter_mut().filter(|s| s.row_is_new) {
            sequence.row_is_new = false;
            if let Some(row) = sequence.row {
                let tokens = sequence.tokens[..sequence.computed_tokens as usize].to_vec();
                updates.push(TableUpdate::Reset { row, tokens });
            }
        }
        for change in changes {
            if let Some(row) = self.requests.running.get(change.request).and_then(|s| s.row) {
                updates.push(TableUpdate::KvBlock {
                    row,
                    kv_block: change.kv_block,
                    layer_blocks: change.layer_blocks,
                });
            }
        }
        updates
    }

    fn sequence_step(&self, part: &ScheduledTokens) -> Option<SequenceStep> {
        let sequence = self.requests.running.get(part.request)?;
        let (start, end) =
            (sequence.computed_tokens as usize, (sequence.computed_tokens + part.tokens) as usize);
        let sample = || SampleRequest {
            sampling: sequence.request.sampling.clone(),
            prompt_tokens: sequence.request.prompt.len() as u32,
        };
        Some(SequenceStep {
            row: sequence.row?,
            start: sequence.computed_tokens,
            tokens: sequence.tokens[start..end].to_vec(),
            sample: part.samples.then(sample),
        })
    }

    /// Undoes the step: its sequences return to their state before it and keep the KV blocks allocated for it.
    pub(super) fn undo_step(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        self.unsent_table_updates = in_flight.step.updates;
        self.manager.abandon_step();
        self.counters.replays += 1;
        self.drop_cancelled();
        self.requeue_lost();
    }

    /// Replays the step that a lost engine did not finish, with the same inputs and fresh generations.
    pub(super) fn replay(&mut self, now: Nanos) {
        if !self.serving() || self.manager.status().is_blocked() || !self.update_slice(now) {
            return;
        }
        let epoch = self.epoch();
        let lease = self.manager.begin(now, &mut self.actions);
        self.slice.on_step();
        self.flush();
        let Some(in_flight) = self.in_flight.as_mut() else { return };
        in_flight.lost = false;
        in_flight.step.attempt += 1;
        in_flight.step.epoch = epoch;
        in_flight.step.generations = lease.generations;
        in_flight.step.kv_generations = lease.kv_generations;
        in_flight.step.activation_limit_bytes = lease.activation_limit_bytes;
        self.counters.replays += 1;
        self.commands.push(Command::Compute(in_flight.step.clone()));
    }

    /// Fails the requests of a step that crashes every engine.
    pub(super) fn fail_step(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        self.engine_crashes = 0;
        self.unsent_table_updates = in_flight.step.updates;
        for part in in_flight.batch.scheduled {
            self.end(
                part.request,
                Finish::Failed(format!("{REPLAYS_MAX} engines were lost during this step")),
            );
        }
    }
}
