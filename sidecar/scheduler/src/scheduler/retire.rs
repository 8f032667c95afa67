//! Retires a step: delivers tokens, records computed tokens and ends requests.

use sluice_policy::ellm::Violations;
use sluice_policy::ids::{Nanos, RequestId, StepId};
use sluice_policy::memory_manager::{MemoryNotes, StepTimes};
use sluice_ports::compute::{Sampled, SequenceFailure, StepDone};

use super::{InFlight, Scheduler};
use crate::batch::ScheduledTokens;
use crate::event::{Finish, SchedulerOutput, StepOutput};
use crate::sequence::Sequence;

/// Waiting requests that a step checks for lateness.
const MAX_CHECKED: usize = 64;

impl Scheduler {
    /// Handles the answer to the step in flight. Any other answer is stale and ignored.
    pub(super) fn retire(&mut self, now: Nanos, done: StepDone) {
        if let Some(problem) = self.mismatch(&done) {
            return self.refused(now, done.id, done.attempt, problem);
        }
        let Some(in_flight) = self.take_in_flight(done.id, done.attempt) else { return };
        let total = |times: &[u64]| times.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
        let (waited_ns, kv_stall_ns) = (total(&done.stall_ns), total(&done.kv_stall_ns));
        let (stall_ns, arrival_ns) =
            if self.manager.status().step_waited_for_weights() { (0, waited_ns) } else { (waited_ns, 0) };
        let mut notice = StepOutput {
            elapsed_ns: now.since(in_flight.submitted),
            engine_ns: done.total_ns,
            stall_ns,
            arrival_ns,
            kv_stall_ns,
            ..StepOutput::default()
        };
        // Requests that lost KV during the step are recomputed, so the step's results for them are discarded.
        self.requeue_lost();
        let failed: Vec<_> = done
            .failed
            .iter()
            .filter_map(|one| Some((self.requests.running.in_row(one.row)?.id(), one.failure.clone())))
            .collect();
        for part in &in_flight.batch.scheduled {
            // The KV of a row with invalid logits is also invalid and must not enter the prefix cache.
            if !failed.iter().any(|(request, _)| *request == part.request) {
                self.on_tokens_computed(part, &mut notice);
            }
        }
        self.counters.add_step(&notice);
        self.outputs.push(SchedulerOutput::Step(notice));
        // A refused sequence did not run, so it must not affect the measurements.
        let computed = in_flight.batch.without(|request| is_refused(&failed, request));
        let (shape, decode_only) =
            (computed.shape(), notice.prefill_tokens == 0 && !computed.scheduled.is_empty());
        let StepDone { sampled, layer_ns, stall_ns, kv_stall_ns, total_ns, .. } = done;
        let times = StepTimes { shape, decode_only, layer_ns, stall_ns, kv_stall_ns, total_ns };
        self.manager.finish(&times);
        self.record_slo_violations(now, &sampled);
        sampled.into_iter().for_each(|token| self.deliver(now, token));
        failed
            .into_iter()
            .for_each(|(request, failure)| self.end(request, Finish::Failed(failure.to_string())));
        self.drop_cancelled();
    }

    /// Handles a step that the engine refused, or whose answer is unusable: its requests fail, the others continue.
    pub(super) fn refused(&mut self, now: Nanos, id: StepId, attempt: u32, message: &str) {
        let Some(in_flight) = self.take_in_flight(id, attempt) else { return };
        self.counters.refused_steps += 1;
        // The engine passed no layer and released no slot, so the copies that wait for slots are dropped and rebuilt.
        self.manager.engine_lost(now, &mut self.actions);
        for part in &in_flight.batch.scheduled {
            self.end(part.request, Finish::Failed(format!("the engine refused the step: {message}")));
        }
    }

    /// Handles a step that the engine skipped because its time slice ended: its requests keep their memory for a step
    /// of the next slice.
    pub(super) fn on_stale_epoch(&mut self, now: Nanos, id: StepId, attempt: u32) {
        let current = |f: &&mut InFlight| !f.lost && f.step.id == id && f.step.attempt == attempt;
        let Some(in_flight) = self.in_flight.as_mut().filter(current) else { return };
        in_flight.lost = true;
        // The layers not reached released no slot, so the copies that wait for them are dropped and ordered again.
        self.manager.engine_lost(now, &mut self.actions);
    }

    /// Returns what is wrong with an answer to the step in flight ([`StepDone::matches_rows`]).
    fn mismatch(&self, done: &StepDone) -> Option<&'static str> {
        let step = &self.in_flight.as_ref()?.step;
        let rows: Vec<_> = step.sequences.iter().map(|s| (s.row, s.sample.is_some())).collect();
        let current = step.id == done.id && step.attempt == done.attempt;
        (current && !done.matches_rows(&rows))
            .then_some("its answer has tokens of rows that were not sampled")
    }

    /// Takes the step that was answered.
    fn take_in_flight(&mut self, id: StepId, attempt: u32) -> Option<InFlight> {
        let answered = self.in_flight.take_if(|f| !f.lost && f.step.id == id && f.step.attempt == attempt)?;
        self.engine_crashes = 0;
        Some(answered)
    }

    fn on_tokens_computed(&mut self, part: &ScheduledTokens, notice: &mut StepOutput) {
        let Some(sequence) = self.requests.running.get_mut(part.request) else {
            return;
        };
        let (start, end) = (sequence.computed_tokens, sequence.computed_tokens + part.tokens);
        sequence.waiting_offloaded |= sequence.prefill_offloaded && part.samples;
        self.manager.on_tokens_computed(part.request, &sequence.tokens[start as usize..end as usize]);
        sequence.computed_tokens = end;
        if part.tokens == 1 && part.samples && sequence.generated() > 0 {
            notice.decodes += 1;
        } else {
            notice.prefill_tokens += part.tokens;
        }
        notice.recomputed_tokens += end.min(sequence.computed_before).saturating_sub(start);
    }

    /// Delivers a sampled token to its request. A row without a request belongs to one that has ended.
    fn deliver(&mut self, now: Nanos, sampled: Sampled) {
        let tbt_ns = self.manager.params().slo.tbt_ns;
        let Some(id) = self.requests.running.in_row(sampled.row).map(Sequence::id) else { return };
        let Some(sequence) = self.requests.running.get_mut(id) else { return };
        if sequence.cancelled {
            return;
        }
        sequence.record_token(now, tbt_ns);
        let (request, finish) = (sequence.id(), sequence.accept(sampled.token));
        self.outputs.push(SchedulerOutput::Token {
            request,
            token: sampled.token,
            logprobs: sampled.logprobs,
        });
        if let Some(finish) = finish {
            self.end(request, finish);
        }
    }

    /// Reports SLO violations to Algorithm 2: first tokens that were or already are late, and requests with fewer
    /// tokens than they should have by now.
    fn record_slo_violations(&mut self, now: Nanos, sampled: &[Sampled]) {
        let slo = self.manager.params().slo;
        if !self.manager.offload_view().offloads_prefills() || (slo.ttft_ns == 0 && slo.tbt_ns == 0) {
            return;
        }
        let late =
            |from: Nanos, tokens: u32, ns: u64| ns > 0 && now.since(from) > ns.saturating_mul(tokens.into());
        let ttft = |one: &Sequence| one.first_token.is_none() && late(one.arrived, 1, slo.ttft_ns);
        let tpot =
            |one: &Sequence| one.first_token.is_some_and(|first| late(first, one.generated(), slo.tbt_ns));
        let with_token: Vec<_> =
            sampled.iter().filter_map(|token| self.requests.running.in_row(token.row)).collect();
        let waiting = || self.requests.queue.iter().take(MAX_CHECKED);
        let offloaded = || waiting().filter(|one| one.waiting_offloaded);
        let slo_violations = Some(Violations {
            ttft: with_token.iter().any(|one| ttft(one)) || waiting().any(ttft),
            tpot: with_token.iter().any(|one| tpot(one)) || offloaded().any(tpot),
        });
        self.manager.note(&MemoryNotes { slo_violations, ..MemoryNotes::default() });
    }

    pub(super) fn drop_cancelled(&mut self) {
        let cancelled: Vec<_> =
            self.requests.running.iter().filter(|s| s.cancelled).map(|s| s.id()).collect();
        cancelled.into_iter().for_each(|id| self.end(id, Finish::Cancelled));
    }
}

fn is_refused(failed: &[(RequestId, SequenceFailure)], request: RequestId) -> bool {
    failed.iter().any(|(one, failure)| *one == request && matches!(failure, SequenceFailure::Refused(_)))
}
