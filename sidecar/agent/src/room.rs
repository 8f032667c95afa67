//! The room where the scheduler works: one thread that owns scheduler, memory and the link to the engine.
//!
//! It sleeps until its inbox has something, handles it, lets the driver handle everything that follows from it, and hands
//! tokens to whoever asked for them. Nothing else touches device memory.

mod bed;
mod body;
mod bounds;
pub mod door;
mod engine_watch;
mod load;
mod mappings;
mod neighbours;
mod planner;
mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use sluice_link::control::ControlPage;
use sluice_memory::HostMemory;
use sluice_memory::gpu_ledger::LedgerError;
use sluice_policy::ids::{Nanos, RequestId};
use sluice_ports::peers::PeerPortEvent;
use sluice_scheduler::{Driver, Event, Finish, SchedulerOutput, Sleep, UnavailableReason};
use sluice_wire::state::SidecarHangs;
use tokio::sync::{mpsc, watch};

use crate::clock::Clock;
use crate::heartbeat::Heartbeat;
use crate::metrics::Metrics;
use crate::neighbours::call::{Call, decline};
use crate::neighbours::desk::Desk;
use crate::neighbours::place::Place;
use crate::service::{Message, Status, Update};
use bed::Bed;
use body::LinkCompute;
use bounds::Deal;
use door::News;
use engine_watch::EngineWatch;
pub use load::{InjectedFaults, LoadError, Loaded, Loading, chunk_tokens, load, policy_of, steps};
pub use neighbours::Among;
use state::Diary;

/// Longest sleep when nothing is due.
const IDLE_SLEEP: Duration = Duration::from_secs(1);

/// The deadline of a turn, from each round of this thread on, while the engine gets on: it goes round once a second at least.
const PROMISE: Duration = Duration::from_millis(1500);

/// The device did not give what the tenant needs; only a new start can help.
#[derive(Debug, thiserror::Error)]
#[error("the device failed: {0}")]
pub struct DeviceFailed(String);

/// The thread's state.
pub struct Room {
    driver: Driver<HostMemory, LinkCompute>,
    inbox: Receiver<Message>,
    status: watch::Sender<Status>,
    streams: HashMap<RequestId, mpsc::UnboundedSender<Update>>,
    metrics: Arc<Metrics>,
    diary: Diary,
    clock: Clock,
    /// How long streams are held while no engine is attached.
    hold: Duration,
    engine_left: Option<Instant>,
    watch: EngineWatch,
    /// Counts the rounds of this thread, for the engine's supervisor.
    page: Arc<ControlPage>,
    /// Where neighbours' questions go; none on a GPU of one's own.
    desk: Option<Arc<Desk>>,
    place: Option<Place>,
    /// Turns that neighbours took from this tenant, as they were counted.
    overtaken: u64,
    /// Its policy, share and cap.
    deal: Deal,
    bed: Bed,
    heartbeat: Heartbeat,
    /// Sidecars of this tenant that hung and were killed before this one.
    sidecar_hangs: Option<SidecarHangs>,
}

impl Room {
    /// Works until told to stop.
    ///
    /// # Errors
    /// The device has failed for good; open streams have been told.
    pub fn work(mut self) -> Result<(), DeviceFailed> {
        let mut due = Some(self.now());
        loop {
            self.heartbeat.beat();
            let sleep = due.map_or(IDLE_SLEEP, |due| Duration::from_nanos(due.since(self.now())));
            let sleep = sleep.min(IDLE_SLEEP).min(self.deal_rests()).min(self.watch.rests());
            let mut message = match self.inbox.recv_timeout(sleep) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            while let Some(one) = message {
                if matches!(one, Message::Stop) {
                    self.stop();
                    return Ok(());
                }
                self.take(one);
                message = self.inbox.try_recv().ok();
            }
            self.page.beat();
            self.keep_turn();
            self.lie_down();
            self.follow_directive();
            let now = self.now();
            due = self.driver.step(now);
            self.watch_engine();
            self.keep_turn();
            self.count_overtaken();
            self.announce();
            self.bed.answer(self.driver.scheduler().manager().sleep_state());
            self.give_up_streams();
            self.update_status();
            if let Some(failure) = self.driver.scheduler().manager().failed() {
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

    fn take(&mut self, message: Message) {
        match message {
            Message::Submit(request, updates) => {
                self.streams.insert(request.id, updates);
                self.driver.push(Event::Submit(request));
            }
            Message::Cancel(id) => {
                // Every ticket says this when it goes; only one whose answer has not ended means it.
                if self.streams.remove(&id).is_some() {
                    self.driver.push(Event::Cancel(id));
                }
            }
            Message::Wake => {}
            Message::Engine(news) => self.engine(*news),
            Message::Call(call) => self.call(call),
            Message::Neighbour(event) => self.driver.push(Event::Peer(*event)),
            Message::State(reply) => {
                let state = self.state();
                // Whoever asked may have gone.
                let _ = reply.send(Box::new(state));
            }
            Message::Stop => unreachable!("handled by the loop"),
        }
    }

    fn call(&mut self, call: Call) {
        let Some((request, answer)) = self.bed.call(call, &mut self.driver) else { return };
        let Some(desk) = &self.desk else { return decline(answer) };
        for news in desk.receive(request, answer) {
            self.driver.push(Event::Peer(PeerPortEvent::Peer(news)));
        }
    }

    fn engine(&mut self, news: News) {
        match news {
            // The ledger was laid out for what the first engine said that activations cost.
            News::Attached(link)
                if link.hello.activation != self.driver.scheduler().manager().geometry().activation =>
            {
                tracing::error!(build = link.build, "an engine with other activation costs was refused");
                link.sender.shutdown();
            }
            News::Attached(link) => {
                tracing::info!(pid = link.hello.pid, build = link.build, "engine attached");
                self.diary.engine_attached(SystemTime::now());
                self.engine_left = None;
                self.watch.attached(link.process.clone(), link.supervisor.clone());
                body::attach(&mut self.driver, link);
            }
            News::Event(event) => body::event(&mut self.driver, event),
            News::Lost(why) => {
                tracing::warn!(%why, "engine lost; requests are held until its successor attaches");
                self.diary.engine_lost(SystemTime::now());
                self.engine_left = Some(Instant::now());
                self.metrics.engine_lost();
                self.watch.lost();
                body::lost(&mut self.driver);
            }
        }
    }

    /// Extends the deadline of the turn while the engine gets on. A holder whose engine hangs extends nothing.
    fn keep_turn(&mut self) {
        let (Some(place), Some(epoch)) = (&self.place, self.driver.scheduler().held_epoch()) else { return };
        let turn = place.seat.slice_queue();
        let promised = match self.watch.turn_lasts(PROMISE) {
            Some(lasts) => turn.set_deadline(boot_ns(sluice_memory::since_boot() + lasts)),
            None if turn.held().is_none() => Err(LedgerError::SliceTakenOver),
            None => Ok(()),
        };
        match promised {
            // Released a moment ago, or the next turn is on its way to the scheduler.
            Ok(()) | Err(LedgerError::SliceNotHeld) => {}
            Err(LedgerError::SliceTakenOver) => {
                tracing::error!(epoch, "a neighbour took the turn, since this tenant was past its deadline");
                self.watch.overtaken();
                self.driver.push(Event::Peer(PeerPortEvent::SliceTakenOver { epoch }));
            }
            Err(error) => tracing::warn!(%error, "the deadline of the turn was not extended"),
        }
    }

    /// Kills an engine that makes no progress within its deadline.
    fn watch_engine(&mut self) {
        let compute = self.driver.compute();
        let (ordered, steps, rebacks) = (compute.ordered(), compute.take_steps(), compute.take_rebacks());
        steps.into_iter().for_each(|(tokens, took)| self.watch.step_done(tokens, took));
        rebacks.into_iter().for_each(|(addresses, took)| self.watch.rebacked(addresses, took));
        let carried = self.driver.memory().transferred_bytes();
        let before = self.watch.hangs();
        self.watch.look(Instant::now(), ordered, carried);
        (before..self.watch.hangs()).for_each(|_| self.metrics.engine_hung());
    }

    /// Counts the turns that neighbours took from this tenant.
    fn count_overtaken(&mut self) {
        let Some(place) = &self.place else { return };
        let total = place.seat.slice_queue().takeovers_total();
        let before = std::mem::replace(&mut self.overtaken, total);
        (before..total).for_each(|_| self.metrics.turn_overtaken());
    }

    /// Hands out what the scheduler has to say.
    fn announce(&mut self) {
        let at = Instant::now();
        for notice in self.driver.take_outputs() {
            match notice {
                SchedulerOutput::Token { request, token, logprobs } => {
                    self.send(request, Update::Token { token, logprobs, at })
                }
                SchedulerOutput::Finished { request, finish } => {
                    self.send_last(request, Update::Finished(finish))
                }
                SchedulerOutput::Refused { request, refusal } => {
                    self.send_last(request, Update::Refused(refusal))
                }
                SchedulerOutput::Admitted { cached_tokens, queued_ns, .. } => {
                    self.metrics.admitted(queued_ns, cached_tokens)
                }
                SchedulerOutput::PolicyRefused { policy, refused } => {
                    tracing::error!(policy = policy.name(), %refused, "the policy of the directive does not fit: the one before stays");
                    self.deal.refused();
                }
                SchedulerOutput::BoundsRefused { bounds, refused } => {
                    tracing::error!(?bounds, %refused, "the share and cap of the directive do not fit: those before stay");
                    self.deal.refused();
                }
                SchedulerOutput::Preempted { request, dropped_tokens } => {
                    tracing::debug!(
                        request = request.0,
                        dropped_tokens,
                        reason = "preempt",
                        "request preempted"
                    );
                    self.metrics.preempted(dropped_tokens);
                }
                SchedulerOutput::Waited(span) => self.metrics.waited(&span),
                SchedulerOutput::Planned { gap_permille } => self.metrics.planned(gap_permille),
                SchedulerOutput::Step(step) => self.metrics.step(&step),
            }
        }
        self.diary.idle_after(self.bed.idle_after());
        self.metrics.kv_copied(self.driver.memory().kv_copy_stats());
        let core = self.driver.scheduler();
        self.metrics.prompts_out(core.counters().prefills_offloaded, core.manager().prefill_buffer_bytes());
        self.diary.observe(self.driver.scheduler(), &self.metrics);
    }

    fn send(&self, request: RequestId, update: Update) {
        if let Some(stream) = self.streams.get(&request) {
            // A client that has gone sends its own cancellation.
            let _ = stream.send(update);
        }
    }

    fn send_last(&mut self, request: RequestId, update: Update) {
        self.send(request, update);
        self.streams.remove(&request);
    }

    /// Ends what was held for an engine that does not come back within the budget.
    fn give_up_streams(&mut self) {
        if self.engine_left.is_none_or(|left| left.elapsed() < self.hold) || self.streams.is_empty() {
            return;
        }
        tracing::error!(streams = self.streams.len(), "no engine came back within the hold budget");
        self.end_streams(&UnavailableReason::NoEngine { held_seconds: self.hold.as_secs() });
    }

    /// The tenant was idle for long enough, or holds requests in its sleep for too long.
    fn lie_down(&mut self) {
        if self.bed.tired(self.driver.scheduler()) {
            self.driver.push(Event::Sleep(Sleep::Idle));
        }
        let rest = self.driver.scheduler().manager().sleep_state();
        let late = self.bed.held_too_long(rest, self.streams.keys().copied(), self.hold);
        if late.is_empty() {
            return;
        }
        let by_hand = self.driver.scheduler().snapshot().is_sleep_requested;
        let outage = UnavailableReason::Asleep { held_seconds: self.hold.as_secs(), by_hand };
        late.into_iter().for_each(|request| self.end_stream(request, &outage));
    }

    /// Policy, share and cap of the directive are in force, as far as neighbours leave room.
    fn follow_directive(&mut self) {
        let events = self.deal.follow(self.driver.scheduler().manager(), Instant::now());
        events.into_iter().for_each(|event| self.driver.push(event));
    }

    /// How long the share can be left alone.
    fn deal_rests(&self) -> Duration {
        self.deal.rests(self.driver.scheduler().manager(), Instant::now())
    }

    fn end_streams(&mut self, outage: &UnavailableReason) {
        let open: Vec<_> = self.streams.keys().copied().collect();
        open.into_iter().for_each(|request| self.end_stream(request, outage));
    }

    fn end_stream(&mut self, request: RequestId, outage: &UnavailableReason) {
        let Some(stream) = self.streams.remove(&request) else { return };
        // A client that has gone needs no telling.
        let _ = stream.send(Update::Finished(Finish::Unavailable(outage.clone())));
        self.driver.push(Event::Cancel(request));
    }

    fn update_status(&self) {
        let snapshot = self.driver.scheduler().snapshot();
        let status = match (snapshot.serving, self.driver.scheduler().manager().is_loaded()) {
            (true, _) => Status::Serving,
            (false, true) => Status::EngineLost,
            (false, false) => match self.driver.scheduler().manager().failed() {
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
        let mut state = state::assemble(&mut self.driver, &self.diary, &self.metrics);
        state.engine.work = self.watch.work();
        state.sidecar_hangs.clone_from(&self.sidecar_hangs);
        (state.engine.hangs, state.engine.last_hang) = (self.watch.hangs(), self.watch.last_hang());
        if let Some(place) = &self.place {
            let seen = neighbours::Seen {
                core: self.driver.scheduler(),
                diary: &self.diary,
                metrics: &self.metrics,
                deal: &self.deal,
                now: self.now(),
            };
            seen.fill(&mut state, place);
        }
        state
    }

    /// The backend backs every address exactly as the ledger says. While a transaction is pending it may be one ahead.
    fn audit(&mut self) {
        if self.driver.scheduler().manager().is_blocked() {
            return;
        }
        let expected: Vec<_> = self.driver.scheduler().manager().addresses().collect();
        let audited = self.driver.memory().audit(expected.into_iter());
        audited.expect("the backend's table equals the ledger's");
        self.driver.scheduler().check();
    }

    /// Cuts what still runs and says good-bye to the engine.
    fn stop(mut self) {
        self.driver.compute().bye();
        drop(self.streams);
    }
}

/// A moment of the clock since boot, nanoseconds.
fn boot_ns(moment: Duration) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}
