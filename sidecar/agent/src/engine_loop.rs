//! The engine loop: one thread that owns the scheduler, device memory and the link to the engine.
//!
//! The thread sleeps until its inbox has a message, handles it, runs the driver and sends tokens to their streams. Only
//! this thread manages device memory.

pub mod backend;
pub mod engine_acceptor;
pub mod engine_event;
mod engine_watch;
mod idle_sleep;
mod load;
mod max_map_count;
mod peers;
mod placement_planner;
mod share_control;
mod state_recorder;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use sluice_link::control::ControlPage;
use sluice_memory::DeviceMemory;
use sluice_memory::gpu_ledger::LedgerError;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_ports::peers::PeerPortEvent;
use sluice_scheduler::{Driver, Event, Finish, SchedulerOutput, Sleep, UnavailableReason};
use sluice_wire::state::SidecarHangs;
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::peers::admin_call::{AdminCall, reject_grant};
use crate::peers::membership::LedgerMembership;
use crate::peers::pending_replies::PendingReplies;
use crate::scheduler_handle::{RequestUpdate, SchedulerMessage, Status};
use backend::EngineCompute;
use engine_event::EngineConnEvent;
use engine_watch::EngineWatch;
use idle_sleep::IdleSleep;
pub use load::{
    InjectedFaults, LoadError, LoadedTenant, TenantLoader, chunk_tokens, load, parse_policy, step_limits,
};
pub use peers::PeerContext;
use share_control::ShareController;
use state_recorder::StateRecorder;

/// Longest sleep when nothing is due.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(1);

/// Extension of the time slice's deadline in each round while the engine makes progress. A round takes at most one
/// second.
const SLICE_EXTENSION: Duration = Duration::from_millis(1500);

/// The device failed. Only a restart can help.
#[derive(Debug, thiserror::Error)]
#[error("the memory of the device failed: {0}")]
pub struct DeviceFailed(String);

/// The thread's state.
pub struct EngineLoop {
    driver: Driver<DeviceMemory, EngineCompute>,
    inbox: Receiver<SchedulerMessage>,
    status: watch::Sender<Status>,
    streams: HashMap<RequestId, mpsc::UnboundedSender<RequestUpdate>>,
    metrics: Arc<Metrics>,
    recorder: StateRecorder,
    clock: Clock,
    /// Longest time that streams are held while no engine is attached.
    hold_limit: Duration,
    engine_lost_at: Option<Instant>,
    engine_watch: EngineWatch,
    /// Counts the rounds of this thread for the engine's supervisor.
    control_page: Arc<ControlPage>,
    /// Handles requests of peers. `None` if the GPU is not shared.
    replies: Option<Arc<PendingReplies>>,
    membership: Option<LedgerMembership>,
    /// Time slices that peers took over, as already counted in the metrics.
    overtaken_slices: u64,
    /// Policy, share and remap cap.
    share_control: ShareController,
    idle_sleep: IdleSleep,
    heartbeat: Heartbeat,
    /// Earlier sidecars of this tenant that hung and were killed.
    sidecar_hangs: Option<SidecarHangs>,
}

impl EngineLoop {
    /// Runs until [`SchedulerMessage::Stop`].
    ///
    /// # Errors
    /// The device failed. Open streams have received the failure.
    pub fn run(mut self) -> Result<(), DeviceFailed> {
        let mut due = Some(self.now());
        loop {
            self.heartbeat.beat();
            let sleep = due.map_or(MAX_IDLE_WAIT, |due| Duration::from_nanos(due.since(self.now())));
            let sleep =
                sleep.min(MAX_IDLE_WAIT).min(self.next_share_check()).min(self.engine_watch.poll_interval());
            let mut message = match self.inbox.recv_timeout(sleep) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(one) = message {
                if matches!(one, SchedulerMessage::Stop) {
                    self.stop();
                    return Ok(());
                }
                self.on_message(one);
                message = self.inbox.try_recv().ok();
            }
            self.control_page.heartbeat();
            self.extend_slice();
            self.maybe_sleep();
            self.apply_directive();
            let now = self.now();
            due = self.driver.step(now);
            self.watch_engine();
            self.extend_slice();
            self.count_overtaken_slices();
            self.publish();
            self.idle_sleep.reply_completed(self.driver.scheduler().manager().status().sleep_state());
            self.expire_streams();
            self.update_status();
            if let Some(failure) = self.driver.scheduler().manager().status().failed() {
                let why = failure.to_string();
                self.end_streams(&UnavailableReason::Device(why.clone()));
                self.stop();
                return Err(DeviceFailed(why));
            }
        }
        self.stop();
        Ok(())
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }

    fn on_message(&mut self, message: SchedulerMessage) {
        match message {
            SchedulerMessage::Submit(request, updates) => {
                self.streams.insert(request.id, updates);
                self.driver.push(Event::Submit(request));
            }
            SchedulerMessage::Cancel(id) => {
                // Every handle sends this when it is dropped. It cancels a request only if the response has not ended.
                if self.streams.remove(&id).is_some() {
                    self.driver.push(Event::Cancel(id));
                }
            }
            SchedulerMessage::Wake => {}
            SchedulerMessage::Engine(news) => self.on_engine_event(*news),
            SchedulerMessage::Admin(call) => self.on_call(call),
            SchedulerMessage::Peer(event) => self.driver.push(Event::Peer(*event)),
            SchedulerMessage::State(reply) => {
                let state = self.state();
                // The receiver may be dropped.
                let _ = reply.send(Box::new(state));
            }
            SchedulerMessage::Stop => unreachable!("handled by the loop"),
        }
    }

    fn on_call(&mut self, call: AdminCall) {
        let Some((request, answer)) = self.idle_sleep.on_call(call, &mut self.driver) else { return };
        let Some(replies) = &self.replies else { return reject_grant(answer) };
        for news in replies.on_request(request, answer) {
            self.driver.push(Event::Peer(PeerPortEvent::Peer(news)));
        }
    }

    fn on_engine_event(&mut self, news: EngineConnEvent) {
        match news {
            // The chunk layout depends on the activation costs that the first engine reported.
            EngineConnEvent::Attached(link)
                if link.hello.activation != self.driver.scheduler().manager().geometry().activation =>
            {
                tracing::error!(
                    build = link.build,
                    "refused an engine whose activation sizes differ from those of the first engine"
                );
                link.sender.shutdown();
            }
            EngineConnEvent::Attached(link) => {
                tracing::info!(pid = link.hello.pid, build = link.build, "engine attached");
                self.recorder.on_engine_attached(SystemTime::now());
                self.engine_lost_at = None;
                self.engine_watch.on_attached(link.process.clone(), link.supervisor.clone());
                backend::on_attached(&mut self.driver, link);
            }
            EngineConnEvent::Event(event) => backend::on_event(&mut self.driver, event),
            EngineConnEvent::Lost(why) => {
                tracing::warn!(%why, "engine lost; requests are held until a new engine attaches");
                self.recorder.on_engine_lost(SystemTime::now());
                self.engine_lost_at = Some(Instant::now());
                self.metrics.on_engine_lost();
                self.engine_watch.on_lost();
                backend::on_lost(&mut self.driver);
            }
        }
    }

    /// Extends the deadline of the time slice while the engine makes progress, but not while the engine hangs.
    fn extend_slice(&mut self) {
        let (Some(place), Some(epoch)) = (&self.membership, self.driver.scheduler().held_epoch()) else {
            return;
        };
        let slices = place.ledger.slice_queue();
        let promised = match self.engine_watch.slice_extension(SLICE_EXTENSION) {
            Some(lasts) => slices.set_deadline(boot_ns(sluice_memory::since_boot() + lasts)),
            None if slices.held().is_none() => Err(LedgerError::SliceTakenOver),
            None => Ok(()),
        };
        match promised {
            // The time slice was just released, or the scheduler has not received the next one yet.
            Ok(()) | Err(LedgerError::SliceNotHeld) => {}
            Err(LedgerError::SliceTakenOver) => {
                tracing::error!(
                    epoch,
                    "a peer took over the time slice, because this tenant was past its deadline"
                );
                self.engine_watch.on_overtaken();
                self.driver.push(Event::Peer(PeerPortEvent::SliceTakenOver { epoch }));
            }
            Err(error) => tracing::warn!(%error, "could not extend the deadline of the time slice"),
        }
    }

    /// Kills an engine that makes no progress before its deadline.
    fn watch_engine(&mut self) {
        let compute = self.driver.compute();
        let (ordered, steps, remaps) =
            (compute.pending_work(), compute.take_step_times(), compute.take_remap_times());
        steps.into_iter().for_each(|(tokens, took)| self.engine_watch.on_step_done(tokens, took));
        remaps.into_iter().for_each(|(addresses, took)| self.engine_watch.on_remapped(addresses, took));
        let carried = self.driver.memory().transferred_bytes();
        let before = self.engine_watch.hangs();
        self.engine_watch.poll(Instant::now(), ordered, carried);
        (before..self.engine_watch.hangs()).for_each(|_| self.metrics.on_engine_hung());
    }

    /// Counts the time slices that peers took over from this tenant.
    fn count_overtaken_slices(&mut self) {
        let Some(place) = &self.membership else { return };
        let total = place.ledger.slice_queue().takeovers_total();
        let before = std::mem::replace(&mut self.overtaken_slices, total);
        (before..total).for_each(|_| self.metrics.on_slice_overtaken());
    }

    /// Sends the scheduler's outputs to streams and metrics.
    fn publish(&mut self) {
        let at = Instant::now();
        for notice in self.driver.take_outputs() {
            match notice {
                SchedulerOutput::Token { request, token, logprobs } => {
                    self.send(request, RequestUpdate::Token { token, logprobs, at })
                }
                SchedulerOutput::Finished { request, finish } => {
                    self.send_last(request, RequestUpdate::Finished(finish))
                }
                SchedulerOutput::Refused { request, refusal } => {
                    self.send_last(request, RequestUpdate::Refused(refusal))
                }
                SchedulerOutput::Admitted { cached_tokens, queued_ns, .. } => {
                    self.metrics.on_admitted(queued_ns, cached_tokens)
                }
                SchedulerOutput::PolicyRefused { policy, refused } => {
                    tracing::error!(
                        policy = policy.name(), %refused,
                        "the policy of the directive does not fit the GPU: keeping the current policy"
                    );
                    self.share_control.on_rejected();
                }
                SchedulerOutput::BoundsRefused { bounds, refused } => {
                    tracing::error!(?bounds, %refused, "the share and cap of the directive do not fit the \
                                                        GPU: keeping the current ones");
                    self.share_control.on_rejected();
                }
                SchedulerOutput::Preempted { request, dropped_tokens } => {
                    tracing::debug!(
                        request = request.0,
                        dropped_tokens,
                        reason = "preempt",
                        "request preempted"
                    );
                    self.metrics.on_preempted(dropped_tokens);
                }
                SchedulerOutput::Waited(span) => self.metrics.record_wait(&span),
                SchedulerOutput::Planned { gap_permille } => self.metrics.on_planned(gap_permille),
                SchedulerOutput::Step(step) => self.metrics.on_step(&step),
            }
        }
        self.recorder.set_idle_after(self.idle_sleep.idle_after());
        self.metrics.set_kv_copied(self.driver.memory().kv_copy_stats());
        let core = self.driver.scheduler();
        self.metrics.set_offloaded_prompts(
            core.counters().prefills_offloaded,
            core.manager().figures().prefill_buffer_bytes(),
        );
        self.recorder.observe(self.driver.scheduler(), &self.metrics);
    }

    fn send(&self, request: RequestId, update: RequestUpdate) {
        if let Some(stream) = self.streams.get(&request) {
            // A client that disconnected cancels its request itself.
            let _ = stream.send(update);
        }
    }

    fn send_last(&mut self, request: RequestId, update: RequestUpdate) {
        self.send(request, update);
        self.streams.remove(&request);
    }

    /// Ends the held streams if no engine attaches within the hold limit.
    fn expire_streams(&mut self) {
        if self.engine_lost_at.is_none_or(|left| left.elapsed() < self.hold_limit) || self.streams.is_empty()
        {
            return;
        }
        tracing::error!(
            streams = self.streams.len(),
            "no engine attached within limits.hold_seconds: ending the held requests"
        );
        self.end_streams(&UnavailableReason::NoEngine { held_seconds: self.hold_limit.as_secs() });
    }

    /// Puts the tenant to sleep after its idle time, and ends requests that were held too long during sleep.
    fn maybe_sleep(&mut self) {
        if self.idle_sleep.should_sleep(self.driver.scheduler()) {
            self.driver.push(Event::Sleep(Sleep::Idle));
        }
        let rest = self.driver.scheduler().manager().status().sleep_state();
        let late = self.idle_sleep.expired_requests(rest, self.streams.keys().copied(), self.hold_limit);
        if late.is_empty() {
            return;
        }
        let by_hand = self.driver.scheduler().snapshot().is_sleep_requested;
        let outage = UnavailableReason::Asleep { held_seconds: self.hold_limit.as_secs(), by_hand };
        late.into_iter().for_each(|request| self.end_stream(request, &outage));
    }

    /// Applies policy, share and cap of the directive as far as peers leave capacity.
    fn apply_directive(&mut self) {
        let events = self.share_control.reconcile(self.driver.scheduler().manager(), Instant::now());
        events.into_iter().for_each(|event| self.driver.push(event));
    }

    /// Returns the time until the share must be checked again.
    fn next_share_check(&self) -> Duration {
        self.share_control.next_check(self.driver.scheduler().manager(), Instant::now())
    }

    fn end_streams(&mut self, outage: &UnavailableReason) {
        let open: Vec<_> = self.streams.keys().copied().collect();
        open.into_iter().for_each(|request| self.end_stream(request, outage));
    }

    fn end_stream(&mut self, request: RequestId, outage: &UnavailableReason) {
        let Some(stream) = self.streams.remove(&request) else { return };
        // The client may have disconnected.
        let _ = stream.send(RequestUpdate::Finished(Finish::Unavailable(outage.clone())));
        self.driver.push(Event::Cancel(request));
    }

    fn update_status(&self) {
        let snapshot = self.driver.scheduler().snapshot();
        let status = match (snapshot.serving, self.driver.scheduler().manager().status().is_loaded()) {
            (true, _) => Status::Serving,
            (false, true) => Status::EngineLost,
            (false, false) => match self.driver.scheduler().manager().status().failed() {
                Some(failure) => Status::Failed(failure.to_string()),
                None => Status::Loading,
            },
        };
        self.status.send_if_modified(|old| {
            let changed = *old != status;
            if changed {
                tracing::info!(?status, "status");
                *old = status;
            }
            changed
        });
    }

    fn state(&mut self) -> sluice_wire::State {
        if cfg!(debug_assertions) {
            self.audit();
        }
        let mut state = state_recorder::build_state(&mut self.driver, &self.recorder, &self.metrics);
        state.engine.work = self.engine_watch.work();
        state.sidecar_hangs.clone_from(&self.sidecar_hangs);
        (state.engine.hangs, state.engine.last_hang) =
            (self.engine_watch.hangs(), self.engine_watch.last_hang());
        if let Some(place) = &self.membership {
            let seen = peers::PeerStateView {
                core: self.driver.scheduler(),
                recorder: &self.recorder,
                metrics: &self.metrics,
                share_control: &self.share_control,
                now: self.now(),
            };
            seen.fill(&mut state, place);
        }
        state
    }

    /// Checks that the backend backs every address as the chunk table says. Skips the check while an action is pending,
    /// because the backend may be ahead by that action.
    fn audit(&mut self) {
        if self.driver.scheduler().manager().status().is_blocked() {
            return;
        }
        let expected: Vec<_> = self.driver.scheduler().manager().figures().addresses().collect();
        let audited = self.driver.memory().audit(expected.into_iter());
        audited.expect("the backend's table equals the ledger's");
        self.driver.scheduler().check();
    }

    /// Ends all streams and sends the engine a goodbye.
    fn stop(mut self) {
        self.driver.compute().send_bye();
        drop(self.streams);
    }
}

/// Converts a time since boot to nanoseconds.
fn boot_ns(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}
