//! Implements the step boundary: admits requests, asks for memory and submits the next step.

use sluice_policy::ids::{Nanos, RequestId, RowId};
use sluice_policy::memory_manager::{Prepared, StepLease};
use sluice_policy::reclaim::PreemptionCandidate;
use sluice_ports::compute::{SampleRequest, SequenceStep, Step, TableUpdate};

use super::limits::{ADMISSION_HOLD_STEPS, STARVED_BOUNDARIES_MAX};
use super::{InFlight, Scheduler};
use crate::batch::{Batch, ScheduledTokens};
use crate::event::{Command, Finish, SchedulerOutput};
use crate::sequence::Sequence;

/// Engine losses during one step before its requests fail, so that a step that crashes every engine ends.
const REPLAYS_MAX: u32 = 16;

impl Scheduler {
    /// Runs the step boundary; called whenever no step is in flight. Does nothing while memory is being remapped. With
    /// peers, memory also moves without an engine: an engine that exited maps nothing, so every required unmap is
    /// already done.
    pub(super) fn schedule(&mut self, now: Nanos) {
        let absent = self.engine.is_none() && self.negotiator.is_none();
        if absent || !self.manager.is_loaded() || self.manager.is_blocked() {
            return;
        }
        self.sleep_or_wake();
        let may_run = self.can_run(now) && self.engine.is_some();
        self.manager.boundary(now, &mut self.actions);
        self.negotiate(now);
        if self.quantum_expired {
            self.manager.on_borrow_denied();
        }
        self.make_host_room(now);
        if self.manager.is_blocked() || !may_run || self.manager.lacks_weights() || self.manager.is_spilling()
        {
            return;
        }
        self.apply_plan_pauses(now);
        self.suspend_offloaded();
        let (mut admitted, sure) = self.admit(now);
        self.ask_plan(now);
        match self.build_batch(now, &mut admitted, sure) {
            Some(batch) => {
                self.commit_admissions(now, &admitted);
                self.submit_step(now, batch);
            }
            None => admitted.into_iter().for_each(|id| self.requeue(id)),
        }
    }

    /// Moves waiting requests into free rows, up to one step's worth of tokens. Returns the admitted requests, and the
    /// number of them for which running requests may be paused: under deadline scheduling those that fit and one more.
    /// The rest are admitted only with memory that is free of cost, from peers or from layers whose streaming is
    /// hidden, which arrives in large pieces.
    fn admit(&mut self, now: Nanos) -> (Vec<RequestId>, usize) {
        let (mut admitted, mut sure) = (Vec::new(), usize::MAX);
        self.manager.set_blocked_head(None);
        let by_deadline = self.order_queue();
        if self.admission_on_hold() && !by_deadline {
            return (admitted, sure);
        }
        if !self.admission_on_hold() {
            self.promote_overdue(now);
        }
        self.demote_late(now);
        let running_tokens = self.running_tokens();
        let step_tokens = if self.manager.weights_loading() {
            self.config.max_model_tokens
        } else {
            self.config.max_step_tokens
        };
        let mut budget = step_tokens.max(self.config.max_step_tokens).saturating_sub(running_tokens);
        if budget > 0 {
            self.make_row(now);
        }
        let mut coming_layer_blocks = 0;
        while budget > 0
            && (sure == usize::MAX || self.may_admit_extra())
            && !self.free_rows.is_empty()
            && !self.queue.is_empty()
            && !self.head_must_wait(now, coming_layer_blocks)
        {
            if by_deadline && sure == usize::MAX && !self.head_fits(now, coming_layer_blocks) {
                sure = admitted.len() + 1;
            }
            let Some(row) = self.free_rows.pop() else { break };
            let Some(mut sequence) = self.queue.pop() else { break };
            coming_layer_blocks += self.layer_blocks_needed(now, &sequence);
            let out = self.starts_offloaded(now, &sequence);
            if sequence.kv_suspended {
                self.manager.resume(sequence.id());
            } else {
                sequence.committed =
                    self.manager.open(sequence.id(), sequence.request.salt, &sequence.tokens);
            }
            budget = budget.saturating_sub(sequence.pending());
            let id = sequence.id();
            admitted.push(id);
            self.assign_row(sequence, row);
            if out {
                self.start_offload(id);
            }
        }
        self.admit_offloaded_prefills(budget, &mut admitted);
        (admitted, sure)
    }

    /// Whether the queue head may be tried after a request that did not fit. Skips suspended requests: admitting one
    /// needs all its KV at once, and a failure would swap it straight back out.
    fn may_admit_extra(&self) -> bool {
        self.next_step >= self.burst_backoff_until
            && self.queue.front().is_some_and(|front| !front.kv_suspended)
    }

    /// Returns the pending tokens of the running requests.
    pub(super) fn running_tokens(&self) -> u32 {
        self.running.values().map(Sequence::pending).fold(0, u32::saturating_add)
    }

    /// Runs the request in row `row`.
    pub(super) fn assign_row(&mut self, mut sequence: Sequence, row: RowId) {
        sequence.row = Some(row);
        sequence.row_is_new = true;
        sequence.last_step = self.next_step;
        self.place(sequence);
    }

    /// Whether memory refused an admission a short time ago. Never while no request runs: no request could end then, so
    /// requests that went back while memory was moving are retried.
    pub(super) fn admission_on_hold(&self) -> bool {
        self.next_step < self.admission_backoff_until && !self.running.is_empty()
    }

    fn place(&mut self, mut sequence: Sequence) {
        let admissions = &mut self.admissions;
        let place = *sequence.admission.get_or_insert_with(|| {
            *admissions += 1;
            *admissions
        });
        self.admission_order.insert(sequence.id(), place);
        self.running.insert(place, sequence);
    }

    /// Finds a batch that memory can hold. If the first one does not fit, it reduces the tokens if activations are
    /// short (a whole-prompt prefill first drops to the usual number), then returns the newest admissions to the queue,
    /// then preempts the running request that the policy ranks first. The oldest request is never a victim. Returns
    /// `None` while memory is moving or if no request can run.
    fn build_batch(&mut self, now: Nanos, admitted: &mut Vec<RequestId>, sure: usize) -> Option<Batch> {
        let fitting = self.fitting_tokens(now);
        let usual = self.config.max_step_tokens.min(fitting).min(self.tokens_beside_decodes());
        let mut max_tokens = usual.max(self.whole_tokens().min(fitting));
        let (mut made_room, mut prompts_wait, mut rest) = (false, false, None);
        loop {
            let alone = self.prefers_decodes();
            let taken = self.running.values().filter(|sequence| !alone || sequence.pending() == 1);
            let taken = taken.filter(|sequence| !prompts_wait || !sequence.prefill_offloaded);
            let batch = Batch::plan(taken, max_tokens);
            if batch.scheduled.is_empty() {
                return None;
            }
            let need = batch.need(|id| self.manager.kv_blocks(id));
            match self.manager.prepare(now, &need, &mut self.actions) {
                Prepared::Ready => {
                    self.head_starved = 0;
                    return Some(batch);
                }
                Prepared::Wait if self.borrow_denied(now) => {}
                Prepared::Wait => return rest.filter(|rest| self.fits_without_reclaim(now, rest)),
                Prepared::Loading => {
                    self.requeue_loading(admitted);
                    rest = self.retain_running(batch);
                }
                Prepared::Short { activation: true, .. } if max_tokens > usual => max_tokens = usual,
                Prepared::Short { activation: true, .. } if max_tokens > 1 => max_tokens /= 2,
                Prepared::Short { activation: false, .. } if admitted.len() > sure => {
                    self.requeue_half(admitted, sure);
                }
                // Only once: if the memory freed by then does not help, more pauses would not either.
                Prepared::Short { missing_kv_blocks, .. }
                    if !made_room && self.make_room(now, missing_kv_blocks, admitted) =>
                {
                    made_room = true;
                }
                Prepared::Short { .. } if !prompts_wait && self.can_defer_prefills(&batch, admitted) => {
                    prompts_wait = true;
                }
                Prepared::Short { missing_kv_blocks, activation: false }
                    if self.apply_stalling_remap(now, missing_kv_blocks, admitted) =>
                {
                    return None;
                }
                Prepared::Short { .. } => {
                    if !self.shrink_batch(now, admitted) {
                        self.fail_if_starved();
                        return None;
                    }
                }
            }
        }
    }

    /// Returns the batch without the requests whose KV is loading; memory was available for all of it.
    fn retain_running(&self, mut batch: Batch) -> Option<Batch> {
        batch.scheduled.retain(|part| self.admission_order.contains_key(&part.request));
        (!batch.scheduled.is_empty()).then_some(batch)
    }

    fn fits_without_reclaim(&mut self, now: Nanos, batch: &Batch) -> bool {
        let need = batch.need(|id| self.manager.kv_blocks(id));
        let ready = self.manager.prepare(now, &need, &mut self.actions) == Prepared::Ready;
        self.head_starved = if ready { 0 } else { self.head_starved };
        ready
    }

    /// Returns the tokens of a step that takes whole prompts through each layer while weights load, as far as their
    /// activations fit. Returns 0 if no weights are loading.
    fn whole_tokens(&mut self) -> u32 {
        if !self.manager.weights_loading() {
            return 0;
        }
        let all = Batch::plan(self.running.values(), self.config.max_model_tokens);
        let need = all.need(|id| self.manager.kv_blocks(id));
        self.manager.whole_prompt_tokens(&need)
    }

    /// Removes one request from the batch. Returns false if only the oldest is left.
    fn shrink_batch(&mut self, now: Nanos, admitted: &mut Vec<RequestId>) -> bool {
        if self.running.len() <= 1 {
            // An offloaded prompt can also lack only space in the host tier.
            let goes_out = self.running.values().any(|one| one.prefill_offloaded);
            return self.drop_suspended_kv(|manager, id| goes_out || manager.on_device(id));
        }
        match admitted.iter().rposition(|id| !self.is_overdue(now, *id)) {
            Some(at) if self.start_prefill_offload(admitted[at]) => {}
            Some(at) => self.requeue_with_backoff(admitted.remove(at)),
            None if self.pause_or_preempt(now) => {}
            None => match admitted.pop() {
                Some(overdue) => self.requeue_with_backoff(overdue),
                None => self.preempt_victim(now),
            },
        }
        true
    }

    fn requeue_with_backoff(&mut self, id: RequestId) {
        self.requeue(id);
        self.admission_backoff_until = self.next_step + ADMISSION_HOLD_STEPS;
    }

    /// Requeues the last half of the admitted requests beyond the first `sure`.
    fn requeue_half(&mut self, admitted: &mut Vec<RequestId>, sure: usize) {
        let kept = sure + (admitted.len() - sure) / 2;
        admitted.drain(kept..).rev().for_each(|id| self.requeue(id));
        self.burst_backoff_until = self.next_step + ADMISSION_HOLD_STEPS;
    }

    /// Requeues the admitted requests whose KV is loading. The others stay admitted.
    fn requeue_loading(&mut self, admitted: &mut Vec<RequestId>) {
        for id in admitted.extract_if(.., |id| self.manager.is_loading(*id)).collect::<Vec<_>>() {
            self.requeue(id);
        }
    }

    /// Returns a request that was being admitted at this boundary to the queue.
    fn requeue(&mut self, id: RequestId) {
        let Some(mut sequence) = self.take_running(id) else { return };
        sequence.prefill_offloaded = false;
        if sequence.kv_suspended {
            self.manager.suspend_request(id);
        } else {
            self.manager.close(id);
            sequence.committed = 0;
        }
        self.queue.push(sequence);
    }

    /// Returns the request to preempt: the lowest priority, then the highest rank of the policy. Requests at the pause
    /// limit are last.
    pub(super) fn preemption_victim(&self, now: Nanos) -> Option<RequestId> {
        let policy = self.manager.params().policy();
        let key = |(place, s): &(&u64, &Sequence)| {
            let candidate =
                PreemptionCandidate { admission: **place, kv_blocks: self.manager.kv_blocks(s.id()) };
            let rank = policy.preemption_rank(&candidate);
            (self.is_immune(now, s.id()), s.request.priority, core::cmp::Reverse(rank))
        };
        self.running.iter().skip(1).min_by_key(key).map(|(_, s)| s.id())
    }

    /// Preempts the victim: it waits and is recomputed from the same tokens.
    pub(super) fn preempt_victim(&mut self, now: Nanos) {
        if let Some(sequence) = self.preemption_victim(now).and_then(|id| self.remove_running(id)) {
            self.requeue_for_recompute(sequence);
        }
    }

    /// Queues a request whose memory was freed for recomputation.
    pub(super) fn requeue_for_recompute(&mut self, mut sequence: Sequence) {
        let dropped_tokens = sequence.preempt();
        self.counters.preemptions += 1;
        self.outputs.push(SchedulerOutput::Preempted { request: sequence.id(), dropped_tokens });
        self.queue.push(sequence);
    }

    /// Counts a boundary at which the oldest request alone does not fit. Its memory is guaranteed, so only a failing
    /// backend causes this; after [`STARVED_BOUNDARIES_MAX`] boundaries the request fails.
    fn fail_if_starved(&mut self) {
        self.head_starved += 1;
        if self.head_starved < STARVED_BOUNDARIES_MAX {
            return;
        }
        self.head_starved = 0;
        if let Some(id) = self.running.values().next().map(Sequence::id) {
            self.end(id, Finish::Failed("the device did not provide the guaranteed memory".into()));
        }
    }

    fn commit_admissions(&mut self, now: Nanos, admitted: &[RequestId]) {
        self.record_resumed(now, admitted);
        for id in admitted {
            let Some(sequence) = self.admission_order.get(id).and_then(|place| self.running.get_mut(place))
            else {
                continue;
            };
            let first = !std::mem::replace(&mut sequence.started, true);
            let queued_ns = first.then(|| now.since(sequence.arrived));
            sequence.waiting_offloaded = false;
            self.counters.prefills_offloaded += u64::from(sequence.prefill_offloaded);
            if !std::mem::take(&mut sequence.kv_suspended) {
                self.counters.cached_tokens += u64::from(sequence.committed);
                self.counters.queried_tokens += u64::from(sequence.len());
            }
            self.outputs.push(SchedulerOutput::Admitted {
                request: *id,
                cached_tokens: sequence.committed,
                queued_ns,
            });
        }
    }

    fn submit_step(&mut self, now: Nanos, batch: Batch) {
        self.exclude_offloaded_prefills(&batch);
        let lease = self.manager.begin(now, &mut self.actions);
        self.record_turn_use();
        self.flush();
        let step = self.build(&batch, lease);
        self.commands.push(Command::Compute(step.clone()));
        self.in_flight = Some(InFlight { step, batch, submitted: now, lost: false });
    }

    fn build(&mut self, batch: &Batch, lease: StepLease) -> Step {
        let updates = self.table_updates();
        let mut sequences: Vec<_> =
            batch.scheduled.iter().filter_map(|part| self.sequence_step(part)).collect();
        sequences.sort_by_key(|s| s.row);
        self.next_step += 1;
        self.record_scheduled(batch);
        Step {
            id: sluice_policy::ids::StepId(self.next_step),
            attempt: 0,
            epoch: self.epoch(),
            sequences,
            updates,
            generations: lease.generations,
            kv_generations: lease.kv_generations,
            activation_limit_bytes: lease.activation_limit_bytes,
        }
    }

    fn record_scheduled(&mut self, batch: &Batch) {
        for part in &batch.scheduled {
            let place = self.admission_order.get(&part.request);
            if let Some(sequence) = place.and_then(|place| self.running.get_mut(place)) {
                sequence.last_step = self.next_step;
            }
        }
    }

    /// Returns the table updates: new rows first, then every KV block that is new or moved.
    fn table_updates(&mut self) -> Vec<TableUpdate> {
        let mut updates = core::mem::take(&mut self.unsent_table_updates);
        for sequence in self.running.values_mut().filter(|s| s.row_is_new) {
            sequence.row_is_new = false;
            if let Some(row) = sequence.row {
                let tokens = sequence.tokens[..sequence.committed as usize].to_vec();
                updates.push(TableUpdate::Reset { row, tokens });
            }
        }
        for change in self.manager.take_table_changes() {
            if let Some(row) = self.running_request(change.request).and_then(|s| s.row) {
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
        let sequence = self.running_request(part.request)?;
        let (start, end) = (sequence.committed as usize, (sequence.committed + part.tokens) as usize);
        let order = || SampleRequest {
            sampling: sequence.request.sampling.clone(),
            prompt_tokens: sequence.request.prompt.len() as u32,
        };
        Some(SequenceStep {
            row: sequence.row?,
            start: sequence.committed,
            tokens: sequence.tokens[start..end].to_vec(),
            sample: part.samples.then(order),
        })
    }

    /// Handles a step lost with its engine. With peers the step is undone, because a peer may need memory before the
    /// next engine attaches. Without peers it is kept and replayed unchanged.
    pub(super) fn resume(&mut self, now: Nanos) {
        if self.engine_crashes > REPLAYS_MAX {
            return self.fail_step();
        }
        match self.negotiator {
            Some(_) => {
                self.undo_step();
                self.schedule(now);
            }
            None => self.replay(now),
        }
    }

    /// Undoes the step: its sequences return to their state before it and keep the KV blocks allocated for it.
    fn undo_step(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        self.unsent_table_updates = in_flight.step.updates;
        self.manager.forget_step();
        self.counters.replays += 1;
        self.drop_cancelled();
        self.requeue_lost();
    }

    /// Replays the step that a lost engine did not finish, with the same inputs and fresh generations.
    fn replay(&mut self, now: Nanos) {
        if !self.serving() || self.manager.is_blocked() || !self.can_run(now) {
            return;
        }
        let epoch = self.epoch();
        let lease = self.manager.begin(now, &mut self.actions);
        self.record_turn_use();
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
    fn fail_step(&mut self) {
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
